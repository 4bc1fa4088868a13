"""The whole stage in one call: measure compute and all-to-alls, describe the hardware, fit a bundle."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.job.stage_commands import HARDWARE_FILE, RECORDS_FOLDER
from neuroshard_api.process.generations import mixed_generations
from neuroshard_api.sharding.kernels import TRAINING_KERNELS, DeviceKind, Kernels, kernel_problem
from neuroshard_costs.fitting.fit import MIN_RECORDS, FitReport, fit_bundle
from neuroshard_costs.fitting.records import ended_records
from rich.progress import Progress

from neuroshard_profiler.backends.ahead import drawing_ahead, drawing_processes
from neuroshard_profiler.backends.base import Backend
from neuroshard_profiler.backends.select import BackendName, default_backend, make_backend
from neuroshard_profiler.benches.codec import CodecBackend, collect_codecs
from neuroshard_profiler.benches.comm_stage import measure_communication, measured_links, require_network
from neuroshard_profiler.benches.compute import collect_compute, compute_samples
from neuroshard_profiler.benches.expansion import collect_expansions, has_repeats
from neuroshard_profiler.benches.launch import collect_launches
from neuroshard_profiler.benches.matrix import collect_matrices
from neuroshard_profiler.benches.sampling import CPU_SPACE, GPU_SPACE, SampleSpace
from neuroshard_profiler.budget import Budget, BudgetBar
from neuroshard_profiler.devices.core_gauge import CORE_LOOP
from neuroshard_profiler.devices.visible import Gpus, TorchGpus, usable_gpus
from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.files import write_file
from neuroshard_profiler.hardware import fingerprint
from neuroshard_profiler.processes import Measurer, run_measurers
from neuroshard_profiler.records import RecordsFile, require_own_method
from neuroshard_profiler.settings import MeasuringProcess, ProfileSettings

if TYPE_CHECKING:
    from neuroshard_profiler.backends.torch_backend import TorchBackend

COMPUTE_FILE = "compute.jsonl"
COMMUNICATION_FILE = "communication.jsonl"
LAUNCH_FILE = "launch.jsonl"
EXPANSION_FILE = "expansion.jsonl"
CODECS_FILE = "codecs.jsonl"
MATRICES_FILE = "matrices.jsonl"
TOPOLOGY_FILE = "topology.json"

_OVERHEAD_SECONDS = 18.0  # of a budget: starting Python, torch and the ranks, and the fit
_LEAST_MEASURED_SHARE = 0.4
_COMPUTE_SHARE, _COMMUNICATION_SHARE = 0.8, 0.2  # of the rest
_SIMULATED_RECORDS = 256
_JOB_MEMORY_PARTS = 4
"""A set of the job's tables takes at most such a part of the memory: optimizer state and batches come on top."""


def profile(
    settings: ProfileSettings, *, progress: Progress | None = None, say: Callable[[str], None] = lambda _: None
) -> FitReport:
    """Measure, describe and fit. A folder that holds records is continued, with what they left of the budget.

    Writes ``records/*.jsonl``, ``hardware.json``, ``topology.json`` (the job's devices) and ``bundle/`` below
    ``settings.out``.

    Args:
        settings: what and how long.
        progress: shows a bar per part. None: silent.
        say: gets sentences about finished work.

    Raises:
        SettingsError: this cannot be measured here.
        MissingPackageError: the backend is not installed.
        MeasureError: the processes that measure failed.
        RecordsError: earlier records are broken, another machine's, or of another way of measuring, or all records are
            too few.
        DocumentError: the tables cannot be read.
    """
    bars = progress or Progress(disable=True)
    mixed = mixed_generations()
    if mixed is not None and settings.backend != "simulated":
        say(f"warning: {mixed}")
    backend = checked_backend(settings)
    settings = _with_processes(settings, backend.kind)
    num_processes = settings.num_processes or 1
    records = settings.out / RECORDS_FOLDER
    require_own_method(records)
    seconds = _measured_seconds(settings)
    named = settings.preset if backend.kind == "cuda" else None
    device = named.device if named else backend.describe(num_processes=num_processes)
    require_network(settings, device, records / COMMUNICATION_FILE)
    communication = _COMMUNICATION_SHARE * seconds
    if settings.meeting is not None:  # before compute, so that the other node is free as soon as it can be
        say(f"measuring all-to-alls between two nodes, {_how_long(communication, backend)} after they have met")
        measure_communication(settings, backend, records / COMMUNICATION_FILE, communication, bars)
    say(f"measuring compute on {backend.source}, {_how_long(_COMPUTE_SHARE * seconds, backend)}")
    count = num_measured_at_once(backend.kind, num_processes)
    if backend.kind == "simulated" or (backend.kind == "cpu" and count == 1):
        measure_compute(settings, backend, records / COMPUTE_FILE, _COMPUTE_SHARE * seconds, bars)
    else:
        _measure_at_once(settings, records, _COMPUTE_SHARE * seconds, bars, kind=backend.kind, count=count)
    if settings.meeting is None:
        say(f"measuring all-to-alls, {_how_long(communication, backend)}")
        measure_communication(settings, backend, records / COMMUNICATION_FILE, communication, bars)
    found = [record for path in sorted(records.glob("*.jsonl")) for record in ended_records(path)[0]]
    hardware = _hardware(settings, backend, device, num_processes, records, core_loop_ms=core_loop_ms(found))
    write_file(settings.out / HARDWARE_FILE, hardware.to_json())
    topology = hardware.topology(
        num_nodes=settings.num_nodes, devices_per_node=settings.devices_per_node or num_processes
    )
    write_file(settings.out / TOPOLOGY_FILE, topology.to_json())
    measured = [record for record in found if record.is_usable]
    without = _without_times(found)
    say(f"{len(measured)} records of {backend.source}{f'; {without}' if without else ''}")
    report = fit_bundle(
        measured,
        settings.out / BUNDLE_FOLDER,
        device=device,
        seed=settings.seed,
        progress=bars,
        say=say,
    )
    say(f"cost models by {report.method}: {report.reason}")
    return report


def _how_long(seconds: float, backend: Backend) -> str:
    """Return the time that a part takes: no part ends before it has the records of a fit."""
    return f"{seconds:.0f} s at most" if backend.kind == "simulated" else f"{seconds:.0f} s, longer on a busy machine"


def _without_times(records: Sequence[ProfileRecord]) -> str:
    """Return the number of samples without times, and the reasons. Empty: all have times."""
    full = sum(record.out_of_memory for record in records)
    failed = Counter(record.failure for record in records if record.failure is not None)
    parts = [f"{full} did not fit the device"] if full else []
    if failed:
        ((most, _),) = failed.most_common(1)
        parts.append(f"{failed.total()} failed (most often: {most})")
    return f"without times: {', '.join(parts)}" if parts else ""


def measure_with_node_0(settings: ProfileSettings) -> None:
    """Take part in the all-to-alls of another node's profile, as the node that writes none.

    Raises:
        SettingsError: this cannot be measured here.
        PeerLostError: the nodes did not meet.
        MeasureError: the processes that measure failed.
    """
    backend = checked_backend(settings)
    settings = _with_processes(settings, backend.kind)
    seconds = _COMMUNICATION_SHARE * _measured_seconds(settings)
    path = settings.out / RECORDS_FOLDER / COMMUNICATION_FILE
    measure_communication(settings, backend, path, seconds, Progress(disable=True))


def _with_processes(settings: ProfileSettings, kind: DeviceKind | Literal["simulated"]) -> ProfileSettings:
    """Return the settings with numbers where the device decides them."""
    num_processes = num_processes_of(settings, kind, TorchGpus())
    return replace(
        settings,
        num_processes=num_processes,
        devices_per_node=settings.devices_per_node or num_processes,
        max_records=settings.max_records or (_SIMULATED_RECORDS if kind == "simulated" else None),
    )


def _measured_seconds(settings: ProfileSettings) -> float:
    """Return the budget without the start and the fit."""
    total = settings.budget_seconds
    return max(total - _OVERHEAD_SECONDS, _LEAST_MEASURED_SHARE * total)


def checked_backend(settings: ProfileSettings) -> Backend:
    """Return the backend that the settings ask for. Raises SettingsError or MissingPackageError."""
    if settings.meeting is not None and settings.backend == "simulated":
        raise SettingsError("meet: the backend simulated exchanges nothing; hint: leave out --meet")
    backend = make_backend(
        settings.backend or default_backend(),
        kind=settings.device_kind,
        index=settings.part.index,
        simulated=settings.preset.device if settings.preset else None,
    )
    if settings.optimizer is not None and settings.optimizer not in backend.optimizers:
        raise SettingsError(
            f"optimizer: {settings.optimizer} has no kernel in this backend on this device; hint: choose one of "
            f"{', '.join(backend.optimizers)}"
        )
    job = settings.tables()
    if settings.optimizer is not None and job is not None:
        refused = _kernels(backend).refused
        problem = next((each for each in job.tables if (settings.optimizer, each.data_type) in refused), None)
        if problem is not None:
            types = {problem.name: problem.data_type}
            raise SettingsError(str(kernel_problem("cuda", weight_types=types, optimizer=settings.optimizer)))
    return backend


def _kernels(backend: Backend) -> Kernels:
    """Return the kernels of a backend's device; a simulated one is a GPU."""
    return TRAINING_KERNELS["cpu" if backend.kind == "cpu" else "cuda"]


def measure_compute(
    settings: ProfileSettings, backend: Backend, path: Path, budget_seconds: float, progress: Progress
) -> None:
    """Append compute records to a file until the time or the settings' number of records is reached.

    The first part measures the samples that are the same in every profile before, in the same time; all GPUs draw the
    rows of their next samples meanwhile.
    """
    part = settings.part
    space = replace(
        CPU_SPACE if backend.kind == "cpu" else GPU_SPACE,
        optimizers=(settings.optimizer,) if settings.optimizer else backend.optimizers,
        data_types=backend.data_types,
        refused=_kernels(backend).refused,
        job=settings.tables(),
        job_batch_size=settings.global_batch_size,
        max_job_bytes=backend.total_memory_bytes // (_JOB_MEMORY_PARTS * (part.count if backend.kind == "cpu" else 1)),
    )
    with RecordsFile(path, source=backend.source) as file:
        budget = Budget(
            seconds=budget_seconds,
            max_records=None if settings.max_records is None else part.share_of(settings.max_records),
            min_records=part.share_of(MIN_RECORDS),
            earlier_seconds=file.elapsed_seconds,
        )
        bar = BudgetBar(progress, "compute", budget)
        with ExitStack() as stack:
            if backend.kind != "simulated":
                from neuroshard_profiler.backends.torch_backend import TorchBackend  # noqa: PLC0415 - torch

                if isinstance(backend, TorchBackend):
                    upcoming = compute_samples(space, seed=settings.seed, part=part, first=len(file.records))
                    count = 0  # cores that draw would disturb cores that are timed
                    if backend.kind == "cuda":
                        count = drawing_processes(num_cores=len(os.sched_getaffinity(0)), num_devices=part.count)
                    stack.enter_context(drawing_ahead(backend, upcoming, num_processes=count))
                    if part.index == 0:
                        _measure_fixed_samples(backend, space, path, seed=settings.seed)
            collect_compute(backend, space, file, budget=budget, part=part, seed=settings.seed, on_record=bar.update)


def _measure_fixed_samples(backend: "TorchBackend", space: SampleSpace, path: Path, *, seed: int) -> None:
    """Append the records of samples that are the same in every profile to files next to that of compute."""
    on_cpu = backend.kind == "cpu"
    with RecordsFile(path.with_name(LAUNCH_FILE), source=backend.source) as file:
        collect_launches(backend, space.optimizers[0], file, seed=seed)
    with RecordsFile(path.with_name(MATRICES_FILE), source=backend.source) as file:
        collect_matrices(backend, file, on_cpu=on_cpu)
    if has_repeats(space.job):
        with RecordsFile(path.with_name(EXPANSION_FILE), source=backend.source) as file:
            collect_expansions(backend, file)
    if isinstance(backend, CodecBackend) and find_spec("torchrec") is not None:
        with RecordsFile(path.with_name(CODECS_FILE), source=backend.source) as file:
            collect_codecs(backend, file, on_cpu=on_cpu)


def num_processes_of(settings: ProfileSettings, kind: DeviceKind | Literal["simulated"], gpus: Gpus) -> int:
    """Return the number of measuring processes: one for each GPU of the node, unless the settings say less.

    Raises SettingsError where there are not that many GPUs.
    """
    wanted = settings.num_processes or settings.devices_per_node
    if kind == "cuda":
        there = len(usable_gpus(gpus))
        if wanted is not None and wanted > there:
            raise SettingsError(
                f"{wanted} processes are to measure with one GPU each, but torch can use {there} here"
                "; hint: lower spec.trainer.numProcPerNode, or make more GPUs visible"
            )
        return wanted or there
    alone = kind == "cpu" and settings.meeting is None
    return max(2 if alone else 1, wanted or 1)


def num_measured_at_once(kind: DeviceKind | Literal["simulated"], num_processes: int) -> int:
    """Return the number of processes that time table sets at once: one for each GPU, or for each core of the job's."""
    if kind == "simulated":
        return 1
    return num_processes if kind == "cuda" else min(num_processes, len(os.sched_getaffinity(0)))


def _measure_at_once(
    settings: ProfileSettings, records: Path, budget_seconds: float, progress: Progress, *, kind: DeviceKind, count: int
) -> None:
    """Let all devices of the node measure a part of the samples each.

    Loaded together, GPUs clock and cores share caches and memory bandwidth as in training.
    """
    backend_name = settings.backend or default_backend()
    budget = Budget(seconds=budget_seconds, max_records=settings.max_records)
    bar = BudgetBar(progress, "compute", budget)
    measurers = [
        Measurer(
            command=compute_command(
                settings, backend_name, MeasuringProcess(index=index, count=count), records, budget_seconds, kind=kind
            ),
            records=_part_file(records, MeasuringProcess(index=index, count=count)),
            log=records / f"compute-{index}.log",
            resumes=True,
        )
        for index in range(count)
    ]
    run_measurers(measurers, on_poll=bar.update)


def _part_file(records: Path, part: MeasuringProcess) -> Path:
    return records / (COMPUTE_FILE if part.count == 1 else f"compute-{part.index}-of-{part.count}.jsonl")


def compute_command(
    settings: ProfileSettings,
    backend_name: BackendName,
    part: MeasuringProcess,
    records: Path,
    budget_seconds: float,
    *,
    kind: DeviceKind,
) -> list[str]:
    """Return the command that measures one device's part of the samples."""
    command = [sys.executable, "-m", "neuroshard_profiler", "collect-compute", "--out", str(_part_file(records, part))]
    command += ["--backend", backend_name, "--device", kind, "--part", str(part)]
    command += ["--budget", f"{budget_seconds:.3f}s", "--seed", str(settings.seed)]
    command += ["--batch-size", str(settings.batch_size_per_device), "--job-devices", str(settings.num_job_devices)]
    command += ["--tables", str(settings.tables_file)] if settings.tables_file else []
    command += ["--optimizer", settings.optimizer.value] if settings.optimizer else []
    command += ["--max-records", str(settings.max_records)] if settings.max_records else []
    return command


def core_loop_ms(records: Sequence[ProfileRecord]) -> float | None:
    """Return the median time of the fixed loop next to the calls of these records. None: no core was timed."""
    found = [float(each.environment[CORE_LOOP]) for each in records if CORE_LOOP in each.environment]
    return median(found) if found else None


def _hardware(
    settings: ProfileSettings,
    backend: Backend,
    device: DeviceType,
    num_processes: int,
    records: Path,
    *,
    core_loop_ms: float | None,
) -> Hardware:
    intra, inter = measured_links(records / COMMUNICATION_FILE)
    transport = {"cpu": "gloo", "cuda": "nccl", "simulated": "simulated"}[backend.kind]
    facts = {
        "product": device.product,
        "memory_gib": str(round(backend.total_memory_bytes / 2**30)),
        "backend": type(backend).__name__,
        "transport": transport,
        **backend.environment,
    }
    return Hardware(
        fingerprint=fingerprint(facts),
        source=backend.source,
        device=device,
        intra_node=intra,
        inter_node=inter,
        network_of=settings.device_type,
        devices_per_node=num_processes,
        driver_version=backend.environment.get("driver"),
        core_loop_ms=core_loop_ms,
        environment={**backend.environment, "transport": transport},
    )
