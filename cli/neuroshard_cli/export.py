"""``neuroshard export``: a plan in the words of another library."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from neuroshard_cli.output import print_document, say, write_file
from neuroshard_cli.plan_file import read_given_plan


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    form: Annotated[Literal["torchrec"], typer.Option("--format", help="Whose words.")] = "torchrec",  # noqa: ARG001 - the only one
    module_path: Annotated[
        str | None,
        typer.Option(help="Where the wrapped module keeps its tables. Default: as TorchRec's DLRMTrain does."),
    ] = None,
    compute_device: Annotated[Literal["cuda", "cpu"], typer.Option(help="What each rank computes on.")] = "cuda",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: stdout.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Errors are JSON; the export always is.")] = False,  # noqa: ARG001 - read before parsing
) -> None:
    """Write a plan as a TorchRec sharding plan.

    Neither torch nor TorchRec is needed to write it.
    """
    from neuroshard_api.torchrec_plan import DEFAULT_MODULE_PATH, TorchRecPlan

    path = DEFAULT_MODULE_PATH if module_path is None else module_path
    text = TorchRecPlan.of(read_given_plan(plan), module_path=path, compute_device=compute_device).to_json()
    if out is None:
        print_document(text)
    else:
        write_file(out, text)
        say(f"sharding plan written to {out}")
