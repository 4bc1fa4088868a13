"""The drift watch of rank 0, on steps and batches with a change planted in them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neuroshard_api.documents.drift_report import DriftReport, SlowdownCause
from neuroshard_api.documents.finding import FindingKind
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.plan_parts import DeduplicatedGroup
from neuroshard_trainer.data.synthetic import zipf_ranks
from neuroshard_trainer.drift.drift_state import DriftState
from neuroshard_trainer.drift.watch import DriftWatch, ReferenceTimes, forget, process_age_ms
from neuroshard_trainer.drift.work_budget import WorkBudget
from neuroshard_trainer.ranks.run_identity import RunIdentity, file_sha256
from support.builders import rank_times
from support.trainer import trainer_builders
from support.trainer.trainer_builders import plan_of, write_plan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

RANKS, REPORT_STEPS, SAMPLES, ROWS = 2, 100, 512, 100_000
TABLES = tuple(each.model_copy(update={"num_embeddings": ROWS}) for each in trainer_builders.TABLES)
PARTS = {
    "expansion_ms": 0.0,
    "input_communication_ms": 1.0,
    "forward_compute_ms": 3.0,
    "backward_compute_ms": 5.0,
    "forward_communication_ms": 2.0,
    "backward_communication_ms": 2.0,
    "dense_ms": 7.0,
    "data_wait_ms": 0.0,
}


class Training:
    """Steps and batches of two ranks as a reporter hands them on; tables are whole, ``item`` is on rank 1."""

    def __init__(
        self,
        folder: Path,
        *,
        world_size: int = RANKS,
        conditions: str = "",
        seed: int = 0,
        samples: int = SAMPLES,
        budget: WorkBudget | None = None,
    ) -> None:
        self.folder = folder
        self.samples = samples
        self.world_size = world_size
        self._rng = np.random.default_rng(seed)
        plan_file = folder / "plan.json"
        if not plan_file.exists():
            write_plan(folder, plan_of(tables=TABLES, world_size=RANKS))
        run = RunIdentity(source="cpu:test", plan_sha256=file_sha256(plan_file), run_id="run-0")
        self.watch = DriftWatch(
            folder,
            run=run,
            plan_file=plan_file,
            world_size=world_size,
            local_world_size=world_size,
            conditions=conditions,
            budget=budget or WorkBudget(clock=lambda: 0.0),
        )
        self._references = [ReferenceTimes() for _ in range(world_size)]

    def run(self, first: int, last: int, *, pooling: int = 4, **factors: float) -> list[DriftReport | None]:
        """Return the reports of some steps; ``compute=2`` has rank 1 compute twice as long, while rank 0 waits."""
        return [self.steps(begin, pooling, **factors) for begin in range(first, last, REPORT_STEPS)]

    def steps(self, first: int, pooling: int, **factors: float) -> DriftReport | None:
        """Take a report's steps and batches."""
        parts = [dict(PARTS) for _ in range(self.world_size)]
        slow = parts[-1]
        for name, factor in factors.items():
            for field in (
                (f"forward_{name}_ms", f"backward_{name}_ms") if f"{name}_ms" not in PARTS else (f"{name}_ms",)
            ):
                slow[field] = PARTS[field] * factor
        for other in parts[:-1]:
            other["forward_communication_ms"] += sum(slow.values()) - sum(PARTS.values())
        noise = 1 + 0.01 * self._rng.normal(size=(self.world_size, REPORT_STEPS))
        step_ms = [sum(each.values()) * ratios for each, ratios in zip(parts, noise, strict=True)]
        for each, reference, times in zip(parts, self._references, step_ms, strict=True):
            for ms in times.tolist():
                reference.add(ms, {**each, "step_ms": ms})
        for step in range(first, first + REPORT_STEPS):
            self.watch.inputs.offer(step, {"sparse": self.lookups(pooling)} if step % 100 == 99 else None)
        self.watch.add_steps(first, [each.astype(np.float32) for each in step_ms])
        recent = [
            rank_times(rank, **each, step_ms=float(np.median(times)))
            for rank, (each, times) in enumerate(zip(parts, step_ms, strict=True))
        ]
        references = [each.medians for each in self._references]
        return self.watch.report(first + REPORT_STEPS - 1, recent, references, num_recent=REPORT_STEPS)

    def lookups(self, pooling: int) -> KeyedJaggedTensor:
        """Return a batch in which ``item`` is looked up so often per sample."""
        sizes = {table.name: pooling if table.name == "item" else 2 for table in TABLES}
        rows = [zipf_ranks(self._rng.random(self.samples * size), ROWS, 0.85) for size in sizes.values()]
        return KeyedJaggedTensor(
            keys=list(sizes),
            values=torch.from_numpy(np.concatenate(rows)),
            lengths=torch.tensor([size for size in sizes.values() for _ in range(self.samples)], dtype=torch.int32),
        )

    @property
    def files(self) -> set[str]:
        """Names of the documents that are there."""
        return {path.name for path in self.folder.iterdir()} - {"plan.json"}


def named(report: DriftReport | None) -> list[tuple[SlowdownCause, tuple[int, ...], tuple[str, ...]]]:
    """Return causes, ranks, and tables."""
    assert report is not None
    return [(change.cause, change.ranks, change.tables) for change in report.changes]


def test_a_slow_rank_is_named_with_the_step_since_when(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Within 200 steps of the change, in the document and once in the log."""
    training = Training(tmp_path)
    assert training.run(0, 200) == [None, None]
    usual = training.run(200, 800)
    with caplog.at_level(logging.WARNING):
        *_, last = training.run(800, 1100, compute=1.5)

    assert all(each is not None and not each.changes for each in usual)
    assert named(last) == [(SlowdownCause.DEVICE_SLOW, (1,), ())]
    assert last is not None
    assert abs(last.changes[0].since_step - 800) <= 20
    assert last.slowdown == pytest.approx(0.2, abs=0.02)
    assert [record.message for record in caplog.records if record.name.startswith("neuroshard")] == [last.headline]
    assert "steps take 20 % longer: DeviceSlow, rank 1" in (last.headline or "")
    assert DriftReport.read(tmp_path / "drift-report.json") == last


def test_a_row_that_no_table_has_is_named_by_a_trainer_of_your_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose batches are any with lookups; there is no range of samples where it does not tell their number."""
    write_plan(tmp_path, plan_of(world_size=RANKS))  # of fewer rows
    with caplog.at_level(logging.WARNING):
        Training(tmp_path).run(0, 100)

    found = [record.message for record in caplog.records if record.name.startswith("neuroshard")]
    assert [each.split(": row")[0] for each in found] == [f"IdsOutside: column {each.name!r}" for each in TABLES]
    assert all(each.endswith("began in steps 0 to 99") for each in found)


def test_changed_inputs_that_explain_the_slow_down_are_named_with_their_tables(tmp_path: Path) -> None:
    """A device is not blamed meanwhile: causes wait for two sampled batches after the change."""
    training = Training(tmp_path)
    training.run(0, 800)
    reports = training.run(800, 1200, compute=1.8, pooling=12)

    assert {tuple(named(report)) for report in reports} <= {(), ((SlowdownCause.INPUTS_DRIFTED, (1,), ("item",)),)}
    assert named(reports[-1]) == [(SlowdownCause.INPUTS_DRIFTED, (1,), ("item",))]
    statistics = InputStatistics.read(tmp_path / "input-statistics.json")
    assert statistics.changed_features == ("item",)
    by_feature = {each.feature: each for each in statistics.features}
    assert by_feature["item"].lookups_per_sample == 12.0
    assert by_feature["item"].reuse_histogram is not None
    assert by_feature["user"].reuse_histogram is None
    assert sum(by_feature["item"].reuse_histogram) == pytest.approx(1, abs=0.001)


def test_features_that_are_counted_without_repeats_are_named(tmp_path: Path) -> None:
    """Their statistics are of distinct lists, which a table set's are not."""
    group = DeduplicatedGroup(group="user", features=("user", "country"), factor=4.0)
    write_plan(tmp_path, plan_of(tables=TABLES, world_size=RANKS).model_copy(update={"deduplication": (group,)}))

    Training(tmp_path).run(0, 200)

    assert InputStatistics.read(tmp_path / "input-statistics.json").without_repeats == ("country", "user")


def test_a_change_is_remembered_over_a_restart(tmp_path: Path) -> None:
    """The reference and the step since when are those of the first start, also from an earlier checkpoint's step."""
    first = Training(tmp_path)
    first.run(0, 800)
    *_, before = first.run(800, 1100, compute=1.5)
    *_, after = Training(tmp_path, seed=1).run(1000, 1300, compute=1.5)

    assert before is not None
    assert after is not None
    assert after.reference == before.reference
    assert named(after) == named(before)
    assert after.changes[0].since_step == before.changes[0].since_step


def test_slow_steps_of_a_restart_are_compared_with_the_first_start(tmp_path: Path) -> None:
    """Drift adds up over restarts: a reference of its own would hide it."""
    Training(tmp_path).run(0, 800)
    *_, last = Training(tmp_path, seed=1).run(800, 1200, dense=1.5)

    assert [cause for cause, _, _ in named(last)] == [SlowdownCause.DENSE_SLOW]
    assert last is not None
    assert last.reference_first_step == 50


@pytest.mark.parametrize("change", ["plan", "conditions", "ranks"])
def test_what_cannot_be_compared_is_learned_again(tmp_path: Path, change: str) -> None:
    """Documents of the plan before are gone at once: nobody takes them for ones of the new plan."""
    training = Training(tmp_path)
    training.run(0, 500)
    assert training.files == {"drift-report.json", "input-statistics.json", "drift-state.json"}
    options: dict[str, Any] = {}
    if change == "plan":
        write_plan(tmp_path, plan_of({"item": ((0, 32),)}, tables=TABLES, world_size=RANKS))
    else:
        options = {"conditions": "BF16"} if change == "conditions" else {"world_size": 1}
    again = Training(tmp_path, **options)

    assert again.files == set()
    assert again.run(500, 700) == [None, None]
    [report] = again.run(700, 800)
    assert report is not None
    assert report.reference_first_step == 550


def test_faults_of_the_data_outlast_another_plan(tmp_path: Path) -> None:
    """They are neither forgotten nor taken into the reference."""
    training = Training(tmp_path)
    training.run(0, 500)
    training.run(500, 600, pooling=0)
    (fault,) = training.watch.data.findings
    assert (fault.kind, fault.column) == (FindingKind.NULLS_ROSE, "item")
    write_plan(tmp_path, plan_of({"item": ((0, 32),)}, tables=TABLES, world_size=RANKS))

    again = Training(tmp_path, seed=1)
    assert again.watch.data.findings == (fault,)
    again.run(600, 1100, pooling=0)
    assert again.watch.data.findings == (fault,)
    again.run(1100, 1200)
    assert again.watch.data.findings[0].until_step == 1199


def test_batches_of_another_size_after_a_restart_are_learned_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of a trainer that does not tell its batch size cannot be compared either; a later fault has its cause."""
    Training(tmp_path).run(0, 800)
    training = Training(tmp_path, samples=2 * SAMPLES, seed=1)
    learning = training.run(800, 1600, dense=2.0)
    *_, last = training.run(1600, 1900, dense=2.0, compute=2.0)

    assert "batches differ in size" in caplog.text
    assert not any(each.changes for each in learning if each is not None)
    assert named(last) == [(SlowdownCause.DEVICE_SLOW, (1,), ())]


def test_writing_keeps_to_the_budget(tmp_path: Path) -> None:
    """100 steps of 20 ms earn 3 ms; where a piece of work takes 9, every third report is written."""
    clock = iter(range(0, 10_000, 9))
    training = Training(tmp_path, budget=WorkBudget(share=0.0015, ahead_ms=0.0, clock=lambda: float(next(clock))))
    reports = training.run(0, 3000)

    written = sum(each is not None for each in reports[3:])
    assert 8 <= written <= 10


def test_a_change_is_written_whatever_was_spent(tmp_path: Path) -> None:
    """At the report in which it is found, and at the one in which it ends."""
    clock = iter([0.0, 1e9])
    training = Training(tmp_path, budget=WorkBudget(clock=lambda: next(clock)))
    training.run(0, 100)
    clock = iter(float(each) for each in range(100))
    assert training.run(100, 800) == [None] * 7
    slow = training.run(800, 1200, compute=1.5)
    usual = training.run(1200, 1700)

    assert sum(each is not None for each in slow) == 1
    assert sum(each is not None for each in usual) == 1


def test_the_cause_of_a_change_is_named_whatever_was_spent(tmp_path: Path) -> None:
    """It takes two sampled batches after the change; once it is named, the reports keep to the budget again."""
    now_ms = [0.0]

    def clock() -> float:
        now_ms[0] += cost_ms
        return now_ms[0]

    cost_ms = 0.0
    training = Training(tmp_path, budget=WorkBudget(clock=clock))
    training.run(0, 800)
    cost_ms = 1e6
    training.steps(800, 4)
    slow = training.run(900, 1900, compute=1.5)
    reported = [number for number, each in enumerate(slow) if each is not None and each.changes]

    assert len(reported) == 1
    assert reported[0] <= 2
    assert named(slow[reported[0]]) == [(SlowdownCause.DEVICE_SLOW, (1,), ())]
    assert slow[reported[0] + 1 :] == [None] * (9 - reported[0])


def test_a_damaged_state_is_named_and_learned_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that was full, or a hand that edited it, costs a reference and no training."""
    Training(tmp_path).run(0, 500)
    file = tmp_path / "drift-state.json"
    file.write_text(file.read_text()[:200])

    assert Training(tmp_path).run(500, 600) == [None]
    assert "drift-state.json" in caplog.text


def test_times_that_are_none_raise_no_alarm(tmp_path: Path) -> None:
    """A clock that jumped, or steps that could not be read."""
    training = Training(tmp_path)
    training.run(0, 600)
    broken = np.array([np.nan, np.inf, -5.0, 0.0] * 50, dtype=np.float32)
    training.watch.add_steps(600, [broken, broken])
    (report,) = training.run(800, 900)

    assert report is not None
    assert not report.changes
    assert DriftState.read(tmp_path / "drift-state.json").detector.rejected == 200


def test_a_slow_down_that_ends_is_no_change_any_more(tmp_path: Path) -> None:
    """The report then is empty, and later ones as well."""
    training = Training(tmp_path)
    training.run(0, 800)
    *_, during = training.run(800, 1200, compute=1.5)
    *_, after = training.run(1200, 1600)

    assert during is not None
    assert during.changes
    assert named(after) == []


def test_what_is_kept_does_not_grow(tmp_path: Path) -> None:
    """After 5,000 steps the state is as large as after 1,500, when its windows are full."""
    training = Training(tmp_path)
    training.run(0, 1500)
    size = (tmp_path / "drift-state.json").stat().st_size
    training.run(1500, 5000)

    assert (tmp_path / "drift-state.json").stat().st_size <= 1.1 * size
    assert size < 16_000


def test_own_batches_without_lookups_are_passed_over(tmp_path: Path) -> None:
    """There are no statistics then, and times are watched all the same."""
    training = Training(tmp_path)
    training.lookups = lambda _pooling: [1, 2]  # type: ignore[method-assign,assignment]
    training.run(0, 800)
    *_, last = training.run(800, 1100, compute=1.5)

    assert "input-statistics.json" not in training.files
    assert named(last) == [(SlowdownCause.DEVICE_SLOW, (1,), ())]


def test_the_price_of_a_restart_is_in_the_report(tmp_path: Path) -> None:
    """Duration of a checkpoint, and of a start up to its first step."""
    training = Training(tmp_path)
    training.watch.checkpoint_ms, training.watch.start_ms = 1200.0, process_age_ms()
    *_, report = training.run(0, 400)

    assert report is not None
    assert report.checkpoint_ms == 1200.0
    assert report.start_ms is not None
    assert 100 < report.start_ms < 24 * 3600 * 1000


def test_what_an_earlier_start_found_is_removed_where_nothing_watches(tmp_path: Path) -> None:
    """It would be shown as today's; nothing else is removed, and nothing need be there."""
    (tmp_path / "drift-report.json").write_text("{}")
    (tmp_path / "step-report.json").write_text("{}")

    forget(tmp_path)
    forget(tmp_path)

    assert [file.name for file in tmp_path.iterdir()] == ["step-report.json"]


def test_a_named_cause_outlasts_a_noisy_report_and_a_restart(tmp_path: Path) -> None:
    """The report of the dense part alone, and a start that has not counted batches yet, name the rank still."""
    training = Training(tmp_path)
    training.run(0, 1000)
    training.run(1000, 1400, compute=2.0)
    noisy = training.run(1400, 1500, dense=3.0)[-1]
    first = Training(tmp_path).run(1500, 1600, compute=2.0)[-1]

    assert named(noisy) == named(first) == [(SlowdownCause.DEVICE_SLOW, (1,), ())]
