"""Prices of a sweep that trains here: this machine's cost models, measured once, and the variants' dense parts."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import last_message

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.inputs import digest, versions
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.shared.output import progress_console, write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.topology import Topology
    from neuroshard_api.job.job_file import JobFile
    from neuroshard_dlrm.variants import Variant


def measured_models(
    file: "JobFile", base: RunDirectory, *, given: Path | None, devices: int
) -> "tuple[Path, Topology]":
    """Return the bundle of this machine's cost models, and its devices: the given ones, or measured as a run does.

    Args:
        file: the job.
        base: folder of the sweep's runs, which keeps the profile; locked by the caller.
        given: folder of cost models. None: they are measured.
        devices: of this machine.

    Raises:
        StageFailedError: the profiler failed.
        BundleError: the bundle that was given cannot be used.
    """
    from neuroshard_dlrm.sweeps import on_part
    from neuroshard_report.explain.divisions import Room

    from neuroshard_cli.local.run import LocalRun

    whole = on_part(file, devices, Room(num_nodes=1, devices_per_node=devices))
    view = RunView(("profile",), progress_console())
    local = LocalRun(whole, whole.tables(), base, view)
    with view, local.life:
        local.write_inputs()
        models = local.profile(given)
    return models.bundle_dir, models.topology


def with_counted_dense(
    variants: "Sequence[Variant]", requests: Sequence[Sequence[PlanRequest | str]], base: RunDirectory
) -> list[list[PlanRequest | str]]:
    """Return requests with the dense part that the trainer builds for each variant, counted once for equal ones.

    Args:
        variants: in the order of the requests.
        requests: of each variant on each part, or the reason that there is none.
        base: folder of the sweep's runs, which keeps the counts.

    Raises:
        CommandError: a dense part cannot be counted.
    """
    from neuroshard_api.documents.dense_profile import DenseProfile
    from neuroshard_api.job.plan_request import counts_dense

    tasks: dict[Path, tuple[Variant, PlanRequest]] = {}

    def counted(variant: "Variant", request: PlanRequest | str) -> PlanRequest | Path | str:
        if isinstance(request, str) or not counts_dense(variant.file.job.spec):
            return request
        path = _dense_file(variant, request, base)
        tasks.setdefault(path, (variant, request))
        return path

    places = [[counted(variant, each) for each in row] for variant, row in zip(variants, requests, strict=True)]
    absent = [(path, *task) for path, task in tasks.items() if not path.exists()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda each: _count(*each), absent))

    def complete(request: PlanRequest | str, place: PlanRequest | Path | str) -> PlanRequest | str:
        if not isinstance(place, Path) or isinstance(request, str):
            return request
        return request.with_dense(DenseProfile.read(place), where=str(place))

    return [
        [complete(request, place) for request, place in zip(row, found, strict=True)]
        for row, found in zip(requests, places, strict=True)
    ]


def _dense_file(variant: "Variant", request: PlanRequest, base: RunDirectory) -> Path:
    """Return the file of a count, named after all that it depends on."""
    from neuroshard_api.job.plan_request import dense_signature

    parts = [
        *map(str, sorted(dense_signature(variant.file.job).items())),
        request.tables.to_json(),
        str(request.batch_size_per_device),
        str(request.topology.device.is_cpu),
        *versions(),
    ]
    return base.path / "dense" / f"{digest(parts)[:16]}.json"


def _count(path: Path, variant: "Variant", request: PlanRequest) -> None:
    """Count a dense part as a run does, and write the result. Raises CommandError."""
    from neuroshard_api.job.stage_commands import dense_command

    path.parent.mkdir(exist_ok=True)
    job_file, request_file = path.with_suffix(".job.json"), path.with_suffix(".request.json")
    batch = {"batch_size_per_device": request.batch_size_per_device}
    job = variant.file.job
    spec = job.spec.model_copy(update={"model": job.spec.model.model_copy(update=batch)})
    write_file(job_file, job.model_copy(update={"spec": spec}).to_json())
    write_file(request_file, request.to_json())
    command = dense_command(
        job_file=str(job_file),
        request_file=str(request_file),
        dense_file=str(path),
        device=request.topology.device,
        python=sys.executable,
    )
    ended = subprocess.run(  # noqa: S603 - the command of a run's stage
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    if ended.returncode:
        why = last_message(ended.stderr.splitlines()).removeprefix("error: ")
        raise CommandError(f"variant {variant.text}: its dense part cannot be counted: {why}")
