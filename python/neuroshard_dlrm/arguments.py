"""The arguments of Python's functions as the options of the command, and its errors in the words of the arguments."""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from neuroshard_api.documents.document import Document, DocumentError
from neuroshard_api.documents.foreign_tables import table_set_of_data
from neuroshard_api.documents.request import Constraints
from neuroshard_api.documents.table_files import FEATURE_SEPARATOR, parse_csv
from neuroshard_api.documents.topology import Topology
from neuroshard_api.process.errors import ExpectedError, InputError
from neuroshard_api.process.failures import CommandError
from neuroshard_planner.baselines.torchrec import require_torchrec

from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import Source, read_source, source_of

if TYPE_CHECKING:
    from torch import nn
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

PathLike = Path | str


class Plannable(ABC):
    """A result that can be planned from."""

    @abstractmethod
    def as_source(self) -> Source:
        """Return the tables, the job, or the request."""


class PlanArguments(TypedDict, total=False):
    """What is planned next to its tables; a job or a request says most of it itself."""

    devices: int | PathLike | Topology | Mapping[str, Any]
    """Devices in all nodes; nodes and devices of each, as ``"2x8"``; or a topology, or its file."""
    device: str
    """A device of ``neuroshard devices``, such as ``h100-80gb``."""
    batch_size: int
    """Samples per device and step. If unset: the table set's, else 8,192."""
    set: Mapping[str, Any]
    """Fields of a job by path, as ``{"spec.planner.algorithm": "Random"}``, over what the source says. Unset: none."""
    constraints: PathLike | Mapping[str, Any]
    """Constraints, or their file. If unset: none."""
    dense: PathLike
    """File of the counted dense part. If unset: it is not counted."""
    servers: str
    """Embedding servers that may have tables, as ``"2x192GiB"``, or
    ``"2x192GiB,cores=64,gbps=100,processes=1,policy=auto"``. If unset: those of a job, else none."""
    bundle: PathLike
    """Folder of cost models, or a device that has bundled ones. If unset: those of the device."""
    sample_batches: "Sequence[KeyedJaggedTensor]"
    """Global batches of a module, from which lookups and reuse are measured. If unset: one lookup per feature."""


_FEATURES = "feature_names"
ARGUMENTS = {"device_type": "device"}
"""Options that have another name here."""
_OPTION = re.compile(r"`[^`]*`|--([a-z]+(?:-[a-z]+)*)|\b(TABLES)\b")
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def asks(function: _FunctionT) -> _FunctionT:
    """Show the entries of `PlanArguments` in the signature of a function that takes them as keywords."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in PlanArguments.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    return function


@contextmanager
def in_python() -> Iterator[None]:
    """Name arguments where an error of the command would name options."""
    try:
        yield
    except CommandError as error:
        raise InputError(_in_arguments(str(error))) from error
    except DocumentError as error:
        problems = [_in_arguments(problem) for problem in error.problems]
        raise DocumentError(_in_arguments(error.where), problems) from error
    except ExpectedError as error:
        error.args = (_in_arguments(str(error)),)
        raise


def _in_arguments(message: str) -> str:
    return _OPTION.sub(_argument, message)


def _argument(found: re.Match[str]) -> str:
    if found[2]:
        return "source"
    if not found[1]:
        return found[0].strip("`") if found[0].startswith("`--") else found[0]
    name = found[1].replace("-", "_")
    return ARGUMENTS.get(name, name)


def options_of(question: PlanArguments, *, where: str | None) -> RequestOptions:
    """Return the options that the arguments stand for.

    Args:
        question: the arguments; those that are None count as not given.
        where: what errors call the source. None: there is none.

    Raises:
        TypeError: there is no such argument.
        DocumentError: a topology or constraints are not valid.
    """
    unknown = next((name for name in question if name not in PlanArguments.__annotations__), None)
    if unknown is not None:
        raise TypeError(f"unexpected keyword argument {unknown!r}; the arguments are {', '.join(_NAMES)}")
    given = {
        name: _checked(name, value)
        for name, value in question.items()
        if value is not None and name != "sample_batches"
    }
    if "device" in given:
        given["device_type"] = given.pop("device")
    for name in ("dense", "bundle"):
        if name in given:
            given[name] = Path(given[name])
    if not isinstance(given.get("devices", 0), int | str):
        given["devices"] = _document(given["devices"], Topology, where="devices")
    if "constraints" in given:
        given["constraints"] = _document(given["constraints"], Constraints, where="constraints")
    return replace(RequestOptions(tables=where), **given)


_NAMES = tuple(PlanArguments.__annotations__)
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "device": ((str,), "the name of a device of `neuroshard devices`"),
    "devices": ((int, str, Path, Topology, Mapping), 'a number, nodes and devices of each as "2x8", or a topology'),
    "batch_size": ((int,), "a whole number"),
    "set": ((Mapping,), "a dictionary with the values by their paths"),
    "constraints": ((str, Path, Mapping, Constraints), "a dictionary with their fields, or a path"),
    "dense": ((str, Path), "a path"),
    "bundle": ((str, Path), "a path, or the name of a device"),
}
"""Types of each argument, and what to give."""


def _checked(name: str, value: Any) -> Any:  # noqa: ANN401 - any argument
    """Return an argument, a number of numpy as Python's own. Raises InputError where it is of another type."""
    value = value.tolist() if hasattr(value, "tolist") else value
    kinds, remedy = _KINDS[name]
    is_right = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_right:
        raise InputError(f"{name}: is of the type {type(value).__name__}; hint: give {remedy}")
    if name == "batch_size" and value < 1:
        raise InputError(f"{name}: must be at least 1 (found {value}); hint: give {remedy}")
    if name == "set" and not all(isinstance(path, str) for path in value):
        raise InputError(f"{name}: its paths are not texts; hint: give {remedy}")
    return value


def path_of(given: object, *, name: str) -> Path:
    """Return the path of a file. Raises InputError where the argument of that name is none."""
    if not isinstance(given, str | Path):
        raise InputError(f"{name}: is of the type {type(given).__name__}; hint: give a path")
    return Path(given)


def _document(given: Any, kind: type[Document], *, where: str) -> object:  # noqa: ANN401 - as it was checked
    """Return a path, or a document that is given whole or as plain data. Raises DocumentError."""
    if isinstance(given, Mapping):
        return kind.from_data({"schema_version": kind.schema_name, **given}, where=where)
    return Path(given) if isinstance(given, str) else given


def source_from(given: object, question: PlanArguments) -> Source:
    """Return a source to plan from.

    Args:
        given: name or path, plain data, rows of tables, a DataFrame, a module, or a document.
        question: its sample batches belong to a module.

    Raises:
        InputError: it is none of these.
        ExpectedError: it cannot be read (see `requests.read_source`), or TorchRec is missing.
    """
    found = _module(given, question)
    if found is not None:
        return found
    if question.get("sample_batches") is not None:
        raise InputError("sample_batches: are of a TorchRec module, and the source is none; hint: leave them out")
    if isinstance(given, str | Path):
        return read_source(str(given))
    if isinstance(given, Plannable):
        return given.as_source()
    if isinstance(given, Mapping):
        return source_of(dict(given), where="the source")
    if hasattr(given, "to_csv"):
        return parse_csv(_csv_of(given), where="the frame", name="tables")
    if isinstance(given, Sequence) and all(isinstance(each, Mapping) for each in given):
        rows = [dict(each) for each in given]
        return table_set_of_data(rows, where="the tables", name="tables")
    raise InputError(
        f"source: is an object of the type {type(given).__name__}; hint: give a file, a workload, a list of "
        "dictionaries with one table each, a pandas DataFrame, a job as a dictionary, or a TorchRec module"
    )


def _csv_of(frame: Any) -> str:  # noqa: ANN401 - a DataFrame, of a package that need not be there
    """Return a frame as CSV; lists of features in its cells are written as CSV has them."""
    if _FEATURES in getattr(frame, "columns", ()):
        cells = [FEATURE_SEPARATOR.join(each) if isinstance(each, list | tuple) else each for each in frame[_FEATURES]]
        frame = frame.assign(**{_FEATURES: cells})
    return str(frame.to_csv(index=False))


def name_of(given: object) -> str:
    """Return the name of a source in errors."""
    return str(given) if isinstance(given, str | Path) else "the source"


def _module(given: object, question: PlanArguments) -> Source | None:
    """Return a torch module with its batches. None: it is something else."""
    if not any(kind.__module__.startswith("torch.nn.") for kind in type(given).__mro__):
        return None
    require_torchrec("a module")
    from neuroshard_torchrec.given_model import GivenModel
    from neuroshard_torchrec.sample_batches import batches_of

    module: nn.Module = given  # type: ignore[assignment] # of torch, by the names of its classes
    return GivenModel(module=module, batches=batches_of(question.get("sample_batches") or ()))
