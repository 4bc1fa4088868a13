"""A whole job on one machine: the decisions of a cluster's operator, done with processes and files.

    observe processes and files -> decide (`neuroshard_decisions`) -> write the status -> do the actions -> again

`children` has the processes in place of Kubernetes Jobs, `kept` the documents in place of ConfigMaps, `stage_work`
the commands that are started. A command that is killed between any two writes goes on from its files.
"""

import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.plan_request import counts_dense
from neuroshard_api.job.preparation import PlanReference, ProfilerPolicy
from neuroshard_api.job.profile_time import profile_seconds
from neuroshard_api.job.replanning import ReplanningMode
from neuroshard_api.job.stage_commands import HARDWARE_FILE
from neuroshard_api.job.status import HardwareStatus, Stage, Status
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION, DLRMTrainingJob
from neuroshard_api.job.variants import with_variants
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.replanning.support import replanning_policy, unsupported
from neuroshard_decisions import names
from neuroshard_decisions.actions import (
    Action,
    CalibratorRun,
    Delete,
    PlannerRun,
    ProfilerRun,
    Run,
    Start,
    WorkersRun,
)
from neuroshard_decisions.conditions import Reason
from neuroshard_decisions.context import AtHand, Context, Rules
from neuroshard_decisions.observed.objects import ChildConfigMap, Fetched, Meta, Observed, TrainingJobObject
from neuroshard_decisions.observed.results import PLAN_FILE
from neuroshard_decisions.reconcile import reconcile
from neuroshard_decisions.stages.input_hashes import replans_of

from neuroshard_cli.local.children import UID, Children, present_time
from neuroshard_cli.local.corrected_models import Correction, take_corrected_models
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.given import MeasuredModels, given_models, given_plan
from neuroshard_cli.local.inputs import digest, profile_inputs, versions
from neuroshard_cli.local.kept import REPORTS, Kept, files_of_profile, reports_of
from neuroshard_cli.local.other_work import OtherWork
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.repeats import measured_repeats, wants_repeats
from neuroshard_cli.local.run_failure import failure_of_run
from neuroshard_cli.local.run_news import RunNews
from neuroshard_cli.local.run_page import LivePage
from neuroshard_cli.local.run_plan import RunPlan
from neuroshard_cli.local.run_training import RunTraining
from neuroshard_cli.local.stage_process import end_marked, stoppable
from neuroshard_cli.local.stage_runner import StageFailedError, StageRunner
from neuroshard_cli.local.stage_work import planner_work, profiler_work, worker_work
from neuroshard_cli.local.trial import TRIAL, PlanTrial
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.documents.tables import TableSet

    from neuroshard_cli.local.result import RunResult

STAGES = ("profile", "plan", TRIAL, "train")
LOOK_EVERY_S = 0.1
_CODE = re.compile(r"^ended with exit code \d+: ")
"""Of a failure that decisions describe by its exit code."""
APPROVAL = "run `neuroshard approve {folder}`"


def stop_this_process() -> None:
    """Stop this process, as a shell expects it after Ctrl-Z, until it gets SIGCONT.

    Where no shell could continue it, in an orphaned process group, the signal does nothing and the run goes on.
    """
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


class LocalRun:
    """One job, one folder, one machine.

    Each start of the command counts as a resumption: deadlines begin again, and restarts of a run that had ended are
    forgotten. How often a failure rule asked for another plan stays, since the plan depends on it.

    Args:
        file: the job.
        tables: its tables.
        directory: locked by the caller.
        view: shows the stages.
        bundle: cost models to plan with. If unset: as the job says.
        plan: to train under. If unset: as the job says.
        data_dir: where relative paths of spec.data begin. If unset: the present folder.
        clock: the present time, with its zone.
        wait: sleeps for some seconds.
        stop: stops this process until the shell continues it.
    """

    def __init__(
        self,
        file: JobFile,
        tables: "TableSet",
        directory: RunDirectory,
        view: RunView,
        *,
        bundle: Path | None = None,
        plan: Path | None = None,
        data_dir: Path | None = None,
        clock: Callable[[], datetime] = present_time,
        wait: Callable[[float], None] = time.sleep,
        stop: Callable[[], None] = stop_this_process,
    ) -> None:
        self._file = file
        self._job = file.job
        self.spec = file.job.spec
        self._tables = tables
        self._directory = directory
        self._view = view
        self._bundle, self._plan = bundle, plan
        self._data_dir = data_dir or Path.cwd()
        self._wait, self._stop = wait, stop
        self._children = Children(clock=clock)
        self._kept = Kept(directory.path / "kept")
        self._runner = StageRunner(directory, view)
        self._training = RunTraining(directory, file.job, tables, self._data_dir)
        self._trial: PlanTrial
        self._page = LivePage(directory)
        self._news = RunNews(directory, view)
        self._shown = RunPlan(directory, self._kept, view, self._news)
        self._others: OtherWork | None = None
        """Counts from the first training on."""
        self.status = Status()
        self._fetched: tuple[Fetched, ...] = ()
        self._at_hand: AtHand
        self._models: MeasuredModels | None = None
        """Cost models that were given. None: they are measured, or there are none."""
        self._runs: dict[str, Run] = {}
        """What was started and has not ended, by its name."""
        self._beside: set[str] = set()
        """Those that go on next to the training."""
        self._failure: StageFailedError | None = None
        """Of the stage that ended last. None: it succeeded."""
        self._due: datetime | None = None
        """When the next pass is due though nothing changes. None: never."""
        self._changed = True
        """Whether a pass is due at once."""
        self._seen: tuple[int | None, ...] = ()
        self._is_asked_to_suspend = False
        self._is_suspended = False
        self._ends_with_profile = False
        self._is_tried = False
        """Whether this command has tried a plan."""

    def run(self) -> "GivenPlan":
        """Profile, plan, and train; return the plan in force at the end. A run that was interrupted goes on.

        Raises:
            StageFailedError: a stage failed.
            CommandError: the job cannot run, or took too long.
        """
        with self._ending():
            self.begin()
            while not self.has_ended:
                if not self.turn():
                    self._wait(LOOK_EVERY_S)
            self._require_success()
        return self._shown.in_force()

    def models(self) -> MeasuredModels:
        """Return cost models of this machine's devices: those given, or measured ones. Raises as `run` does."""
        self._ends_with_profile = True
        with self._ending():
            self.begin()
            while self._models is None and not self._shown.has_profile and not self.has_ended:
                if not self.turn():
                    self._wait(LOOK_EVERY_S)
            self._require_success()
        return self._models or MeasuredModels.read(self._directory.profile_dir, self.spec)

    def other_processors(self) -> float | None:
        """Return the processors that other programs used during the training, at most. None: not known."""
        return None if self._others is None else self._others.processors()

    @property
    def has_ended(self) -> bool:
        """Whether the run has succeeded, or is not tried again."""
        return self.status.completion_time is not None

    def begin(self) -> None:
        """Take up an earlier command's files, and what is given in place of stages."""
        before, lost = self._directory.recorded_status()
        if lost:
            self._view.say(f"{self._directory.status_file}: {', '.join(lost)} cannot be read, and is left out")
        if before.completion_time is not None:
            if self.spec.profiler.policy is ProfilerPolicy.ALWAYS:
                self._kept.remove(*self._kept.of_roles(names.PROFILE, names.PROFILER, names.PLAN, names.PLANNER))
                self._directory.clear(self._directory.profile_dir)
            kept = {"replans", "replans_inputs_hash", "replanning", "profile", "batch"}
            before = Status(**{name: getattr(before, name) for name in kept})
        self._write(before, start_time=None, stages=(), conditions=(), plan=None, cost=None)
        text = ""
        if self._plan is not None or self.spec.plan_ref is not None:
            plan, where = given_plan(self._file, self._tables, self._plan)
            text, reference = plan.to_json(), PlanReference(name="given")
            self._fetched = (Fetched(name=reference.name, key=reference.key, content=text.encode()),)
            self._job = _with_spec(self._job, plan_ref=reference)
            self._shown.given(plan, where)
        elif wants_repeats(self._job, self._tables):
            self._tables = measured_repeats(self.spec, self._tables, self._directory, self._view, root=self._data_dir)
        write_file(self._directory.job_file, self._file.job.to_json())
        write_file(self._directory.tables_file, self._tables.to_json())
        if not text:
            self._models = given_models(self._file, self._bundle)
        if self._models is not None:
            self._shown.profile_ends("reused", f"{self._models.folder}: {self._models.source}")
        is_local = not text and self._models is None
        self._trial = PlanTrial(self._directory, self._file.job, self._data_dir, is_local=is_local)
        if not self._trial.is_wanted:
            self._view.leave_out(TRIAL)
        weights = () if self._models is None else self._models.digests
        self._at_hand = AtHand(
            tables=with_variants(self._tables, self.spec.variants),
            models=None if self._models is None else self._models.given,
            digest=digest([self._tables.to_json(), text, *weights, *versions()]),
        )
        inputs = profile_inputs(self.spec, self._tables)
        is_own = self.spec.profiler.policy is ProfilerPolicy.ALWAYS
        self._hardware = HardwareStatus(fingerprint=inputs)
        self._profile = names.profile(names.key_of(inputs, UID) if is_own else inputs)
        self._kept.remove(*(each for each in self._kept.of_roles(names.PROFILE) if each != self._profile))
        self._note_replanning()

    def turn(self) -> bool:
        """Look at processes and files, and decide where something changed; return whether something did."""
        if self._is_asked_to_suspend:
            self._suspend()
        for name, error in self._runner.look().items():
            self._ended(name, error)
        if self._children.workers is not None:
            self._page.look()
        seen, self._seen = self._seen, tuple(map(_version, self._watched))
        is_due = self._due is not None and self._children.now >= self._due
        if not self._changed and seen == self._seen and not is_due:
            return False
        self._pass()
        return True

    def suspend(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Take Ctrl-Z as the wish to free the devices, at the next turn."""
        self._is_asked_to_suspend = True

    def corrected(self, result: "RunResult") -> str | None:
        """Correct the cost models that the run was planned with by its steps; return a sentence on it.

        None: the plan was given, or is for another device, or the steps say nothing.
        """
        folder = self._kept.folder(self._profile) if self._models is None else self._models.profile
        if folder is None or self._fetched or not result.is_same_device:
            return None
        inputs = None if self._models is not None else self._hardware.fingerprint
        correction = Correction(self._directory, self._kept, folder, inputs)
        models = self._models or MeasuredModels.read(folder, self.spec)
        at_hand = replace(self._at_hand, models=models.given, profile=correction.profile)
        return correction.correct(self._children, lambda others: replace(self._context(others), at_hand=at_hand))

    # Passes

    def _pass(self) -> None:
        """Decide once, write what was decided, and do it."""
        context = self._context()
        decision = reconcile(context)
        self._changed = decision.status is not None
        if decision.status is not None:
            self._write(decision.status)
        for event in decision.events:
            self._news.tell(event, self.status)
        self._news.tell_status(self.status)
        for action in decision.actions:
            self._changed |= self._do(action, context)
        self._place_plan()
        wait_s = decision.requeue_after_s
        self._due = None if wait_s is None else context.now + timedelta(seconds=wait_s)

    def _context(self, others: tuple[ChildConfigMap, ...] = ()) -> Context:
        """Return the run as decisions see it, with documents of other runs."""
        workers = self._children.workers
        if workers is not None:
            self._children.ready(workers, are_ready=self._training.is_ready)
        approved = self._directory.approved_plan
        found = TrainingJobObject(
            meta=Meta(name=self._job.metadata.name, uid=UID),
            namespace="",
            annotations={APPROVED_PLAN_ANNOTATION: approved} if approved else {},
        )
        observed = Observed(
            job=found,
            jobs=self._children.jobs,
            pods=self._children.pods,
            config_maps=(
                *self._kept.config_maps(),
                *self._children.results,
                *reports_of(self._job, self._directory.train_dir),
                *others,
            ),
            fetched=self._fetched,
        )
        rules = Rules(
            in_config_maps=False,
            keeps_checkpoints=True,
            may_stop_workers=False,
            starts_servers=True,
            approval=APPROVAL.format(folder=shlex.quote(str(self._directory.path))),
        )
        return Context(
            observed=observed,
            job=_with_spec(self._job, suspend=True) if self._is_suspended else self._job,
            status=self.status.model_copy(update={"hardware": self._hardware}),
            rules=rules,
            now=self._children.now,
            at_hand=self._at_hand,
        )

    @property
    def _watched(self) -> tuple[Path, ...]:
        reports = (self._directory.train_dir / name for name in REPORTS)
        return (*reports, self._training.ready_file, self._directory.approved_file)

    def _do(self, action: Action, context: Context) -> bool:
        """Do an action; return whether something changed."""
        match action:
            case Start(run=WorkersRun() as run):
                return self._start_workers(run)
            case Start(run=PlannerRun()) if self._ends_with_profile:
                self._shown.show_profile(self.status)
                return False
            case Start(run=PlannerRun() as run):
                self._start_planner(run, context)
            case Start(run=ProfilerRun() as run):
                self._start_profiler(run)
            case Delete(kind="Job", name=name):
                self._forget(name)
            case _:
                return self._kept.do(action, reports=self._directory.train_dir, now=self._children.now)
        return True

    # Processes

    def _start_profiler(self, run: ProfilerRun) -> None:
        directory, out = self._directory, self._directory.profile_dir
        inputs = self._hardware.fingerprint or ""
        is_kept = self.spec.profiler.policy is ProfilerPolicy.IF_NOT_PRESENT
        other = take_corrected_models(directory, inputs) if is_kept and not out.exists() else None
        self._children.started(run)
        self._runs[run.name] = run
        if other is not None:
            self._shown.profile_ends("reused", f"corrected by the steps of another run: {other}")
            self._ended(run.name, None)
            return
        directory.keep_for(out, inputs)
        self._view.begin("profile", f"measuring for {profile_seconds(self.spec)} s")
        self._runner.start(run.name, profiler_work(directory, self._file.job))

    def _start_planner(self, run: PlannerRun, context: Context) -> None:
        is_beside = self._children.workers is not None
        if not is_beside:
            if self._failure is not None and self.status.reason == Reason.FALLBACK_RUNNING:
                fallback = self.spec.planner.fallback_algorithm.algorithm
                self._view.note("plan", f"{self._failure}; planning with {fallback}")
            if context.status.replans and not replans_of(context):
                self._news.say(
                    "plan: the memory that failures kept free is used again, since other inputs are planned for"
                )
            self._shown.is_searched("counting the dense part" if counts_dense(self.spec) else "")
        else:
            self._beside.add(run.name)
        self._kept.remove(run.result)
        bundle_dir = self._bundle_dir
        assert bundle_dir is not None, "there are cost models"
        self._children.started(run)
        self._runs[run.name] = run
        self._runner.start(
            run.name,
            planner_work(self._directory, self._kept, run, self.spec, bundle_dir=bundle_dir, is_beside=is_beside),
        )

    @property
    def _bundle_dir(self) -> Path | None:
        """Cost models that plans are made with. None: there are none."""
        if self._models is not None:
            return self._models.bundle_dir
        return self._kept.folder(self._profile) / BUNDLE_FOLDER if self._profile in self._kept else None

    def _tries_first(self, moved: str) -> bool:
        """Return whether the workers wait for the trial of their plan, which begins here where it is due.

        ``moved`` is a sentence on an earlier training.
        """
        if self._others is not None or not self._trial.is_wanted:
            return False
        if self._trial.is_due:
            self._view.begin(TRIAL, moved or "steps as the training will take them")
            self._runner.start(TRIAL, self._trial.work(self._shown.in_force()))
            return True
        if not self._is_tried:
            self._view.end(TRIAL, "reused")
        return False

    def _end_trial(self, error: StageFailedError | None) -> None:
        self._view.end(TRIAL, "done" if error is None else "failed", self._trial.ended(error))
        self._is_tried = self._changed = True

    def _start_workers(self, run: WorkersRun) -> bool:
        """Start an attempt or a trial, or find that the training was finished; return whether something changed."""
        if TRIAL in self._runner.names:
            return False
        self._place_plan()
        training = self._training
        self._runs[run.name] = run
        if training.is_finished:
            self._children.started(run)
            self._children.ended(run.name, ExitCode.OK, "")
            if self._trial.is_wanted:
                self._view.end(TRIAL, "reused")
            self._view.end("train", "reused")
            return True
        moved = training.move_another_aside()
        if moved and self.status.replanning is not None:
            # Its further plans went with it: the plan of this one is as the job states it.
            keeps = run.plan if self.status.replanning.accepted is None else None
            roles = (names.INPUTS, names.STEPS, names.PLANNER, names.PLAN)
            self._kept.remove(*(each for each in self._kept.of_roles(*roles) if each != keeps))
            self._write(self.status, replanning=None)
            if keeps is None:
                self._view.say(moved)
                return True
        if self._tries_first(moved):
            return False
        if self._others is None or moved:
            self._view.begin("train", moved)
        self._others = self._others or OtherWork()
        training.prepare()
        self._children.started(run)
        self._runner.start(run.name, worker_work(self._directory, self._file.job, self._data_dir, training.ready_file))
        return True

    def _ended(self, name: str, error: StageFailedError | None) -> None:
        """Note how a process ended, and publish what it made."""
        if name == TRIAL:
            self._end_trial(error)
            return
        run = self._runs.pop(name)
        is_beside = name in self._beside
        self._beside.discard(name)
        tail = "" if error is None else "\n".join([*error.tail, _CODE.sub("", error.summary)])
        code = ExitCode.OK if error is None else error.exit_status
        self._children.ended(name, code, tail, timed_out=error is not None and error.timed_out)
        self._changed = True
        if not is_beside:
            self._failure = error
        if isinstance(run, WorkersRun):
            self._page.write()
        elif error is None:
            self._publish(run, is_beside=is_beside)

    def _publish(self, run: ProfilerRun | PlannerRun | CalibratorRun, *, is_beside: bool) -> None:
        plan_file = self._directory.candidate_file if is_beside else self._directory.plan_file
        is_plan, out = isinstance(run, PlannerRun), self._directory.profile_dir
        files = {PLAN_FILE: plan_file} if is_plan else files_of_profile(out)
        missing = [str(path) for path in files.values() if not path.exists()] if files else [str(out)]
        if missing:
            self._children.published(run.name, problem=f"{', '.join(missing)}: is missing")
            return
        self._kept.put(run.result, files, role=run.role, now=self._children.now)
        self._children.published(run.name)
        if not is_plan and not self._shown.has_profile:
            self._shown.profile_ends("done", Hardware.read(out / HARDWARE_FILE).source)

    def _forget(self, name: str) -> None:
        """Stop a process, and forget it."""
        self._runner.stop(name)
        self._runs.pop(name, None)
        self._beside.discard(name)
        self._children.forget(name)

    def _suspend(self) -> None:
        """Stop all processes as a suspended job does, then this one, until the user resumes the run."""
        self._is_suspended, stages = True, self._runner.stages
        self._pass()
        self._runner.stop(TRIAL)
        self._is_suspended = self._is_asked_to_suspend = False
        for stage in stages or ("train",):
            self._view.note(stage, "suspended; `fg` resumes it")
        with self._view.hidden():
            self._stop()
        self._training.ready_file.unlink(missing_ok=True)
        self._changed = True

    # What people see

    def _place_plan(self) -> None:
        """Put the plan where its trainer and people find it, unless workers train under another one."""
        if self._children.workers is None:
            self._shown.place(self.status, bundle_dir=None if self._fetched else self._bundle_dir)

    def _note_replanning(self) -> None:
        """Say that no further plans are made for the job, where its mode asks for them."""
        why = "the plan is given" if self._fetched else unsupported(self.spec)
        if why is not None and replanning_policy(self.spec).mode is not ReplanningMode.OFF:
            self._news.say(f"no plans are made for inputs that drift: {why}")

    # The end

    def _require_success(self) -> None:
        """Record a training that is finished. Raises StageFailedError or CommandError where the run has failed."""
        status = self.status
        if status.stage is Stage.SUCCEEDED and status.reason == Reason.TRAINED and self._others is not None:
            self._training.finish()
            self._view.end("train", "done")
        if status.stage is not Stage.FAILED:
            return
        error = failure_of_run(status, self._failure)
        if error is self._failure and (status.restarts or self.spec.failure_policy.rules):
            self._view.say(f"train: {status.message}")
        raise error

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Leave no process, and record that the run has ended, well or not; one that was interrupted resumes."""
        try:
            with stoppable({signal.SIGTSTP: self.suspend}):
                try:
                    yield
                finally:
                    self._runner.stop(*reversed(self._runner.names))  # what is next to the training first
                    end_marked(str(self._directory.path))
                    if self._others is not None:
                        self._page.write()
        except Exception:
            if not self.has_ended:
                self._write(self.status, completion_time=self._children.now)
            raise

    def _write(self, status: Status, **fields: object) -> None:
        self.status = status.model_copy(update=fields)
        text = self.status.model_dump_json(indent=1, by_alias=True, exclude_none=True)
        write_file(self._directory.status_file, text + "\n")


def _with_spec(job: DLRMTrainingJob, **fields: object) -> DLRMTrainingJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update=fields)})


def _version(path: Path) -> int | None:
    """Return a version that changes with each new file of that name. None: there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
