"""Prices of a sweep that trains here: this machine's cost models, measured once."""

from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.shared.output import progress_console

if TYPE_CHECKING:
    from neuroshard_api.documents.topology import Topology
    from neuroshard_api.job.job_file import JobFile


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
    with view:
        models = LocalRun(whole, whole.tables(), base, view, bundle=given).models()
    return models.bundle_dir, models.topology
