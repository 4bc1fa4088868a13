"""``neuroshard stats``: a table set from a sample of data, or from a TorchRec module."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.options import DEFAULT_BATCHES, names_function
from neuroshard_profiler.commands import stats as stats_of_data

from neuroshard_cli.shared.output import ResultFile, deliver, print_document, print_text


def _stats_of_module(name: str, given: Mapping[str, Any]) -> None:
    from neuroshard_dlrm.module_tables import read_module
    from neuroshard_report.terminal.listings import render_tables

    for option, value in given.items():
        if option not in {"data", "out", "json"} and value != _OF_DATA[option].default and value is not None:
            word = f"--{option.removeprefix('data_').replace('_', '-')}"
            raise CommandError(f"{word}: belongs to a sample of data, and {name} returns a module; hint: leave it out")
    found = read_module(name, max_batches=DEFAULT_BATCHES).tables()
    table_set = found.table_set
    if found.optimizer_problem:
        say(f"{found.optimizer_problem}; the table set has no optimizers")
    statistics = () if found.statistics is None else found.statistics.features
    duplication = {each.name: each.duplication_factor for each in statistics if each.duplication_factor is not None}

    def show() -> None:
        if given["json"]:
            print_document(table_set.to_json())
        else:
            print_text(render_tables(table_set, duplication=duplication))

    deliver(show, ResultFile("table set", given["out"], table_set.to_json), says=not given["json"])


def stats(**values: Any) -> None:  # noqa: ANN401 - what typer parsed by the signature below
    """Make a table set from a sample of training data, or from a TorchRec module.

    Rows of a sample are those that it shows, so raise them where the whole data has more. A module knows its own.
    """
    if names_function(values["data"]):
        _stats_of_module(values["data"], values)
        return
    if values["embedding_dim"] is None:
        raise CommandError(
            "--embedding-dim: is missing; hint: data does not tell it, so give the columns of every table"
        )
    stats_of_data(**values)


_DATA = (
    "A sample of the training data: a file, a folder, a pattern, or a URL; or package.module:function, which returns a "
    "TorchRec module or (module, batches)."
)
_OF_DATA = inspect.signature(stats_of_data).parameters


def _parameters() -> list[inspect.Parameter]:
    """Return the options of a sample; those that a module excludes may be missing."""
    hints = get_type_hints(stats_of_data, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    found = []
    for each in _OF_DATA.values():
        hint, default = hints[each.name], each.default
        if each.name == "data":
            hint = Annotated[str, typer.Argument(metavar="DATA|FUNCTION", help=_DATA)]
        elif default is inspect.Parameter.empty:
            hint, default = Annotated[(hint.__origin__ | None, *hint.__metadata__)], None
        found.append(each.replace(annotation=hint, default=default, kind=keyword))
    return found


stats.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
stats.__annotations__ = {each.name: each.annotation for each in _parameters()}
