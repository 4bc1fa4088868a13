"""The plan of a run, made as in a cluster: by the search, and after some of its failures by the fallback algorithm."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.local.children import Children, plan_document
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.stage_runner import StageFailedError, StageRunner
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.documents.topology import Topology
    from neuroshard_api.job.experimental import StagePods
    from neuroshard_api.job.training_job import DLRMTrainingJob
    from neuroshard_decisions.actions import PlannerRun
    from neuroshard_decisions.observed.results import PlanResult, Unreadable
    from neuroshard_decisions.stages.result import StageResult

_INPUTS = "plan"
"""What tells the planners of a folder apart: it has one plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModels:
    """Cost models, and the devices that they are for."""

    bundle_dir: Path
    topology: "Topology"


class LocalPlanning:
    """Makes the plan of one run.

    Args:
        directory: of the run.
        job: that is planned.
        tables: its tables, with what the run measured of them.
        profiled: the cost models.
        runner: runs the planner.
        view: shows what it does.
    """

    def __init__(
        self,
        directory: RunDirectory,
        job: "DLRMTrainingJob",
        tables: "TableSet",
        profiled: MeasuredModels,
        *,
        runner: StageRunner,
        view: RunView,
    ) -> None:
        from neuroshard_decisions.actions import BundleSource, GivenModels
        from neuroshard_decisions.context import AtHand

        self._directory = directory
        self._job = job
        self._profiled = profiled
        self._runner = runner
        self._view = view
        self._models = GivenModels(bundle=BundleSource(), topology=profiled.topology)
        self._published: dict[str, PlanResult | Unreadable] = {}
        """Plans that planners have written, by the names that decisions have for them."""
        self.children = Children(directory, job, AtHand(tables=tables, models=self._models))

    def request(self, *, replans: int) -> str:
        """Return the planner's request as JSON, after a failure rule has asked so often for another plan.

        Raises:
            CommandError: nothing can be asked for the job.
        """
        from neuroshard_decisions.files import REQUEST_FILE

        step = self._decided(replans=replans)
        run = _planner_of(step)
        if run is None:
            raise CommandError(step.message)
        return run.files.contents[REQUEST_FILE].decode()

    def make(self, *, replans: int) -> None:
        """Write the plan's file. Raises StageFailedError, and CommandError."""
        self._directory.plan_file.unlink(missing_ok=True)
        failed: StageFailedError | None = None
        run = _planner_of(step := self._decided(replans=replans))
        while run is not None:
            if failed is not None:
                self._view.note("plan", f"{failed}; planning with {self._job.spec.planner.fallback_algorithm}")
            failed = self._run_planner(run)
            run = _planner_of(step := self._decided(replans=replans))
        if step.completion is not None:
            raise failed or CommandError(step.message, ExitCode.JOB_FAILED)

    def _decided(self, *, replans: int) -> "StageResult":
        """Return the decision after the planners that were run so far."""
        from neuroshard_api.job.status import HardwareStatus, Status
        from neuroshard_decisions.stages.planning import make_plan

        # The machine is the one that was profiled, whatever its fingerprint.
        status = Status(replans=replans, hardware=HardwareStatus(fingerprint=_INPUTS))
        return make_plan(self.children.context(status, self._published), _INPUTS, self._models)

    def _run_planner(self, run: "PlannerRun") -> StageFailedError | None:
        """Run a planner; return how it failed. None: it has not."""
        from neuroshard_api.job.plan_request import counts_dense
        from neuroshard_api.job.stage_commands import planner_command
        from neuroshard_api.lifecycle.failures import KILLED
        from neuroshard_decisions.files import REQUEST_FILE

        directory, spec = self._directory, self._job.spec
        write_file(directory.request_file, run.files.contents[REQUEST_FILE].decode())
        self.children.started(run)
        command = planner_command(
            request_file=str(directory.request_file),
            bundle_dir=str(self._profiled.bundle_dir),
            plan_file=str(directory.plan_file),
            dense_file=str(directory.dense_file) if counts_dense(spec) else None,
            python=sys.executable,
        )
        try:
            if counts_dense(spec):
                self._count_dense(run)
            self._runner.run("plan", command, {}, within_s=limit_s(spec.experimental.planner))
        except StageFailedError as error:
            if error.exit_status is None and not error.timed_out:
                raise  # no process was started
            code = KILLED if error.exit_status is None else error.exit_status
            self.children.ended(run.name, code, "\n".join(error.tail), timed_out=error.timed_out)
            return error
        self.children.ended(run.name, ExitCode.OK, "")
        found = plan_document(directory.plan_file)
        if found is not None:
            self._published[run.result] = found
        return None

    def _count_dense(self, run: "PlannerRun") -> None:
        """Count the dense part that NeuroShard's trainer builds for the job."""
        from neuroshard_api.job.stage_commands import dense_command

        self._view.note("plan", "counting the dense part")
        command = dense_command(
            job_file=str(self._directory.job_file),
            request_file=str(self._directory.request_file),
            dense_file=str(self._directory.dense_file),
            device=run.device,
            python=sys.executable,
        )
        self._runner.run("plan", command, {}, within_s=limit_s(self._job.spec.experimental.planner))


def limit_s(stage: "StagePods") -> float | None:
    """Return the timeoutSeconds that the job sets. None: it sets none.

    The default keeps pods from holding devices of a cluster; a busy machine takes longer and does no harm.
    """
    return stage.timeout_seconds if "timeout_seconds" in stage.model_fields_set else None


def _planner_of(step: "StageResult") -> "PlannerRun | None":
    from neuroshard_decisions.actions import PlannerRun, Start

    return next(
        (each.run for each in step.actions if isinstance(each, Start) and isinstance(each.run, PlannerRun)), None
    )
