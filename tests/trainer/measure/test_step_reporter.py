"""Step times, on a sharded model of one process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.training import Training
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_cluster.ports import quiet_port
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.dense.optimizers import dense_optimizer, replicated_optimizer
from neuroshard_trainer.drift.drift_state import DriftState
from neuroshard_trainer.drift.work_budget import WorkBudget
from neuroshard_trainer.measure.prometheus import prometheus_writer
from neuroshard_trainer.measure.step_marks import Member, TimedPart
from neuroshard_trainer.measure.step_reporter import StepReporter, _covered_ms, _own_ms
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.pipeline import BatchPipeline
from neuroshard_trainer.ranks.clocks import CudaClock, HostClock
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, on_node
from support.profiler.cuda_events import SimulatedGpu
from support.trainer.timed_steps import MEMORY, SAMPLES, batch, trained
from support.trainer.trainer_builders import TABLES, plan_of, write_plan
from support.trainer.trainer_models import lookups_of_zero, sharded_model

PASSES = ("dense_forward_ms", "dense_backward_ms", "dense_collectives_ms")
"""Fields of RankTimes that are parts of dense_ms."""
NO_PARTS = {
    "server_ms",
    "server_hidden_ms",
    "dense_peer_wait_ms",
    "processor_wait_share",
    "core_loop_ms",
    "compute_processor_ms",
    "dense_processor_ms",
    "rank",
    *MEMORY,
    "collectives",
    "host_bound",
    "expansion_ms",
    *PASSES,
}
"""Fields of RankTimes that are not parts of a step on all lists."""


def test_every_part_of_a_step_is_measured(tmp_path: Path, group: Any) -> None:
    """The parts are there, and make up no more than the step."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    reporter = StepReporter(model, write_plan(tmp_path, plan_of()), write=reports.append, report_every=4, first_step=8)

    trained(model, reporter, 6, wait_ms=3)

    assert [(report.first_step, report.num_steps) for report in reports] == [(8, 4), (8, 6)]
    times = reports[-1].ranks[0].model_dump()
    assert all(times[name] > 0 for name in PASSES)
    assert sum(times[name] for name in PASSES) <= 1.5 * times["dense_ms"]
    parts = [times[name] for name in times if name not in {"step_ms", *NO_PARTS}]
    assert all(part > 0 for part in parts)
    assert 0 < times["compute_processor_ms"] <= 1.5 * (times["forward_compute_ms"] + times["backward_compute_ms"])
    assert 0 < times["dense_processor_ms"] <= 1.5 * (times["dense_forward_ms"] + times["dense_backward_ms"])
    assert times["core_loop_ms"] > 0
    assert times["data_wait_ms"] >= 3
    assert sum(parts) <= 1.5 * times["step_ms"]


def test_a_report_names_the_run_of_torchrun(tmp_path: Path, group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart on the same folder has another id, which distinguishes an old report from a new one."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of-this-attempt")
    reports: list[StepReport] = []
    model = sharded_model(group)
    trained(model, StepReporter(model, write_plan(tmp_path, plan_of()), write=reports.append), 2)

    assert [report.run_id for report in reports] == ["of-this-attempt"]


@pytest.mark.parametrize("report_every", [1, 4, 5, 100], ids=["every step", "4 of 6", "5 of 6", "at the end only"])
def test_a_report_waits_for_the_steps_that_a_gpu_has_not_finished(
    tmp_path: Path, group: Any, report_every: int
) -> None:
    """Also at the end of training: a step ends after its last backward kernel, with the dense part's optimizer."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    gpu = SimulatedGpu(work_before_event_ms=1.0)
    reporter = StepReporter(
        model,
        write_plan(tmp_path, plan_of()),
        write=reports.append,
        report_every=report_every,
        clock=CudaClock(new_event=gpu.event),
    )

    trained(model, reporter, 6)

    times = reports[-1].ranks[0].model_dump(exclude=NO_PARTS)
    step_ms = times.pop("step_ms")
    assert reports[-1].first_step + reports[-1].num_steps == 6
    assert times["data_wait_ms"] == 1.0
    assert all(part_ms > 0 for part_ms in times.values())
    assert sum(times.values()) == step_ms
    assert gpu.num_waits > 0


def test_a_pipelines_waiting_counts_in_the_step_that_waits(tmp_path: Path, group: Any) -> None:
    """A pipeline asks for the batch after next during a step; a step lasts from one call of it to its end."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    gpu = SimulatedGpu()
    reporter = StepReporter(
        model,
        write_plan(tmp_path, plan_of()),
        write=reports.append,
        report_every=1,
        samples_per_step=SAMPLES,
        clock=CudaClock(new_event=gpu.event),
    )

    def late() -> Any:
        for wait_ms in (1.0, 2.0, 4.0):
            gpu.queue(wait_ms)
            yield batch()

    taken: list[Any] = []

    def progress(batches: Any) -> int:
        while len(taken) < 2 and (each := next(batches, None)) is not None:
            taken.append(each)
        if not taken:
            raise StopIteration
        taken.pop(0)
        gpu.queue(10.0)
        return len(taken)

    for _ in reporter.pipelined(late(), progress):
        reporter.end_step()
        gpu.queue(100.0)  # such as an evaluation

    assert len(reports) == 3
    last = [report.ranks[0] for report in reports]
    assert (last[0].data_wait_ms, last[0].step_ms) == (3.0, 13.0)
    assert (last[1].data_wait_ms, last[1].step_ms) == (3.5, 13.5)  # medians of the steps so far
    assert (last[2].data_wait_ms, last[2].step_ms) == (3.0, 13.0)
    assert reports[0].samples_per_second == pytest.approx(SAMPLES * 1000 / 13)


def test_a_pipelined_step_has_all_its_parts(tmp_path: Path, group: Any) -> None:
    """The hooks see lookups and all-to-alls also where TorchRec's pipeline has replaced the collections' forward."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    reporter = StepReporter(model, write_plan(tmp_path, plan_of()), write=reports.append)
    training = Training()
    dense = dense_optimizer(model, training, tables_path=TABLES_PATH)
    pipeline = BatchPipeline(
        model,
        StepOptimizer(model, dense, None, training, step=0),
        lambda each: model(each.dense, each.lookups).sum(),
        torch.device("cpu"),
    )
    zeros, lookups = batch()
    batches = [Batch(dense=zeros, lookups=lookups, labels=zeros[:, 0], num_real=SAMPLES)] * 6

    losses = list(reporter.pipelined(batches, pipeline.progress))

    assert len(losses) == reports[0].num_steps == 6
    times = reports[0].ranks[0].model_dump(exclude=NO_PARTS)
    step_ms = times.pop("step_ms")
    assert all(part_ms > 0 for part_ms in times.values())
    assert sum(times.values()) <= 1.5 * step_ms


MIXED = {
    (CollectiveKind.INDICES, None),
    (CollectiveKind.ALL_TO_ALL, Family.COLUMNS),
    (CollectiveKind.REDUCE_SCATTER, Family.ROWS),
    (CollectiveKind.REDUCE_SCATTER, Family.NODE_ROWS),
    (CollectiveKind.ALL_REDUCE, Family.REPLICATED),
}


def mixed_plan() -> GivenPlan:
    """Return tables of all families on one device."""
    topology = builders.topology(1)
    tables = (*TABLES, builders.table("city", num_embeddings=20, embedding_dim=16))
    user, item, country, city = tables
    request = PlanRequest(tables=builders.table_set(*tables), topology=topology, optimizer=Optimizer.SGD)
    whole = by_columns(user, (0, user.embedding_dim))
    return given_plan(
        request, whole, by_rows(item, topology), everywhere(country, topology), on_node(city, 0, topology)
    )


@pytest.mark.parametrize("pipelined", [False, True], ids=["plain", "pipelined"])
def test_every_collective_of_a_mixed_plan_is_named(tmp_path: Path, group: Any, *, pipelined: bool) -> None:
    """By kind and family as a plan names them; their times make up the three communication times."""
    plan, reports = mixed_plan(), list[StepReport]()
    model = sharded_model(group, plan)
    replicated = replicated_optimizer(model, Optimizer.SGD, learning_rate=0.1)
    gpu = SimulatedGpu(work_before_event_ms=1.0)
    reporter = StepReporter(
        model,
        write_plan(tmp_path, plan),
        write=reports.append,
        replicated_optimizer=replicated,
        clock=CudaClock(new_event=gpu.event),
    )
    training = Training()
    optimizer = StepOptimizer(
        model, dense_optimizer(model, training, tables_path=TABLES_PATH), replicated, training, step=0
    )
    zeros, lookups = torch.zeros(SAMPLES, 3), lookups_of_zero(SAMPLES, plan.request.tables.tables)
    batches = [Batch(dense=zeros, lookups=lookups, labels=zeros[:, 0], num_real=SAMPLES)] * 5

    def loss(each: Batch) -> torch.Tensor:
        return model(each.dense, each.lookups).sum()  # type: ignore[no-any-return] # torchrec, untyped

    if pipelined:
        list(reporter.pipelined(batches, BatchPipeline(model, optimizer, loss, torch.device("cpu")).progress))
    else:
        for each in reporter.steps(batches):
            optimizer.zero_grad()
            torch.autograd.backward(loss(each))
            optimizer.step()

    times = reports[0].ranks[0]
    found = {(each.kind, each.family): each for each in times.collectives}
    assert set(found) == MIXED
    for (kind, _), took in found.items():
        assert (took.forward_ms > 0) == (kind is not CollectiveKind.ALL_REDUCE)
        assert (took.backward_ms > 0) == (kind is not CollectiveKind.INDICES)
    forward_ms, backward_ms = (
        sum(getattr(each, way) for each in found.values()) for way in ("forward_ms", "backward_ms")
    )
    assert forward_ms == times.input_communication_ms + times.forward_communication_ms
    assert backward_ms == times.backward_communication_ms


def test_the_update_of_copied_tables_is_compute(tmp_path: Path, group: Any) -> None:
    """What the optimizer of data_parallel tables takes is not part of the dense layers' time."""
    plan, reports = mixed_plan(), list[StepReport]()
    model = sharded_model(group, plan)
    replicated = replicated_optimizer(model, Optimizer.SGD, learning_rate=0.1)
    assert replicated is not None
    gpu = SimulatedGpu()
    replicated._optimizer.register_step_pre_hook(lambda *_: gpu.queue(64.0))
    reporter = StepReporter(
        model,
        write_plan(tmp_path, plan),
        write=reports.append,
        replicated_optimizer=replicated,
        clock=CudaClock(new_event=gpu.event),
    )
    replicated._optimizer.register_step_pre_hook(lambda *_: gpu.queue(32.0))

    for dense, lookups in reporter.steps(
        [(torch.zeros(SAMPLES, 3), lookups_of_zero(SAMPLES, plan.request.tables.tables))]
    ):
        torch.autograd.backward(model(dense, lookups).sum())
        replicated.step()

    assert (reports[0].ranks[0].backward_compute_ms, reports[0].ranks[0].dense_ms) == (32.0, 64.0)


@pytest.mark.parametrize("pipelined", [False, True], ids=["plain", "pipelined"])
def test_the_expansion_of_repeats_is_a_part_of_its_own(tmp_path: Path, group: Any, *, pipelined: bool) -> None:
    """All copies and the sums of a group's gradients take their time, and the parts still add up to the step."""
    reports: list[StepReport] = []
    model = sharded_model(group, repeating=[("user", "country"), ("item",)])
    gpu = SimulatedGpu(work_before_event_ms=1.0)
    reporter = StepReporter(
        model, write_plan(tmp_path, plan_of()), write=reports.append, clock=CudaClock(new_event=gpu.event)
    )
    training = Training()
    optimizer = StepOptimizer(model, dense_optimizer(model, training, tables_path=TABLES_PATH), None, training, step=0)
    zeros, lookups = batch()
    first_samples = torch.zeros(2, SAMPLES, dtype=torch.int64)
    batches = [
        Batch(dense=zeros, lookups=lookups, labels=zeros[:, 0], num_real=SAMPLES, first_samples=first_samples)
    ] * 5

    def loss(each: Batch) -> torch.Tensor:
        return model(*each.inputs).sum()  # type: ignore[no-any-return] # torchrec, untyped

    if pipelined:
        list(reporter.pipelined(batches, BatchPipeline(model, optimizer, loss, torch.device("cpu")).progress))
    else:
        for each in reporter.steps(batches):
            optimizer.zero_grad()
            torch.autograd.backward(loss(each))
            optimizer.step()

    times = reports[0].ranks[0].model_dump(exclude=NO_PARTS - {"expansion_ms"})
    step_ms = times.pop("step_ms")
    assert times["expansion_ms"] == 1.0 + 2  # forward together, backward group by group
    assert sum(times.values()) == step_ms


def test_a_moment_of_two_collectives_counts_for_the_one_that_ended_first() -> None:
    """They pass one after the other, so that the second one's own time begins where the first one ended."""
    spans: dict[Member, list[tuple[float, float]]] = {
        Family.ROWS: [(2.0, 9.0)],
        Family.COLUMNS: [(1.0, 5.0)],
        Family.NODE_ROWS: [(8.0, 12.0)],
    }

    own = _own_ms(spans, without=[(2.0, 3.0)])

    assert own == {Family.COLUMNS: 3.0, Family.ROWS: 4.0, Family.NODE_ROWS: 3.0}


def test_the_window_slides(tmp_path: Path, group: Any) -> None:
    """Medians are over the last steps."""
    file = tmp_path / "step-report.json"
    model = sharded_model(group)
    reporter = StepReporter(model, write_plan(tmp_path, plan_of()), write=file, report_every=100, window=3)

    trained(model, reporter, 5)

    report = StepReport.read(file)
    assert (report.first_step, report.num_steps) == (2, 3)


def test_what_follows_the_end_of_a_step_is_not_counted(tmp_path: Path, group: Any) -> None:
    """An evaluation may last as long as it likes, and its lookups are none of the step's."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    reporter = StepReporter(model, write_plan(tmp_path, plan_of()), write=reports.append)

    for dense, lookups in reporter.steps([batch()]):
        reporter.end_step()
        with torch.no_grad():
            model(dense, lookups)

    assert reports[0].num_steps == 1
    assert reports[0].ranks[0].forward_compute_ms == 0


def test_prometheus_sees_the_report(tmp_path: Path) -> None:
    """In seconds, by rank and part; the file is written as well."""
    from urllib.request import urlopen

    port = quiet_port()
    times: dict[str, Any] = dict.fromkeys((name for name in RankTimes.model_fields if name.endswith("_ms")), 250.0)
    report = StepReport(
        source="cpu:test", plan_sha256="0" * 64, first_step=10, num_steps=5, ranks=(RankTimes(rank=0, **times),)
    )

    prometheus_writer(tmp_path / "step-report.json", port)(report)

    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    assert 'neuroshard_step_seconds{part="dense",rank="0"} 0.25' in text
    assert "neuroshard_training_steps 15.0" in text
    assert StepReport.read(tmp_path / "step-report.json") == report


@pytest.mark.parametrize(
    ("spans", "without", "expected"),
    [
        ([(0, 2), (5, 6)], [], 3),
        ([(0, 4), (2, 6)], [], 6),
        ([(0, 10)], [(2, 4), (3, 5)], 7),
        ([(0, 2)], [(0, 2)], 0),
        ([(1, 3)], [(0, 2)], 1),
        ([], [(0, 2)], 0),
    ],
    ids=["apart", "overlapping", "a hole", "hidden", "half hidden", "nothing"],
)
def test_hidden_communication_does_not_count(
    spans: Sequence[tuple[float, float]], without: Sequence[tuple[float, float]], expected: float
) -> None:
    """Only what delays the step."""
    assert _covered_ms(spans, without=without) == expected


def test_a_model_that_is_not_sharded_is_refused(tmp_path: Path, group: Any) -> None:  # noqa: ARG001 - a group is there
    """There is nothing to measure."""
    with pytest.raises(InputError, match="no sharded EmbeddingBagCollection"):
        StepReporter(torch.nn.Linear(1, 1), write_plan(tmp_path, plan_of()), write=tmp_path / "report.json")


def test_a_live_sharding_that_is_not_the_plans_is_refused(group: Any) -> None:
    """The table is named, with what the plan and the ranks have."""
    model = sharded_model(group)
    prove_sharding(model, plan_of(), group)

    with pytest.raises(
        InputError,
        match=r"table 'user' is not sharded as the plan says: the plan has rows 0 to 60 of columns 0 to 16 on rank 0, "
        r"rows 0 to 60 of columns 16 to 32 on rank 1, the ranks hold rows 0 to 60 of columns 0 to 32 on rank 0",
    ):
        prove_sharding(model, plan_of({"user": ((0, 16), (1, 16))}, world_size=2), group)


def write_each_report(reporter: StepReporter) -> None:
    """Let the drift watch write at every report, whatever the disk takes."""
    assert reporter.drift is not None
    reporter.drift.budget = WorkBudget(clock=lambda: 0.0)


def test_drift_is_watched_next_to_the_report(tmp_path: Path, group: Any) -> None:
    """By default, for a trainer of one's own; after 250 steps there is a reference."""
    model = sharded_model(group)
    reporter = StepReporter(model, write_plan(tmp_path, plan_of()), write=tmp_path / "step-report.json")
    write_each_report(reporter)

    trained(model, reporter, 300)

    drift = DriftReport.read(tmp_path / "drift-report.json")
    report = StepReport.read(tmp_path / "step-report.json")
    assert (drift.last_step, drift.reference_steps, drift.plan_sha256) == (299, 200, report.plan_sha256)
    assert drift.recent[0].step_ms == report.ranks[0].step_ms
    assert drift.start_ms is not None
    statistics = InputStatistics.read(tmp_path / "input-statistics.json")
    assert (statistics.first_step, statistics.last_step, statistics.batch_size) == (99, 299, SAMPLES)
    assert {each.feature for each in statistics.features} == {table.name for table in TABLES}


def test_averages_of_copies_are_in_the_reference_as_in_the_report(tmp_path: Path, group: Any) -> None:
    """With their mean over all steps in both, so that steps with averages as ever show no slower communication."""
    model = sharded_model(group)
    gpu = SimulatedGpu(work_before_event_ms=1.0)
    reporter = StepReporter(
        model,
        write_plan(tmp_path, plan_of()),
        write=tmp_path / "step-report.json",
        clock=CudaClock(new_event=gpu.event),
    )
    write_each_report(reporter)

    for step, (dense, lookups) in enumerate(reporter.steps([batch()] * 300)):
        torch.autograd.backward(model(dense, lookups).sum())
        if step % 4 == 3:
            begun = reporter._marks.mark()
            reporter._marks.end(TimedPart.BACKWARD_COMMUNICATION, CollectiveKind.SYNC, begun)

    drift = DriftReport.read(tmp_path / "drift-report.json")
    [average] = [
        each
        for each in StepReport.read(tmp_path / "step-report.json").ranks[0].collectives
        if each.kind is CollectiveKind.SYNC
    ]
    assert average.backward_ms == 0.25  # one of 1 ms in four steps
    assert drift.reference[0].backward_communication_ms == drift.recent[0].backward_communication_ms > 0.25


@pytest.mark.parametrize("options", [{"drift": False}, {"write": lambda _: None}], ids=["off", "no file"])
def test_nothing_watches_where_it_is_off_or_has_no_folder(tmp_path: Path, group: Any, options: Any) -> None:
    """A report that a callable takes has no folder of its own."""
    model = sharded_model(group)
    options = {"write": tmp_path / "step-report.json", **options}
    trained(model, StepReporter(model, write_plan(tmp_path, plan_of()), **options), 3)

    assert {path.name for path in tmp_path.iterdir()} <= {"plan.json", "step-report.json"}


def test_another_batch_size_begins_a_reference_of_its_own(tmp_path: Path, group: Any) -> None:
    """After a restart: longer steps of larger batches are not drift."""
    model, plan_file = sharded_model(group), write_plan(tmp_path, plan_of())

    def started(samples: int | None) -> bool:
        """Whether a start goes on from the state that is there."""
        reporter = StepReporter(model, plan_file, write=tmp_path / "step-report.json", samples_per_step=samples)
        kept = (tmp_path / "drift-state.json").exists()
        trained(model, reporter, 3)
        return kept

    assert [started(samples) for samples in (8, 8, 16, 16, None)] == [False, True, False, True, False]


def test_a_clock_that_jumps_ends_no_training(tmp_path: Path, group: Any) -> None:
    """A step whose times are negative or none is in no median."""

    class Jumping(HostClock):
        """Reads every tenth step as if its clock had been set back, or had none."""

        def __init__(self) -> None:
            self.reads = 0

        def mark(self) -> Any:
            """Return the host's time."""
            return time.perf_counter_ns()

        def read_ms(self, marks: Sequence[Any]) -> list[float]:
            """Return times, negative or none in some steps."""
            self.reads += 1
            wrong = {0: -1.0, 5: float("nan")}.get(self.reads % 10, 1.0)
            return [wrong * (mark - marks[0]) / 1e6 for mark in marks]

    reports: list[StepReport] = []
    model = sharded_model(group)
    reporter = StepReporter(
        model, write_plan(tmp_path, plan_of()), write=reports.append, report_every=20, drift=tmp_path, clock=Jumping()
    )
    write_each_report(reporter)

    trained(model, reporter, 40)

    assert [report.num_steps for report in reports] == [16, 32]
    assert all(report.ranks[0].step_ms > 0 for report in reports)
    assert DriftState.read(tmp_path / "drift-state.json").detector.rejected == 8


def test_a_report_of_steps_without_times_is_one_of_zeros(tmp_path: Path, group: Any) -> None:
    """All ranks take part in the collecting, whatever a rank's clock says."""

    class Broken(HostClock):
        """Has no times."""

        def mark(self) -> Any:
            """Return a moment."""
            return object()

        def read_ms(self, marks: Sequence[Any]) -> list[float]:
            """Return no times."""
            return [float("nan")] * len(marks)

    reports: list[StepReport] = []
    model = sharded_model(group)
    trained(model, StepReporter(model, write_plan(tmp_path, plan_of()), write=reports.append, clock=Broken()), 2)

    assert [report.ranks[0].step_ms for report in reports] == [0.0]
