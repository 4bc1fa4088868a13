"""The page of a run from its folder: what was predicted, and what was measured so far."""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import hardware_in, measured_in, trial_in
from neuroshard_cli.shared.measured import failure_in
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_report.html.timeline import StageSpan


LIVE_SECONDS = 10
"""Least time between two versions of the page while the run is under way."""
LIVE_SHARE = 0.01
"""Of the time that making them takes at most: the training has the same cores."""


def run_page(directory: RunDirectory) -> str:
    """Return the page of a run; what was measured under an earlier plan is left out. Raises DocumentError."""
    from neuroshard_report.html.run_page import render_run

    steps, progress, drift = measured_in(directory)
    stages = _stages(directory)
    status, _ = directory.recorded_status()
    is_under_way = any(stage.end is None for stage in stages)
    return render_run(
        read_plan(directory.plan_file),
        steps=steps,
        progress=progress,
        drift=drift,
        stages=stages,
        hardware=hardware_in(directory),
        trial=trial_in(directory),
        failure=failure_in(status),
        refresh_s=LIVE_SECONDS if is_under_way else None,
    )


def write_run_page(directory: RunDirectory, plan: GivenPlan) -> None:
    """Write the page of a run; a plan that was given without a price has none."""
    if isinstance(plan, Plan):
        write_file(directory.run_report, run_page(directory))
    else:
        directory.run_report.unlink(missing_ok=True)


def write_plan_page(directory: RunDirectory, plan: GivenPlan, bundle_dir: Path | None) -> None:
    """Write the page of a plan; without its cost models, as of a given plan, nothing about other traffic."""
    from neuroshard_costs.bundle import load_bundle
    from neuroshard_report.explain.robustness import traffic_costs
    from neuroshard_report.html.page import render_html

    if not isinstance(plan, Plan):
        directory.plan_report.unlink(missing_ok=True)
        return
    traffic = () if bundle_dir is None else traffic_costs(plan, bundle=load_bundle(bundle_dir))
    write_file(directory.plan_report, render_html(plan, traffic=traffic))


class LivePage:
    """The page of a run while it trains: made again every few seconds where something new was measured."""

    def __init__(self, directory: RunDirectory, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._due_s = clock() + LIVE_SECONDS
        self._seen: tuple[int, ...] = ()

    def look(self) -> None:
        """Write the page if it is time and reports changed."""
        if self._clock() < self._due_s:
            return
        reports = self._directory.train_dir.glob("*.json")
        seen = tuple(path.stat().st_mtime_ns for path in sorted(reports))
        if seen != self._seen:
            self._seen = seen
            self.write()

    def write(self) -> None:
        """Write the page as of now, or leave it for later: the training is worth more than its page.

        The last version, made when the run has ended, raises what is wrong with it.
        """
        begun_s = self._clock()
        with contextlib.suppress(Exception):
            write_file(self._directory.run_report, run_page(self._directory))
        self._due_s = self._clock() + max(LIVE_SECONDS, (self._clock() - begun_s) / LIVE_SHARE)


def _stages(directory: RunDirectory) -> "list[StageSpan]":
    """Return the course of the run; work that was killed lasted until its last line of the log."""
    from neuroshard_report.html.timeline import StageSpan

    found = []
    for each in directory.course:
        end, outcome = datetime.fromisoformat(each["end"]) if each["end"] else None, each["outcome"]
        begin, log = datetime.fromisoformat(each["begin"]), directory.log(each["stage"])
        if end is None and not directory.is_in_use:
            written = datetime.fromtimestamp(log.stat().st_mtime, UTC) if log.exists() else begin
            end, outcome = max(begin, written), "killed"
        found.append(StageSpan(name=each["stage"], begin=begin, end=end, outcome=outcome))
    return found
