"""A job's stages on one machine: each takes files, runs the command that a pod would run, and leaves files."""

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.job.job_file import JobFile
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.plan_file import mismatches

from neuroshard_cli.local.children import Children
from neuroshard_cli.local.corrected_models import LocalCorrection, take_corrected_models
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.inputs import data_files, digest, machine, training_facts, versions
from neuroshard_cli.local.lifecycle import LocalLife, WorkersStoppedError
from neuroshard_cli.local.planning import LocalPlanning, MeasuredModels, limit_s
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.repeats import measured_repeats, wants_repeats
from neuroshard_cli.local.run_page import LivePage
from neuroshard_cli.local.stage_runner import StageFailedError, StageRunner
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.hardware import Hardware
    from neuroshard_api.documents.plan import GivenPlan, Plan
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.documents.topology import Topology
    from neuroshard_decisions.actions import Decision, WorkersRun

    from neuroshard_cli.local.replanning import LocalReplanning
    from neuroshard_cli.local.result import RunResult

STAGES = ("profile", "plan", "train")


class LocalRun:
    """One job, one folder, one machine.

    Args:
        file: the job.
        tables: its tables.
        directory: locked by the caller.
        view: shows the stages.
    """

    def __init__(self, file: JobFile, tables: "TableSet", directory: RunDirectory, view: RunView) -> None:
        self._file = file
        self._job = file.job
        self.spec = file.job.spec
        self._given_tables = self._tables = tables
        self._directory = directory
        self._view = view
        self.life = LocalLife(directory, file.job)
        self._runner = StageRunner(directory, view, check=self.life.check, suspend=self._suspend)
        self._not_replanned = ""
        """Sentence on why no further plans are made, once it is on the screen."""
        self._asked: str | None = ""
        """Sentence that asks for approval, once it is on the screen."""
        self._children: Children | None = None
        """What the run has started for its plans. None: the plan was given."""
        self._further: LocalReplanning | None = None
        """Source of further plans of the training under way. None: there is none."""
        self._models: MeasuredModels | None = None
        """What the plan was searched with. None: it was given."""
        self._bundle_dir: Path | None = None
        """Cost models of the plan. None: it was given."""
        self._plan_inputs = ""
        self.profile_folder: Path | None = None
        """Profile that the plan's price is of. None: the plan was given, or the bundle comes along with the planner."""
        self.profile_inputs: str | None = None
        """Digest of what the run's own profile depends on. None: it has none."""

    def measure(self, data_dir: Path) -> None:
        """Count the lists that repeat in the sessions of the data, if the plan depends on them.

        Args:
            data_dir: where relative paths of spec.data begin.
        """
        if wants_repeats(self._job, self._given_tables):
            self._tables = measured_repeats(self.spec, self._given_tables, self._directory, self._view, root=data_dir)

    def write_inputs(self) -> None:
        """Write the job and its tables, as the stages' commands read them."""
        write_file(self._directory.job_file, self._job.to_json())
        write_file(self._directory.tables_file, self._tables.to_json())

    def profile(self, given: Path | None) -> MeasuredModels:
        """Return cost models of this machine's devices: those given, those bundled, or measured ones.

        Raises:
            StageFailedError: the profiler failed.
            BundleError: the bundle that was given cannot be used.
        """
        from neuroshard_api.job.preparation import ProfilerPolicy
        from neuroshard_costs.bundle import bundled_bundle, bundled_root

        profiler = self.spec.profiler
        if given is not None:
            return self._reused_profile(given)
        if profiler.policy is not ProfilerPolicy.NEVER:
            return self._measured_profile(is_kept=profiler.policy is ProfilerPolicy.IF_NOT_PRESENT)
        if profiler.device_type is None:
            raise CommandError(
                f"{self._file.path}: spec.profiler.costModelRef: names a place in a cluster"
                f"; hint: give the bundle's folder "
                "with --bundle"
            )
        bundled_bundle(profiler.device_type)
        return self._reused_profile(bundled_root() / profiler.device_type)

    def plan(self, profiled: MeasuredModels) -> "Plan":
        """Return the job's plan, searched or from an earlier run. Raises StageFailedError."""
        from neuroshard_api.documents.plan import Plan
        from neuroshard_api.job.plan_request import counts_dense, dense_signature
        from neuroshard_api.job.stage_commands import BUNDLE_FOLDER
        from neuroshard_api.lifecycle.restarts import reserve_note

        directory = self._directory
        if profiled.bundle_dir.name == BUNDLE_FOLDER:
            self.profile_folder = profiled.bundle_dir.parent
        self._models, self._bundle_dir = profiled, profiled.bundle_dir
        planning = LocalPlanning(directory, self._job, self._tables, profiled, runner=self._runner, view=self._view)
        self._children = planning.children
        weights = [str(file_digest(path)) for path in sorted(profiled.bundle_dir.glob("*.*")) if path.suffix != ".png"]
        dense = [str(dense_signature(self._job))] if counts_dense(self.spec) else []
        others = [*dense, str(self.spec.planner.fallback_algorithm.algorithm), *weights, *versions()]
        if not directory.is_still("plan", digest([planning.request(replans=0), *others])) and self.life.replans:
            self._view.say("plan: the memory that failures kept free is used again, since other inputs are planned for")
            self.life.forget_replans()
        if self.life.replans:
            self._view.say(f"plan: {reserve_note(self.life.replans)}")
        inputs = self._plan_inputs = digest([planning.request(replans=self.life.replans), *others])
        was_made = directory.was_made_from("plan", inputs)
        is_accepted = was_made and self._is_accepted_in_place()
        if is_accepted and not directory.is_finished("plan", inputs):
            self._finish_accepted()
        if directory.is_finished("plan", inputs):
            plan = Plan.read(directory.plan_file)
            self._view.end("plan", "reused", _summary(plan))
            return plan
        self._view.begin("plan")
        planning.make(replans=self.life.replans)
        plan = Plan.read(directory.plan_file)
        self._report(plan, profiled.bundle_dir)
        directory.finish("plan", inputs, [directory.plan_file])
        self._view.end("plan", "done", _summary(plan))
        return plan

    def given_plan(self, path: Path | None) -> "GivenPlan":
        """Return a plan that was made before, once it is known to be for this model and this world size.

        Args:
            path: its file; None: the ConfigMap that spec.planRef names is in the job's file.

        Raises:
            DocumentError: it is damaged, or for something else.
        """
        from neuroshard_api.documents.document import DocumentError, decoded, parse_data, read_data
        from neuroshard_api.documents.plan import Plan, any_plan

        if path is None:
            reference = self.spec.plan_ref
            assert reference is not None, "the caller looked"
            where = f"{self._file.path}: ConfigMap {reference.name}, {reference.key}"
            text = self._file.content(reference.name, reference.key, field_path="spec.planRef")
            raw = parse_data(decoded(text, where=where), where=where, is_json=True)
        else:
            where, raw = str(path), read_data(path)
        plan = any_plan(raw, where=where)
        problems = mismatches(
            plan,
            self._tables,
            world_size=self.spec.trainer.world_size,
            devices_per_node=self.spec.trainer.devices_per_node,
        )
        if problems:
            raise DocumentError(where, problems)
        write_file(self._directory.plan_file, plan.to_json())
        if isinstance(plan, Plan):
            self._report(plan, None)
        else:
            self._directory.plan_report.unlink(missing_ok=True)
        self._view.end("profile", "reused", "the plan is given")
        self._view.end("plan", "reused", f"{where}: {_summary(plan)}")
        return plan

    def train(self, *, data_dir: Path) -> None:
        """Train under the plan; a training that was interrupted goes on from its newest checkpoint.

        Args:
            data_dir: where relative paths of spec.data begin.

        Raises:
            StageFailedError: the trainer failed.
            CommandError: the port is in use.
        """
        from neuroshard_api.job.stage_commands import (
            DRIFT_REPORT_FILE,
            INPUT_STATISTICS_FILE,
            PROGRESS_FILE,
            STEP_REPORT_FILE,
        )

        directory, spec = self._directory, self.spec
        files = [] if spec.data.path is None else data_files(data_dir, spec.data.path)
        training, checkpoint = spec.training.model_dump_json(), spec.checkpoint.model_dump_json()
        facts = training_facts(self._job, self._given_tables, files)
        identity = digest([self._given_tables.to_json(), spec.model.model_dump_json(), *facts.values()])
        experimental = spec.experimental.model_dump_json(exclude={"profiler", "planner", "rendezvous"})
        settings = [training, checkpoint, experimental, spec.trainer.model_dump_json(), *versions()]
        inputs = digest([identity, directory.plan_file.read_text(encoding="utf-8"), *settings])
        if directory.is_finished("train", inputs):
            self._view.end("train", "reused")
            return
        aside, others = directory.keep_facts(directory.train_dir, facts)
        if aside is not None:
            directory.move_further_plans(aside)
        moved = f"an earlier training was moved to {aside}: it {'; it '.join(others)}" if aside else ""
        self._view.begin("train", moved)
        directory.train_dir.mkdir(exist_ok=True)
        self._train_replanned(data_dir)
        inputs = digest([identity, directory.plan_file.read_text(encoding="utf-8"), *settings])
        written = (PROGRESS_FILE, STEP_REPORT_FILE, DRIFT_REPORT_FILE, INPUT_STATISTICS_FILE)
        reports = [directory.train_dir / name for name in written]
        directory.finish("train", inputs, [path for path in reports if path.exists()])
        self._view.end("train", "done")

    def corrected(self, result: "RunResult") -> str | None:
        """Correct the profile that the run was planned with by its steps; return a sentence on it.

        None: the plan was given, or is for another device, or the steps say nothing.
        """
        if self.profile_folder is None or not result.is_same_device:
            return None
        correction = LocalCorrection(
            self._directory, self._job, self.profile_folder, profile_inputs=self.profile_inputs
        )
        return correction.correct()

    def _reused_profile(self, folder: Path) -> MeasuredModels:
        """Take a bundle's folder, or a profiler's with the bundle in it."""
        from neuroshard_api.documents.hardware import Hardware
        from neuroshard_api.documents.presets import load_presets
        from neuroshard_api.job.stage_commands import BUNDLE_FOLDER, HARDWARE_FILE
        from neuroshard_costs.bundle import load_bundle

        bundle_dir = folder / BUNDLE_FOLDER if (folder / BUNDLE_FOLDER).is_dir() else folder
        manifest = load_bundle(bundle_dir).manifest
        self._view.end("profile", "reused", f"{folder}: {manifest.source}")
        beside = bundle_dir.parent / HARDWARE_FILE
        if beside.is_file():
            return MeasuredModels(bundle_dir=bundle_dir, topology=self._topology(Hardware.read(beside)))
        preset = load_presets().get(manifest.device.name)
        if preset is None:
            raise CommandError(
                f"{folder}: says nothing of the links between devices of {manifest.device.name}"
                f"; hint: give a folder that "
                f"`neuroshard profile` wrote, with {HARDWARE_FILE} in it"
            )
        topology = preset.topology(devices_per_node=self.spec.trainer.devices_per_node)
        return MeasuredModels(bundle_dir=bundle_dir, topology=topology)

    def _measured_profile(self, *, is_kept: bool) -> MeasuredModels:
        from neuroshard_api.documents.hardware import Hardware
        from neuroshard_api.job.stage_commands import BUNDLE_FOLDER, HARDWARE_FILE, profiler_command

        directory, profiler = self._directory, self.spec.profiler
        out = directory.profile_dir
        settings = profiler.model_dump_json(exclude={"policy"})
        batch_size, procs = self.spec.model.batch_size_per_device, self.spec.trainer.devices_per_node
        inputs = digest([settings, str(batch_size), str(procs), self._tables.to_json(), *machine(), *versions()])
        self.profile_inputs = inputs
        hardware_file = out / HARDWARE_FILE
        is_finished = directory.is_finished("profile", inputs)
        if is_finished and is_kept:
            self._view.end("profile", "reused", Hardware.read(hardware_file).source)
        elif is_kept and not out.exists() and (other := take_corrected_models(directory, inputs)) is not None:
            self._finish_profile(inputs)
            self._view.end("profile", "reused", f"corrected by the steps of another run: {other}")
        else:
            if is_finished:
                directory.clear(out)  # an unfinished profile goes on
            directory.keep_for(out, inputs)
            self._view.begin("profile", f"measuring for {profiler.budget_seconds} s")
            command = profiler_command(
                self._job,
                job_file=str(directory.job_file),
                tables_file=str(directory.tables_file),
                out_dir=str(out),
                python=sys.executable,
            )
            self._runner.run("profile", command, {}, within_s=limit_s(self.spec.experimental.profiler))
            self._finish_profile(inputs)
            self._view.end("profile", "done", Hardware.read(hardware_file).source)
        return MeasuredModels(bundle_dir=out / BUNDLE_FOLDER, topology=self._topology(Hardware.read(hardware_file)))

    def _finish_profile(self, inputs: str) -> None:
        from neuroshard_api.job.stage_commands import BUNDLE_FOLDER, HARDWARE_FILE

        out = self._directory.profile_dir
        self._directory.finish("profile", inputs, [out / HARDWARE_FILE, *sorted((out / BUNDLE_FOLDER).iterdir())])

    def _topology(self, hardware: "Hardware") -> "Topology":
        trainer = self.spec.trainer
        return hardware.topology(num_nodes=trainer.num_nodes, devices_per_node=trainer.devices_per_node)

    def _report(self, plan: "Plan", bundle_dir: Path | None) -> None:
        """Write the plan's page; without its cost models, as of a given plan, nothing about other traffic."""
        from neuroshard_costs.bundle import load_bundle
        from neuroshard_report.explain.robustness import traffic_costs
        from neuroshard_report.html.page import render_html

        traffic = () if bundle_dir is None else traffic_costs(plan, bundle=load_bundle(bundle_dir))
        write_file(self._directory.plan_report, render_html(plan, traffic=traffic))

    def _train_replanned(self, data_dir: Path) -> None:
        """Train to the end: each attempt, also under further plans, resumes from the newest checkpoint.

        Raises StageFailedError where the failure policy ends the job.
        """
        from neuroshard_cli.local.replanning import PlanTakenError

        replanning, failure = self._replanning(), None
        self.life.train_under_plan()
        while not self.life.has_ended:
            run = _workers_of(self._decided(replanning))
            if run is None:
                if not self.life.has_ended:
                    self.life.await_turn(lambda note: self._view.note("train", note))
                continue
            failure = None
            try:
                self.life.begin_attempt(run)
                self._run_trainer(data_dir, replanning)
            except PlanTakenError as taken:
                assert replanning is not None, "it has raised"
                self.life.stop_attempt()
                replanning.accept()
                self._finish_accepted()
                self._view.say(f"train: restarts under another plan: {taken}")
            except WorkersStoppedError:
                self.life.stop_attempt()
            except StageFailedError as error:
                if error.exit_status is None:
                    raise
                failure = error
                self.life.end_attempt(error.exit_status, "\n".join([*error.tail, error.summary]))
            else:
                self.life.end_attempt(ExitCode.OK, "")
            finally:
                if replanning is not None:
                    replanning.stop()
            self.life.train_under_plan()
            replanning = self._replanning()
        self._require_success(failure)

    def _decided(self, replanning: "LocalReplanning | None") -> "Decision":
        """Return the decision of a pass, once the plan that it asks for is there, and show what people should know."""
        from neuroshard_decisions.actions import EventReason
        from neuroshard_decisions.conditions import Reason

        replans, doubted = self.life.replans, None if replanning is None else replanning.in_doubt
        decision = self.life.decide(in_doubt=doubted)
        status = self.life.status
        for event in decision.events:
            if event.reason is EventReason.WORKERS_RESTARTED:
                message = self._directory.with_log_kept("train", status.restarts or 0, event.message)
                self._view.say(f"train: {message}")
        if status.reason == Reason.WAITING_FOR_APPROVAL and status.message != self._asked:
            self._asked = status.message
            self._view.say(f"train: {self._asked}")
        recorded = None if decision.status is None else decision.status.replanning
        if replanning is not None and recorded is not None and recorded != doubted:
            replanning.restore(recorded)
            self._finish_accepted()
            self.life.train_under_plan()
        if self.life.replans > replans and self._models is not None:
            self.plan(self._models)
            self.life.train_under_plan()
        return decision

    def _require_success(self, failure: StageFailedError | None) -> None:
        """Do nothing if the training has succeeded. Raises StageFailedError."""
        from neuroshard_api.job.status import Stage

        status = self.life.status
        if status.stage is not Stage.FAILED:
            return
        if failure is None:
            raise StageFailedError(f"the stage train failed: {status.message}", ExitCode.JOB_FAILED)
        if status.restarts:
            self._view.say(f"train: {status.message}")
        raise failure

    def _finish_accepted(self) -> None:
        """Finish the stage of the plan again, for the candidate that took the plan's place."""
        self._report(self.plan_in_force(), self._bundle_dir)
        self._directory.finish("plan", self._plan_inputs, [self._directory.plan_file])

    def plan_in_force(self) -> "Plan":
        """Return the plan that the run directory has now. Raises DocumentError."""
        from neuroshard_api.documents.plan import Plan

        return Plan.read(self._directory.plan_file)

    def _is_accepted_in_place(self) -> bool:
        """Put a candidate that a run accepted before it was killed in place; return whether the plan is such a one.

        Mode Off makes no further plans and keeps those that were taken. It does without a damaged record.
        Raises DocumentError in the other modes.
        """
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_api.job.replanning import ReplanningMode
        from neuroshard_api.replanning.support import unsupported

        from neuroshard_cli.local.replanning import put_accepted_in_place

        if unsupported(self.spec) is not None:
            return False
        try:
            return put_accepted_in_place(self._directory)
        except DocumentError:
            if self.spec.replanning.mode is ReplanningMode.OFF:
                return False
            raise

    def _replanning(self) -> "LocalReplanning | None":
        """Return the source of further plans. None: the mode is Off, or none are made for the job, which is noted."""
        from neuroshard_api.job.plan_request import counts_dense
        from neuroshard_api.job.replanning import ReplanningMode
        from neuroshard_api.replanning.support import replanning_policy, unsupported

        from neuroshard_cli.local.replanning import LocalReplanning

        policy = replanning_policy(self.spec)
        if policy.mode is ReplanningMode.OFF:
            return None
        why = unsupported(self.spec)
        if why is not None or self._bundle_dir is None or self._children is None:
            sentence = f"no plans are made for inputs that drift: {why or 'the plan is given'}"
            if sentence != self._not_replanned:
                self._view.say(sentence)
            self._not_replanned = sentence
            return None
        self._further = LocalReplanning(
            self._directory,
            self._children,
            bundle_dir=self._bundle_dir,
            has_dense=counts_dense(self.spec),
            replans=self.life.replans,
            note=self._view.say,
        )
        return self._further

    def _suspend(self) -> None:
        """Stop until the user resumes the run; a candidate whose planner ended with the stage is then made again."""
        if self._further is not None:
            self._further.stop()
        self.life.suspend()

    def _run_trainer(self, data_dir: Path, replanning: "LocalReplanning | None") -> None:
        from neuroshard_api.job.stage_commands import (
            ANY_PORT,
            READY_FILE_VARIABLE,
            torchrun_environment,
            trainer_command,
            worker_environment,
        )

        rendezvous = self.spec.experimental.rendezvous
        port = rendezvous.port if "port" in rendezvous.model_fields_set else ANY_PORT
        if port != ANY_PORT:
            _require_free(port)
        directory = self._directory
        plan_file, run_dir = str(directory.plan_file), str(directory.train_dir)
        command = trainer_command(
            self._job,
            job_file=str(directory.job_file),
            plan_file=plan_file,
            run_dir=run_dir,
            data_dir=str(data_dir),
            python=sys.executable,
        )
        own = {each.name: each.value or "" for each in self.spec.trainer.env if each.value_from is None}
        environment = {
            **own,
            READY_FILE_VARIABLE: str(self.life.ready_file),
            **worker_environment(plan_file=plan_file, run_dir=run_dir, data_dir=str(data_dir)),
            **torchrun_environment(
                self._job,
                host="localhost",
                port=port,
                run_id=self._job.metadata.name,
            ),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

        page = LivePage(directory)

        def watched() -> None:
            if self.life.is_due() and self.life.stops(self._decided(replanning)):
                raise WorkersStoppedError
            page.look()
            if replanning is not None:
                replanning.look()

        try:
            self._runner.run("train", command, environment, look=watched)
        finally:
            page.write()


def _workers_of(decision: "Decision") -> "WorkersRun | None":
    from neuroshard_decisions.actions import Start, WorkersRun

    runs = (each.run for each in decision.actions if isinstance(each, Start))
    return next((each for each in runs if isinstance(each, WorkersRun)), None)


def _require_free(port: int) -> None:
    """Raise CommandError, before torchrun would, if another program has a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("localhost", port))
        except OSError as error:
            raise CommandError(
                f"spec.experimental.rendezvous.port: {port} is in use by another program; hint: choose another one, or "
                "leave the field out"
            ) from error


def _summary(plan: "GivenPlan") -> str:
    price = "without a price" if plan.predicted is None else f"predicted {plan.predicted.total_ms:.3f} ms"
    return f"{len(plan.tables)} tables on {plan.num_devices} devices by {plan.algorithm}, {price}"
