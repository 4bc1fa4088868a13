"""``neuroshard export``: a plan in the words of another library, or its step as a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.plan_file import read_given_plan, read_plan

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import measured_in
from neuroshard_cli.shared.output import print_document, write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file; for a trace also the folder of a run.")],
    *,
    form: Annotated[
        Literal["torchrec", "perfetto"],
        typer.Option("--format", help="A sharding plan for TorchRec, or a trace of the step for Perfetto."),
    ] = "torchrec",
    module_path: Annotated[
        str | None,
        typer.Option(
            help="Where the wrapped module keeps its tables. Default: the modules that the tables name, else as "
            "TorchRec's DLRMTrain."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: stdout.")] = None,
) -> None:
    """Write a plan as a TorchRec sharding plan, or its step as a trace.

    Neither torch nor TorchRec is needed to write it. The trace has the predicted step of each rank, and of a run's
    folder the measured one below it; ui.perfetto.dev and chrome://tracing show it.
    """
    from neuroshard_api.documents.torchrec_plan import ComputeDevice, TorchRecPlan

    if form == "perfetto":
        if module_path is not None:
            raise CommandError("--module-path: is for --format torchrec; hint: leave it out")
        what, text = "trace", _trace(plan)
    else:
        document = read_given_plan(plan)
        _require_torchrec_codecs(document, plan)
        if module_path is not None:
            _require_one_module(document, plan)
        what = "sharding plan"
        device: ComputeDevice = "cpu" if document.request.topology.device.is_cpu else "cuda"
        text = TorchRecPlan.of(document, module_path=module_path, compute_device=device).to_json()
    if out is None:
        print_document(text)
    else:
        write_file(out, text)
        say(f"{what} written to {out}")


def _trace(path: Path) -> str:
    """Return the trace of a plan's step, or of a run's with what was measured under its plan. Raises DocumentError."""
    from neuroshard_report.step_trace import step_trace

    if not path.is_dir():
        return step_trace(read_plan(path))
    directory = RunDirectory(path)
    return step_trace(read_plan(directory.plan_file), measured_in(directory).steps)


def _require_one_module(plan: "GivenPlan", path: Path) -> None:
    """Do nothing if no table names the module that holds it. Raises CommandError."""
    named = next((table for table in plan.request.tables.tables if table.collection is not None), None)
    if named is not None:
        raise CommandError(
            f"--module-path: the tables of {path} name their modules, as {named.name!r} names {named.collection!r}; "
            "hint: leave it out"
        )


def _require_torchrec_codecs(plan: "GivenPlan", path: Path) -> None:
    """Do nothing if TorchRec has codecs of all types on the wire. Raises CommandError."""
    types = plan.resolved.wire
    sparse = [] if types is None else [each for each in (types.forward, types.backward) if each.is_sparse]
    if sparse:
        raise CommandError(
            f"{path} sends pooled embeddings in {sparse[0]}, for which TorchRec has no codec: NeuroShard's trainer has "
            "it; hint: plan with other types in spec.experimental.communication.embeddings"
        )
