"""The profiler's commands and their options, for ``python -m neuroshard_profiler`` and for ``neuroshard``.

Importing this loads nothing heavy: each command imports what it needs.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from neuroshard_api.process.optimizer_choice import OptimizerChoice
from neuroshard_api.process.printable import printable

from neuroshard_profiler.sessions.commands import Engine, MemoryMib

if TYPE_CHECKING:
    from rich.console import Console

BackendChoice = Literal["fbgemm", "torch_native", "simulated"]
DataFormatChoice = Literal["CriteoTSV", "CriteoBinary", "CriteoMultiHot", "Parquet", "CSV", "NPZ"]
"""Formats of ``spec.data.format`` whose features can be found in files."""
IdRuleChoice = Literal["Exact", "Modulo", "Hash"]
DeviceChoice = Literal["cpu", "cuda"]
DEFAULT_BATCH_SIZE = 8192

_Tables = Annotated[
    Path | None,
    typer.Option("--tables", help="The model's tables: half of what is measured. Default: sets spread widely only."),
]
_Backend = Annotated[
    BackendChoice | None, typer.Option(help="What is timed. Default: FBGEMM where it is installed, else torch.")
]
_Device = Annotated[DeviceChoice | None, typer.Option(help="What it is timed on. Default: a GPU if there is one.")]


def _fields(incomplete: str) -> list[str]:
    """Return the fields that a profile depends on and that begin so, for the shell."""
    from neuroshard_profiler.settings import FIELDS

    return [f"{path}=" for path in FIELDS if path.startswith(incomplete)]


_DeviceType = Annotated[
    str | None, typer.Option(help="A device of `neuroshard devices`: what is simulated, or what the GPU is.")
]
_Budget = Annotated[
    str, typer.Option(help="Time for measurements, earlier ones of the folder included: 45s, 10m or 2h.")
]
_MaxRecords = Annotated[
    int | None, typer.Option(min=1, help="Most records of each kind. Default: what the budget allows; simulated: 256.")
]
_BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per device and step of the job. Default: 8192.")]
_Optimizer = Annotated[
    OptimizerChoice | None, typer.Option(help="The only one that is measured. Default: all of the backend.")
]
_Seed = Annotated[int, typer.Option(min=0, help="Equal seeds draw equal samples.")]


def profile(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[JOB] [TABLES]",
            help="A DLRMTrainingJob, whose settings hold; and the model's tables, of which half of what is measured is "
            "made. Default: no job, and sets spread widely only.",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for records, hardware.json and the bundle.")],
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for measurements, earlier ones of the folder included: 45s, 10m or 2h. Default: the job's, else "
            "10m."
        ),
    ] = None,
    max_records: _MaxRecords = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="A field of a job, over what JOB says, such as spec.model.batchSizePerDevice=4096; may be repeated.",
            autocompletion=_fields,
        ),
    ] = None,
    meet: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Measure the network between two nodes: where node 0 is met."),
    ] = None,
) -> None:
    """Measure this machine and fit cost models to it.

    A folder that holds records of an earlier run is continued. With --meet two nodes run the same command: the one
    whose PET_NODE_RANK is 0 writes the profile, the other one (1) takes part in its all-to-alls.
    """
    import os

    from neuroshard_api.job.settings import parse_settings
    from neuroshard_api.job.stage_commands import NODE_RANK_VARIABLE
    from neuroshard_report.terminal.bundle import render_manifest
    from neuroshard_report.terminal.printing import print_content

    from neuroshard_profiler.budget import budget_progress, parse_budget
    from neuroshard_profiler.profile import measure_with_node_0
    from neuroshard_profiler.profile import profile as profiled
    from neuroshard_profiler.settings import (
        Meeting,
        ProfileSettings,
        job_and_tables,
        job_settings,
    )

    job, tables = job_and_tables(files or ())
    asked = job_settings(job, parse_settings(set_ or ()))
    if budget is not None:
        asked["budget_seconds"] = parse_budget(budget)
    settings = ProfileSettings(
        **asked,
        tables_file=tables,
        max_records=max_records,
        out=out,
        meeting=None if meet is None else Meeting.at(meet, node_rank=os.environ.get(NODE_RANK_VARIABLE)),
    )
    if settings.meeting is not None and settings.meeting.node_rank > 0:
        measure_with_node_0(settings)
        _say("the all-to-alls are measured; node 0 writes the profile")
        return
    with budget_progress(_console()) as progress:
        report = profiled(settings, progress=progress, say=_say)
    print_content(render_manifest(report.manifest))
    _say(f"bundle written to {settings.out / 'bundle'}")


def collect_compute(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Records file. If it exists, new records are appended.")],
    tables: _Tables = None,
    backend: _Backend = None,
    device: _Device = None,
    device_type: _DeviceType = None,
    budget: _Budget = "10m",
    max_records: _MaxRecords = None,
    batch_size: _BatchSize = None,
    optimizer: _Optimizer = None,
    job_devices: Annotated[int, typer.Option(min=1, help="Devices of the job.")] = 1,
    part: Annotated[str, typer.Option(help="Of several processes this one, on the GPU of that index: 0/8 to 7/8.")] = (
        "0/1"
    ),
    seed: _Seed = 0,
) -> None:
    """Measure fused embedding calls only."""
    from neuroshard_api.documents.tables import Optimizer

    from neuroshard_profiler.budget import budget_progress, parse_budget
    from neuroshard_profiler.profile import checked_backend, measure_compute
    from neuroshard_profiler.settings import MeasuringProcess, ProfileSettings

    settings = ProfileSettings(
        part=MeasuringProcess.parsed(part),
        devices_per_node=job_devices,
        out=out.parent,
        tables_file=tables,
        backend=backend,
        device_kind=device,
        device_type=device_type,
        max_records=max_records,
        batch_size_per_device=batch_size or DEFAULT_BATCH_SIZE,
        optimizer=Optimizer(optimizer) if optimizer else None,
        seed=seed,
    )
    measuring = checked_backend(settings)
    with budget_progress(_console()) as progress:
        measure_compute(settings, measuring, out, parse_budget(budget), progress)


def collect_comm(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Records file. If it exists, new records are appended.")],
    tables: _Tables = None,
    device: _Device = None,
    budget: _Budget = "10m",
    max_records: _MaxRecords = None,
    batch_size: _BatchSize = None,
    seed: _Seed = 0,
) -> None:
    """Measure all-to-alls, as one of the ranks that torchrun starts.

    torchrun --nproc-per-node=2 -m neuroshard_profiler collect-comm --out FILE
    """
    import os

    from neuroshard_profiler.errors import SettingsError

    if "LOCAL_WORLD_SIZE" not in os.environ:
        raise SettingsError(
            "collect-comm measures between processes and found itself alone; hint: start it with "
            "`torchrun --nproc-per-node=N -m neuroshard_profiler collect-comm ...`"
        )
    from neuroshard_api.documents.table_files import read_table_set

    from neuroshard_profiler.benches.comm_ranks import collect_communication
    from neuroshard_profiler.budget import parse_budget
    from neuroshard_profiler.devices.visible import device_of

    measured = device_of(device, index=int(os.environ["LOCAL_RANK"]))
    timer, repeats = measured.exchanges()
    collect_communication(
        out,
        read_table_set(tables) if tables else None,
        measured,
        timer=timer,
        repeats=repeats,
        job_batch_size_per_device=batch_size or DEFAULT_BATCH_SIZE,
        budget_seconds=parse_budget(budget),
        max_records=max_records,
        seed=seed,
    )


def fit(
    records: Annotated[list[Path], typer.Argument(metavar="RECORDS...", help="Records files of one machine.")],
    *,
    hardware: Annotated[Path, typer.Option(help="The hardware.json that `profile` wrote next to them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle's folder; one that is there is replaced.")],
    base: Annotated[
        Path | None, typer.Option(help="Bundle to calibrate. Default: the bundled one of the same device.")
    ] = None,
    seed: _Seed = 0,
) -> None:
    """Fit cost models to records."""
    from neuroshard_api.documents.hardware import Hardware
    from neuroshard_costs.fitting.fit import fit_bundle
    from neuroshard_costs.fitting.records import read_records
    from neuroshard_report.terminal.bundle import render_manifest
    from neuroshard_report.terminal.printing import print_content

    from neuroshard_profiler.budget import budget_progress

    measured = [record for path in records for record in read_records(path)]
    device = Hardware.read(hardware).device
    with budget_progress(_console()) as progress:
        report = fit_bundle(measured, out, device=device, base=base, seed=seed, progress=progress, say=_say)
    _say(f"cost models by {report.method}: {report.reason}")
    print_content(render_manifest(report.manifest))


def _kernel_width(width: int | None) -> int | None:
    """Return the width of tables; None: the option was left out where a module has its own. Raises BadParameter."""
    from neuroshard_api.documents.tables import kernel_width

    try:
        return None if width is None else kernel_width(width)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


EmbeddingDim = Annotated[
    int,
    typer.Option(min=4, max=8192, callback=_kernel_width, help="Columns of every table; data does not tell them."),
]
MaxSamples = Annotated[int | None, typer.Option(min=1, help="Samples that are read. Default: all.")]
Feature = Annotated[
    list[str] | None, typer.Option(help="A feature that is looked up; may be repeated. Default: all that can be.")
]
Ignore = Annotated[
    list[str] | None, typer.Option(help="A column that is not looked up; may be repeated. Default: none.")
]
Session = Annotated[str | None, typer.Option(help="Column that tells which samples are of one session.")]
DataFormatOption = Annotated[
    DataFormatChoice | None, typer.Option("--format", help="As in spec.data.format. Default: by the end of the name.")
]


def stats(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A sample of the training data: a file, a folder, a pattern, or a URL."),
    ],
    *,
    embedding_dim: EmbeddingDim,
    data_format: DataFormatOption = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=2**31, help="Samples of a global batch, in which rows are reused.")
    ] = 65536,
    max_samples: MaxSamples = None,
    feature: Feature = None,
    label: Annotated[
        str | None,
        typer.Option(help="Column of the label, which is never looked up. Default: the column label, if there is one."),
    ] = None,
    ignore: Ignore = None,
    id_rule: Annotated[
        IdRuleChoice | None,
        typer.Option(help="Row that an id looks up, of all features. Default: the rule that fits each feature's ids."),
    ] = None,
    rows_per_id: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1_000_000,
            help="Rows for each distinct id that is hashed. Default: 2 for Hash, 1 for Modulo.",
        ),
    ] = None,
    session: Session = None,
    time: Annotated[
        str | None, typer.Option(help="Column that orders the samples of a session: measure repeats over all samples.")
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(help="A feature whose lists may not change within a session; may be repeated. Default: none."),
    ] = None,
    session_run: Annotated[
        int,
        typer.Option(
            min=0, max=2**31, help="Maximum samples of a session that training keeps together; 0: all of them."
        ),
    ] = 8,
    engine: Engine = "duckdb",
    memory_mib: MemoryMib = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table set (JSON).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the table set as JSON; errors are JSON too.")] = False,
) -> None:
    """Make a table set from a sample of training data.

    Rows are those that the sample shows, so raise them where the whole data has more.
    """
    from neuroshard_api.documents.tables import IdRule
    from neuroshard_api.job.training import DataFormat
    from neuroshard_report.terminal.printing import print_content

    from neuroshard_profiler.data.data_set import DataSet
    from neuroshard_profiler.data.sample import SampleSettings, read_sample
    from neuroshard_profiler.data.statistics_text import render_statistics
    from neuroshard_profiler.errors import SettingsError
    from neuroshard_profiler.files import require_file_place, write_file
    from neuroshard_profiler.sessions.engine import EngineKind, EngineSettings

    if time is not None and session is None:
        raise SettingsError("--time: orders the samples of a session; hint: give --session too, or leave --time out")
    if constant and time is None:
        raise SettingsError(
            "--constant: lists are compared in the order of a session's samples; hint: give --session and --time too"
        )
    if out is not None:
        require_file_place(out)
    opened = DataSet.of(
        data,
        data_format=DataFormat(data_format) if data_format else None,
        features=feature or (),
        session=session,
        time=time,
        label=label,
        ignored=ignore or (),
    )
    settings = SampleSettings(
        batch_size=batch_size,
        max_samples=max_samples,
        id_rule=IdRule(id_rule) if id_rule else None,
        rows_per_id=rows_per_id,
        session_run=session_run,
        engine=EngineSettings(kind=EngineKind(engine), memory_mib=memory_mib),
        constant=constant or (),
    )
    numbers = opened.seen_numbers(refuses=False)
    sample = read_sample(opened, data, settings, numbers=numbers, is_silent=json)
    tables = sample.table_set(embedding_dim)
    if out is not None:
        write_file(out, tables.to_json())
    if json:
        sys.stdout.write(tables.to_json())
    else:
        print_content(render_statistics(sample.statistics, sample.duplication))
    for sentence in (*opened.notes(numbers), *sample.doubts):
        _say(sentence)


COMMANDS = (profile, collect_compute, collect_comm, fit, stats)
"""In the order in which help lists them."""


def _console() -> "Console":
    from neuroshard_report.terminal.console import PrintableConsole

    return PrintableConsole(stderr=True)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{printable(sentence)}\n")
