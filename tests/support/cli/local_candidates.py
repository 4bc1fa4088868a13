"""Further plans of a local training whose documents a test has written."""

from collections.abc import Callable, Sequence
from datetime import datetime

from neuroshard_api.documents.plan import Plan
from neuroshard_cli.local.children import Children
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.replanning import LocalReplanning, PlannerProcess
from neuroshard_decisions.actions import BundleSource, GivenModels
from neuroshard_decisions.context import AtHand
from support import builders


def replanning(
    directory: RunDirectory,
    note: Callable[[str], None],
    *,
    clock: Callable[[], datetime],
    mode: str = "Suggest",
    max_replans: int | None = None,
    launch: Callable[[Sequence[str], RunDirectory], PlannerProcess] | None = None,
) -> LocalReplanning:
    """Return the further plans of a run, whose plan's request says what is planned for."""
    asked = Plan.read(directory.plan_file).request
    most = {} if max_replans is None else {"maxReplans": max_replans}
    job = builders.job(replanning={"mode": mode, **most}, trainer={"numProcPerNode": asked.topology.devices_per_node})
    models = GivenModels(bundle=BundleSource(), topology=asked.topology)
    children = Children(directory, job, AtHand(tables=asked.tables, models=models), clock=clock)
    return LocalReplanning(
        directory,
        children,
        bundle_dir=directory.path,
        has_dense=False,
        note=note,
        launch=launch,
    )
