"""A model that a function of the user makes, by the function's name: ``package.module:function``."""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from neuroshard_api.documents.dense_profile import DenseMatrices
from neuroshard_api.documents.request import Constraints
from torch import nn

from neuroshard_torchrec.asked import Asked
from neuroshard_torchrec.dense_part import dense_bytes, dense_matrices
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.limits import translated
from neuroshard_torchrec.model_tables import ModelTables, model_tables
from neuroshard_torchrec.sample_batches import Batches, are_several, batches_of

FORM = "give package.module:function, a function without arguments that returns the module, or (module, batches)"


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenModel:
    """A module and what is looked up in it."""

    module: nn.Module
    batches: Batches

    def tables(self) -> ModelTables:
        """Return the module's tables. Raises DropInError."""
        return model_tables(self.module, sample_batches=self.batches)

    def dense_bytes(self, tables: ModelTables) -> int:
        """Return the memory of the module's other parameters, without activations."""
        return dense_bytes(self.module, tables)

    def dense_matrices(self, tables: ModelTables) -> DenseMatrices | None:
        """Return the weight matrices of the module's dense part. None: none are known."""
        return dense_matrices(self.module, tables)


def given_model(name: str, *, max_batches: int) -> GivenModel:
    """Return the model that a function makes.

    Args:
        name: of the function; modules are also found in the working directory.
        max_batches: those that are read of what the function returns, which may be an endless iterator.

    Raises:
        DropInError: there is no such function, it raises an error, or it returns something else.
    """
    function = _function(name)
    with _code_of_the_user(name, "calling it"):
        returned = function()
    module, batches = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, ())  # noqa: PLR2004 - a pair
    if not isinstance(module, nn.Module):
        raise DropInError(f"{name}: returned a {type(module).__name__}, not a torch module; hint: {FORM}")
    with _code_of_the_user(name, "reading its batches"):
        found = list(islice(batches, max_batches)) if are_several(batches) else batches
    return GivenModel(module=module, batches=batches_of(found, where=name))


def module_constraints(tables: ModelTables, *, compute_device: str = "cuda") -> Constraints:
    """Return the constraints of the sharders of a module's collections. Raises DropInError."""
    return translated(tables, Asked(), max_memory_bytes=None, compute_device=compute_device).constraints


def _function(name: str) -> Callable[[], object]:
    place, separator, attribute = name.partition(":")
    if not (separator and place and attribute.isidentifier()):
        raise DropInError(f"{name!r} names no function; hint: {FORM}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as `python -m` puts it there
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    with _code_of_the_user(name, "importing it"):
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
                raise DropInError(
                    f"{name}: there is no module {error.name!r} in the working directory or among the installed "
                    f"packages; hint: {FORM}"
                ) from error
            raise
    function = getattr(module, attribute, None)
    if not callable(function):
        raise DropInError(f"{name}: {place} has no function {attribute!r}; hint: {FORM}")
    return function  # type: ignore[no-any-return] # its result is checked


@contextmanager
def _code_of_the_user(name: str, doing: str) -> Iterator[None]:
    """Send what the user's code prints to stderr. Raises DropInError, one line, for what it raises, exits included."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except DropInError:
        raise
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DropInError(f"{name}: {doing} failed: {what}{_place(error)}; hint: run it in Python first") from error


def _place(error: BaseException) -> str:
    """Return the last line that an error passed outside installed packages, else in them; empty if there is none."""
    passed = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    own = [frame for frame in passed if not _is_installed(Path(frame.filename))]
    found = (own or passed)[-1:]
    return f" ({found[0].filename}, line {found[0].lineno})" if found else ""


def _is_installed(file: Path) -> bool:
    return file.is_relative_to(sysconfig.get_path("stdlib")) or "site-packages" in file.parts
