"""A local run whose processes begin and end as a test says: every decision of it is real, no process is."""

import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import IncumbentPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.job_file import read_job_file
from neuroshard_api.job.status import Status
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.run import STAGES, LocalRun
from neuroshard_costs.bundle import bundled_root, load_bundle
from rich.console import Console
from support import builders
from support.cli.local_runs import BUNDLED
from support.cli.stages import PLACE
from support.trainer import training_builders

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_TURNS = 50
SINCE_STEP = 4_000
OWN = {"command": ["train"], "numProcPerNode": 2}
"""A trainer of one's own, for which no dense part is counted and that trains from its start on."""
EVIDENCE = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=1.0, recent_ms=2.0),)


class Clock:
    """A clock that moves by the time that is waited."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Wait."""
        self.now += timedelta(seconds=seconds)


class FakeStage:
    """A process that ends when the test says so."""

    def __init__(self, command: Sequence[str], *, stage: str, log: Path, **_: Any) -> None:
        self.command, self.stage, self.log = command, stage, log
        self.status: int | None = None
        self.is_stopped = False
        log.write_text("", encoding="utf-8")

    def poll(self) -> int | None:
        """Return the exit status."""
        return self.status

    def stop(self) -> None:
        """Stop it."""
        self.is_stopped = True

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.status is None and not self.is_stopped

    def after(self, option: str) -> Path:
        """Return the file after an option of its command."""
        return Path(self.command[self.command.index(option) + 1])


class LocalLife:
    """The commands of one run directory.

    Args:
        folder: of the run.
        spec: of the job; by default NeuroShard's trainer on one device, under bundled cost models.
    """

    def __init__(self, folder: Path, **spec: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.directory = RunDirectory(folder / "run")
        self.clock = Clock()
        self.stages: list[FakeStage] = []
        self.said = io.StringIO()
        self.step, self.version = 5_000, 0
        own: dict[str, Any] = {"profiler": BUNDLED, "trainer": {"numProcPerNode": 2}}
        self.job_file = folder / "job.yaml"
        self.spec = own | spec
        self.local: LocalRun

    def begin(self, *, given: Path | None = None, **spec: Any) -> None:
        """Give the command, after an earlier one was killed or has ended."""
        for each in self.stages:
            each.is_stopped = True
        self.job_file.write_text(yaml.safe_dump(builders.job_data(**(self.spec | spec))), encoding="utf-8")
        self.directory.log("any").parent.mkdir(parents=True, exist_ok=True)
        self.local = self.local_again(given)
        self.local.begin()
        self.settle()

    def local_again(self, given: Path | None = None) -> LocalRun:
        """Return a run of the same job in the same folder."""
        file, view = read_job_file(self.job_file), RunView(STAGES, Console(file=self.said, width=1000))
        return LocalRun(
            file, file.tables(), self.directory, view, plan=given, clock=self.clock, stop=self.left_to_the_shell
        )

    def left_to_the_shell(self) -> None:
        """Note that the run was suspended."""
        self.said.write(f"{len(self.running())} processes run\n")

    def settle(self) -> None:
        """Let the run do what is due now."""
        for _ in range(MAX_TURNS):
            if self.local.has_ended or not self.local.turn():
                return
        raise AssertionError("the run does not come to rest")

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.wait(seconds)
        self.settle()

    def running(self, stage: str | None = None) -> list[FakeStage]:
        """Return the processes that run."""
        return [each for each in self.stages if each.runs and stage in {None, each.stage}]

    @property
    def trainer(self) -> FakeStage:
        """The trainer that runs."""
        (found,) = self.running("train")
        return found

    @property
    def status(self) -> Status:
        """The status in the folder."""
        return self.directory.recorded_status()[0]

    def ready(self) -> None:
        """Let the workers train."""
        (self.directory.train_dir / "ready").touch()
        self.settle()

    def end(self, stage: str, code: int = 0, log: str = "error: it failed") -> None:
        """End what runs of a stage."""
        for each in self.running(stage):
            each.log.write_text(log if code else "", encoding="utf-8")
            each.status = code
        self.settle()

    def profile(self) -> None:
        """Let the profiler that runs end with the bundled cost models."""
        (profiler,) = self.running("profile")
        out = profiler.after("--out")
        shutil.copytree(bundled_root() / "h100-80gb", out / "bundle", dirs_exist_ok=True)
        device = load_bundle(out / "bundle").manifest.device
        (out / "hardware.json").write_text(builders.hardware(device=device).to_json(), encoding="utf-8")
        self.end("profile")

    def plan(self) -> None:
        """Let the planner that runs end with a plan of made-up costs."""
        (planner,) = self.running("plan")
        request = PlanRequest.read(planner.after("--request"))
        planner.after("--out").write_text(builders.plan(request).to_json(), encoding="utf-8")
        self.end("plan")

    def report(self, *, is_slow: bool = True, since: int = SINCE_STEP, **statistics: Any) -> None:
        """Let the training report steps under the plan in force: slow ones since inputs drifted, or as planned."""
        self.step += 2_000
        plan = file_digest(self.directory.plan_file) or ""
        price_ms = Plan.read(self.directory.plan_file).predicted.total_ms
        before, after = (_ranks(price_ms), _ranks(4 * price_ms if is_slow else price_ms))
        change = DriftChange(cause=SlowdownCause.INPUTS_DRIFTED, tables=("user",), since_step=since, evidence=EVIDENCE)
        documents = {
            "progress.json": builders.progress(step=self.step, num_steps=10**8),
            "input-statistics.json": training_builders.input_statistics(**({"plan_sha256": plan} | statistics)),
            "step-report.json": builders.step_report(plan_sha256=plan, ranks=after, first_step=self.step - 100),
            "drift-report.json": training_builders.drift_report(
                plan_sha256=plan,
                last_step=self.step,
                reference=before,
                recent=after,
                changes=(change,) if is_slow else (),
                checkpoint_ms=1.0,
                start_ms=1.0,
            ),
        }
        for name, document in documents.items():
            file = self.directory.train_dir / name
            file.unlink(missing_ok=True)
            file.write_text(document.to_json(), encoding="utf-8")
        self.settle()

    def plan_further(self, *, gain: float = 3.0) -> None:
        """Let the planner next to the training end with a candidate: the plan in force with its tables turned."""
        for planner in self.running("replan"):
            in_force = Plan.read(planner.after("--incumbent"))
            shards = [table.shards for table in reversed(in_force.tables)]
            turned = tuple(
                table.model_copy(update={"shards": each}) for table, each in zip(in_force.tables, shards, strict=True)
            )
            near = IncumbentPlan(
                plan_sha256=file_digest(planner.after("--incumbent")) or "",
                total_ms=gain * in_force.predicted.total_ms,
                fits=True,
            )
            self.version += 1  # no two plans of a history have the same bytes
            seeded = in_force.request.search.model_copy(update={"seed": self.version})
            request = in_force.request.model_copy(update={"search": seeded})
            changes = {"tables": turned, "incumbent": near, "request": request}
            planner.after("--out").write_text(in_force.model_copy(update=changes).to_json(), encoding="utf-8")
        self.end("replan")


def _ranks(total_ms: float) -> tuple[Any, ...]:
    none = dict.fromkeys(
        ("backward_compute_ms", "input_communication_ms", "forward_communication_ms", "backward_communication_ms"), 0.0
    )
    return tuple(
        builders.rank_times(rank, forward_compute_ms=total_ms, step_ms=total_ms + 1.0, **none) for rank in (0, 1)
    )


@contextmanager
def local_life(folder: Path, **spec: Any) -> Iterator[LocalLife]:
    """Yield the life of a run in a folder, none of whose processes is real."""
    life = LocalLife(folder, **spec)

    def start(command: Sequence[str], **options: Any) -> FakeStage:
        life.stages.append(FakeStage(command, **options))
        return life.stages[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PLACE, start)
        for page in ("run_plan.write_plan_page", "run.LivePage.write"):  # of plans and reports that are made up
            patched.setattr(f"neuroshard_cli.local.{page}", lambda *_: None)
        yield life
