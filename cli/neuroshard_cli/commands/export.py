"""``neuroshard export``: a plan in the words of another library."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.plan_file import read_given_plan

from neuroshard_cli.shared.output import print_document, write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    form: Annotated[Literal["torchrec"], typer.Option("--format", help="Whose words.")] = "torchrec",  # noqa: ARG001 - the only one
    module_path: Annotated[
        str | None,
        typer.Option(
            help="Where the wrapped module keeps its tables. Default: the modules that the tables name, else as "
            "TorchRec's DLRMTrain."
        ),
    ] = None,
    compute_device: Annotated[Literal["cuda", "cpu"], typer.Option(help="What each rank computes on.")] = "cuda",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: stdout.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Errors are JSON; the export always is.")] = False,  # noqa: ARG001 - read before parsing
) -> None:
    """Write a plan as a TorchRec sharding plan.

    Neither torch nor TorchRec is needed to write it.
    """
    from neuroshard_api.documents.torchrec_plan import TorchRecPlan

    document = read_given_plan(plan)
    if module_path is not None:
        _require_one_module(document, plan)
    text = TorchRecPlan.of(document, module_path=module_path, compute_device=compute_device).to_json()
    if out is None:
        print_document(text)
    else:
        write_file(out, text)
        say(f"sharding plan written to {out}")


def _require_one_module(plan: "GivenPlan", path: Path) -> None:
    """Do nothing if no table names the module that holds it. Raises CommandError."""
    named = next((table for table in plan.request.tables.tables if table.collection is not None), None)
    if named is not None:
        raise CommandError(
            f"--module-path: the tables of {path} name their modules, as {named.name!r} names {named.collection!r}; "
            "hint: leave it out"
        )
