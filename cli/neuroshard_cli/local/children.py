"""A run's folder and processes as decisions see a job: processes in place of Jobs, files in place of ConfigMaps."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory

if TYPE_CHECKING:
    from neuroshard_api.job.status import Status
    from neuroshard_api.job.training_job import DLRMTrainingJob
    from neuroshard_decisions.actions import Run
    from neuroshard_decisions.context import AtHand, Context
    from neuroshard_decisions.observed.objects import ChildConfigMap, ChildJob, ChildPod
    from neuroshard_decisions.observed.results import PlanResult, ProfileSummary, ReportSummary, Unreadable

    Document = PlanResult | ProfileSummary | ReportSummary | Unreadable

UID = "local"
"""uid of the job, which owns all that is in its folder."""
APPROVAL = "run `neuroshard approve {folder}`"


class Children:
    """Processes that a run started for decisions, and the documents in its folder.

    Args:
        directory: of the run.
        job: that is run.
        at_hand: its tables and cost models. None: its plan is given.
        clock: the present time, with its zone.
    """

    def __init__(
        self,
        directory: RunDirectory,
        job: "DLRMTrainingJob",
        at_hand: "AtHand | None",
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.job = job
        self._directory = directory
        self._at_hand = at_hand
        self._clock = clock
        self._jobs: dict[str, ChildJob] = {}
        self._pods: dict[str, ChildPod] = {}

    @property
    def now(self) -> datetime:
        """The present time."""
        return self._clock()

    def context(
        self,
        status: "Status",
        documents: Mapping[str, "Document"],
        *,
        shared: "Mapping[str, ProfileSummary] | None" = None,
    ) -> "Context":
        """Return the run as decisions see it.

        Args:
            status: of the job.
            documents: in the folder, by the names that decisions have for them.
            shared: profiles that outlive the run, by name. If unset: none.
        """
        from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION
        from neuroshard_decisions.context import Context, Rules
        from neuroshard_decisions.observed.objects import Meta, Observed, TrainingJobObject

        approved = self._directory.approved_plan
        found = TrainingJobObject(
            meta=Meta(name=self.job.metadata.name, uid=UID),
            namespace="",
            annotations={APPROVED_PLAN_ANNOTATION: approved} if approved else {},
        )
        return Context(
            observed=Observed(
                job=found,
                jobs=tuple(self._jobs.values()),
                pods=tuple(self._pods.values()),
                config_maps=(
                    *(_document(name, document) for name, document in documents.items()),
                    *(_shared(name, profile) for name, profile in (shared or {}).items()),
                ),
            ),
            job=self.job,
            status=status,
            rules=Rules(
                in_config_maps=False,
                keeps_checkpoints=True,
                may_stop_workers=False,
                approval=APPROVAL.format(folder=shlex.quote(str(self._directory.path))),
            ),
            now=self.now,
            at_hand=self._at_hand,
        )

    def started(self, run: "Run") -> None:
        """Note that a process was started."""
        from neuroshard_decisions import names
        from neuroshard_decisions.actions import WorkersRun
        from neuroshard_decisions.observed.objects import ChildJob, ChildPod, Meta

        now = self.now
        workers = run if isinstance(run, WorkersRun) else None
        labels = {names.INPUTS_HASH_LABEL: names.short(workers.workers_hash)} if workers else {}
        attempt = workers.attempt if workers else 0
        meta = Meta(name=run.name, uid=run.name, owner_uid=UID, created=now, labels=labels)
        self._jobs[run.name] = ChildJob(meta=meta, role=run.role, attempt=attempt)
        self._pods[run.name] = ChildPod(
            meta=Meta(name="", owner_uid=run.name, created=now), role=run.role, attempt=attempt, phase="Running"
        )

    def ready(self, name: str) -> None:
        """Note that workers train."""
        self._pods[name] = replace(self._pods[name], ready=True)

    def starting(self, name: str) -> None:
        """Note that workers start again, and do not train yet."""
        self._pods[name] = replace(self._pods[name], ready=False)

    def ended(self, name: str, exit_code: int, log_tail: str, *, timed_out: bool = False) -> None:
        """Note how a process ended."""
        from neuroshard_decisions.observed.objects import JobEnd, Termination
        from neuroshard_decisions.stages.stage_job import DEADLINE_EXCEEDED

        now, succeeded = self.now, exit_code == 0 and not timed_out
        reason = DEADLINE_EXCEEDED if timed_out else ""
        job, pod = self._jobs[name], self._pods[name]
        outcome = JobEnd(succeeded=succeeded, reason=reason, message="", time=now)
        end = Termination(container=job.role, exit_code=exit_code, reason=reason, message=log_tail, time=now)
        self._jobs[name] = replace(job, outcome=outcome)
        self._pods[name] = replace(
            pod, phase="Succeeded" if succeeded else "Failed", termination=None if succeeded else end
        )

    def forget(self, name: str) -> None:
        """Forget a process: nothing of it is left."""
        self._jobs.pop(name, None)
        self._pods.pop(name, None)


def plan_document(file: Path) -> "PlanResult | Unreadable | None":
    """Return a plan as decisions see it. None: there is no such file."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_decisions.observed.results import PLAN_FILE, Unreadable, plan_summary

    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return plan_summary(text, key=PLAN_FILE, where=str(file))
    except DocumentError as error:
        return Unreadable(problem=str(error))


def profile_document(folder: Path) -> "ProfileSummary | Unreadable":
    """Return the profile in a folder as decisions see it."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.job.stage_commands import BUNDLE_FOLDER, HARDWARE_FILE
    from neuroshard_decisions.observed.results import MANIFEST_FILE, WEIGHTS_FILE, Unreadable, profile_summary

    paths = (folder / BUNDLE_FOLDER / MANIFEST_FILE, folder / BUNDLE_FOLDER / WEIGHTS_FILE, folder / HARDWARE_FILE)
    try:
        return profile_summary({path.name: path.read_bytes() for path in paths if path.exists()}, where=str(folder))
    except (DocumentError, OSError) as error:
        return Unreadable(problem=str(error))


def report_document(directory: RunDirectory) -> "ReportSummary | None":
    """Return the training's reports in short. None: nothing that can be read."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.job.stage_commands import (
        DRIFT_REPORT_FILE,
        INPUT_STATISTICS_FILE,
        PROGRESS_FILE,
        STEP_REPORT_FILE,
    )
    from neuroshard_decisions.observed.results import report_summary

    names = (DRIFT_REPORT_FILE, INPUT_STATISTICS_FILE, PROGRESS_FILE, STEP_REPORT_FILE)
    files = {name: (directory.train_dir / name).read_bytes() for name in names if (directory.train_dir / name).exists()}
    try:
        return report_summary(files, sorted(files), where=str(directory.train_dir)) if files else None
    except DocumentError:
        return None


def _document(name: str, document: "Document") -> "ChildConfigMap":
    from neuroshard_decisions.observed.objects import ChildConfigMap, Meta

    return ChildConfigMap(meta=Meta(name=name, owner_uid=UID), role="", is_read=True, document=document)


def _shared(name: str, profile: "ProfileSummary") -> "ChildConfigMap":
    from neuroshard_decisions import names
    from neuroshard_decisions.observed.objects import ChildConfigMap, Meta

    return ChildConfigMap(meta=Meta(name=name), role=names.PROFILE, is_read=True, document=profile)
