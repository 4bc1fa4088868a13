"""``neuroshard stats``: a table set from a sample of data, or from a TorchRec module."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.options import DEFAULT_BATCHES
from neuroshard_profiler.commands import stats as stats_of_data

from neuroshard_cli.shared.module_option import BatchesOption, ModuleOption
from neuroshard_cli.shared.output import print_document, print_text, write_file


def _stats_of_module(name: str, batches: int, given: Mapping[str, Any]) -> None:
    from neuroshard_dlrm.module_tables import read_module
    from neuroshard_report.terminal.listings import render_tables

    for option, value in given.items():
        if option not in {"out", "json"} and value != _OF_DATA[option].default and value is not None:
            what = "DATA" if option == "data" else f"--{option.removeprefix('data_').replace('_', '-')}"
            raise CommandError(f"--module: excludes {what}, which belongs to a sample of data; hint: give one of them")
    found = read_module(name, max_batches=batches).tables()
    table_set = found.table_set
    if found.optimizer_problem:
        say(f"{found.optimizer_problem}; the table set has no optimizers")
    out: Path | None = given["out"]
    if out is not None:
        write_file(out, table_set.to_json())
    if given["json"]:
        print_document(table_set.to_json())
        return
    statistics = () if found.statistics is None else found.statistics.features
    duplication = {each.name: each.duplication_factor for each in statistics if each.duplication_factor is not None}
    print_text(render_tables(table_set, duplication=duplication))
    if out is not None:
        say(f"table set written to {out}")


def stats(**values: Any) -> None:  # noqa: ANN401 - what typer parsed by the signature below
    """Make a table set from a sample of training data, or from a TorchRec module.

    Rows of a sample are those that it shows, so raise them where the whole data has more. A module knows its own.
    """
    module, batches = values.pop("module"), values.pop("batches")
    if module is not None:
        _stats_of_module(module, batches, values)
        return
    for option, what in (("data", "DATA"), ("embedding_dim", "--embedding-dim")):
        if values[option] is None:
            raise CommandError(f"{what}: is missing; hint: give DATA and --embedding-dim, or --module")
    stats_of_data(**values)


_OF_DATA = inspect.signature(stats_of_data).parameters


def _parameters() -> list[inspect.Parameter]:
    """Return the options of both ways; what one of them needs may be missing."""
    hints = get_type_hints(stats_of_data, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    found = []
    for each in _OF_DATA.values():
        hint, default = hints[each.name], each.default
        if default is inspect.Parameter.empty:
            hint, default = Annotated[(hint.__origin__ | None, *hint.__metadata__)], None
        found.append(each.replace(annotation=hint, default=default, kind=keyword))
    return [
        *found,
        inspect.Parameter("module", keyword, default=None, annotation=ModuleOption),
        inspect.Parameter("batches", keyword, default=DEFAULT_BATCHES, annotation=BatchesOption),
    ]


stats.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
stats.__annotations__ = {each.name: each.annotation for each in _parameters()}
