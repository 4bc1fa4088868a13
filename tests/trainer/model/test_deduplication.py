"""Training on batches without repeated lists: the numbers of training on all lists."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.progress import GuardState, TrainingProgress
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.job.status import DuplicationFactor
from neuroshard_api.job.step_cost import measured_cost
from neuroshard_api.job.training import SyntheticSessions
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_costs.deduplication import batch_factor
from support import builders
from support.planner.placements import by_columns, by_rows, given_plan
from support.trainer.rank_server import RankServer
from support.trainer.trainer_builders import job_data, plan_of, write_job, write_plan

WORKER = Path(__file__).with_name("deduplication_worker.py")
WEIGHTED = WORKER.with_name("weighted_deduplication_worker.py")
SEQUENCES = WORKER.with_name("sequence_deduplication_worker.py")
TOWER = WORKER.with_name("tower_deduplication_worker.py")
SESSIONS = {"samplesPerSession": 10, "groups": [{"features": ["user", "country"], "changeProbability": "0.1"}]}


def deduplicating(
    folder: Path, *features: str, factor: float = 4.0, form: DeduplicationForm = DeduplicationForm.FIRST_SAMPLE
) -> None:
    """Write the plan of the small tables, which leaves out the repeats of one group."""
    group = DeduplicatedGroup(group=features[0], features=features, factor=factor, form=form)
    write_plan(folder, plan_of().model_copy(update={"deduplication": (group,)}))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_training_without_repeats_computes_what_training_on_all_lists_does(
    tmp_path: Path, ranks: RankServer, num_nodes: int
) -> None:
    """Losses of 20 steps and all weights after them within 1e-6, for every sharding type, alone and mixed.

    Nodes have two ranks each; tables by the rows of a node are on either.
    """
    ranks.succeed(f"{WORKER}:main", tmp_path, folder=tmp_path, count=2 * num_nodes, per_node=2)


@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 2])
def test_a_product_that_is_computed_once_per_list_trains_as_that_of_all_samples(
    tmp_path: Path, ranks: RankServer, count: int
) -> None:
    """DCNv2 in the grouped form, plain and pipelined: losses of 20 steps and all weights."""
    ranks.succeed(f"{WORKER}:once_per_list", tmp_path, folder=tmp_path, count=count, per_node=count)


@pytest.mark.processes
@pytest.mark.slow
def test_sequences_without_repeats_train_as_all_sequences_do(tmp_path: Path, ranks: RankServer) -> None:
    """An EmbeddingCollection whose distinct sequences are pooled, then expanded: losses of 20 steps and all weights."""
    ranks.succeed(f"{SEQUENCES}:main", tmp_path, folder=tmp_path, count=2)


@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 2])
def test_attention_and_a_tower_that_run_once_per_list_train_as_on_all_lists(
    tmp_path: Path, ranks: RankServer, count: int
) -> None:
    """In a trainer of the user's own, which expands the tower's results: losses of 20 steps and all weights."""
    ranks.succeed(f"{TOWER}:main", tmp_path, folder=tmp_path, count=count)


@pytest.mark.processes
def test_weighted_bags_without_repeats_train_as_all_lists_do(tmp_path: Path, ranks: RankServer) -> None:
    """Sums and means of lookups with weights, in both forms: losses of 20 steps and all weights."""
    ranks.succeed(f"{WEIGHTED}:main", tmp_path, folder=tmp_path, count=2)


@pytest.mark.processes
@pytest.mark.parametrize(("forward", "backward"), [("INT8", "MX4"), ("MX4", "TOP16")])
def test_distinct_lists_travel_in_types_that_encode_groups_of_values(
    tmp_path: Path, ranks: RankServer, forward: str, backward: str
) -> None:
    """On two ranks, whose numbers of lists differ and fill no group; the guard's batches have other numbers."""
    group = DeduplicatedGroup(group="user", features=("user", "country"), factor=4.0, form=DeduplicationForm.GROUPED)
    types = WireTypes(forward=WireType(forward), backward=WireType(backward))
    plan = plan_of(world_size=2, batch_size_per_device=32, wire=types)
    file = write_plan(tmp_path, plan.model_copy(update={"deduplication": (group,)}))
    job = job_data(
        world_size=2,
        model={"batchSizePerDevice": 32},
        data={"numSamples": 2000},
        training={"maxSteps": 6, "logEverySteps": 2, "communication": {"policy": "Fixed"}},
        experimental={
            "data": {"readerProcesses": 0, "syntheticSessions": SESSIONS},
            "communication": {
                "embeddings": {"forward": [forward], "backward": [backward]},
                "dense": ["FP32"],
                "guard": {"checkEverySteps": 2, "maxEntropyIncreasePercent": "50"},
            },
        },
    )
    arguments = [str(write_job(tmp_path, job)), "--plan", str(file), "--run-dir", str(tmp_path / "run")]

    ranks.succeed("neuroshard_trainer.__main__:main", arguments, folder=tmp_path, count=2)

    progress = TrainingProgress.read(tmp_path / "run" / "progress.json")
    assert progress.guard is not None
    assert (progress.step, progress.guard.num_checks, progress.guard.state) == (6, 3, GuardState.NARROW)


def test_a_job_goes_on_from_a_checkpoint_of_another_form(tmp_path: Path, run: Callable[..., Any]) -> None:
    """All lists first, then both forms without repeats: loss and AUC of a run on all lists."""
    run = partial(run, data={"numSamples": 2000}, experimental={"data": {"syntheticSessions": SESSIONS}})
    assert run(training={"maxSteps": 60}, run_dir="whole") == ExitCode.OK
    assert run(training={"maxSteps": 20}) == ExitCode.OK
    deduplicating(tmp_path, "user", "country", form=DeduplicationForm.GROUPED)
    assert run(training={"maxSteps": 40}) == ExitCode.OK
    deduplicating(tmp_path, "user", "country")
    assert run(training={"maxSteps": 60}) == ExitCode.OK

    ended, whole = (TrainingProgress.read(tmp_path / name / "progress.json") for name in ("run", "whole"))
    assert ended.step == whole.step == 60
    assert ended.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-5)
    assert ended.metrics["auc"] == pytest.approx(whole.metrics["auc"], abs=1e-4)


def test_another_order_of_sessions_is_another_training(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoint's position would mean other samples."""
    drawn = {"syntheticSessions": SESSIONS}
    run = partial(run, data={"numSamples": 2000})
    assert run(experimental={"data": drawn}, training={"maxSteps": 5}) == ExitCode.OK

    other = {"data": {**drawn, "sessionRun": 4}}
    assert run(experimental=other, training={"maxSteps": 10}) == ExitCode.INVALID_INPUT

    assert "sessionRun = [null, null, 8], the job has [null, null, 4]" in capsys.readouterr().err


def test_a_log_that_is_not_clustered_is_warned_of(
    tmp_path: Path, run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Where the first batch repeats much less than the plan expects."""
    deduplicating(tmp_path, "user", "country", factor=4.0)

    assert run(training={"maxSteps": 2}) == ExitCode.OK

    assert "'user': 1.00 samples per distinct list in the first batch, the plan expects 4.00" in caplog.text
    assert "neuroshard cluster-sessions" in caplog.text


def test_the_first_batch_of_sessions_shows_its_repeats(
    run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """By feature, also where the plan expects none; samples without sessions have none."""
    sessions = {"data": {"syntheticSessions": SESSIONS}}
    assert run(data={"numSamples": 2000}, experimental=sessions, training={"maxSteps": 1}) == ExitCode.OK
    (line,) = [each for each in caplog.messages if each.startswith("samples per distinct list in the first batch: ")]
    factors = {name: float(factor) for name, factor in re.findall(r"(\w+) (\d+\.\d+)", line)}
    assert sorted(factors) == ["country", "item", "user"]
    assert factors["user"] > 1.2
    caplog.clear()

    assert run(training={"maxSteps": 1}, run_dir="other") == ExitCode.OK
    assert "samples per distinct list" not in caplog.text


def test_a_group_has_features_of_bags() -> None:
    """A feature that there is not, and one that is in two groups, are refused with the field."""
    plan = plan_of().to_json()
    for features, expected in (
        ([["shop"]], r"deduplication\[0\].features: 'shop' is a feature of no table"),
        ([["user"], ["user"]], r"deduplication\[1\].features: 'user' is in group 'user' already"),
    ):
        groups = tuple(DeduplicatedGroup(group=names[0], features=tuple(names), factor=2.0) for names in features)
        broken = builders.plan().from_json(plan).model_copy(update={"deduplication": groups}).to_json()
        with pytest.raises(DocumentError, match=expected):
            builders.plan().from_json(broken)


def test_a_group_in_the_grouped_form_has_whole_tables_by_columns() -> None:
    """A feature outside of the group, and rows on several devices, are refused with the field and the other form."""
    shop = builders.table("shop", feature_names=("seen_shop", "shop"), num_embeddings=40, embedding_dim=16)
    devices = builders.topology(2)
    request = PlanRequest(tables=builders.table_set(shop), topology=devices)
    for placement, features, expected in (
        (by_columns(shop, (0, 16)), ("seen_shop",), r"'shop' is looked up by 'shop' too.*use first_sample"),
        (by_rows(shop, devices), ("seen_shop", "shop"), r"\.form: table 'shop' is row_wise.*place it by columns"),
    ):
        group = DeduplicatedGroup(group="shop", features=features, factor=2.0, form=DeduplicationForm.GROUPED)
        broken = given_plan(request, placement).model_copy(update={"deduplication": (group,)})
        with pytest.raises(DocumentError, match=expected):
            GivenPlan.from_json(broken.to_json())


def test_a_report_has_the_factor_of_the_batches(tmp_path: Path, run: Callable[..., Any]) -> None:
    """Within a twentieth of the one that the sessions' parameters give, which is the plan's."""
    sessions = validated(SyntheticSessions, SESSIONS, where="sessions")
    expected = batch_factor(sessions.factor(sessions.groups[0], run=8), 64)
    deduplicating(tmp_path, "user", "country", factor=expected)
    spec = {
        "data": {"numSamples": 20_000},
        "experimental": {"data": {"syntheticSessions": SESSIONS}},
        "model": {"batchSizePerDevice": 64},
    }

    assert run(**spec, training={"maxSteps": 200, "logEverySteps": 200}) == ExitCode.OK

    report = StepReport.read(tmp_path / "run" / "step-report.json")
    (found,) = report.duplication or ()
    assert found.group == "user"
    assert found.factor == pytest.approx(expected, rel=0.05)
    assert measured_cost(report).duplication_factors == (DuplicationFactor(group="user", factor=f"{found.factor:.4g}"),)
