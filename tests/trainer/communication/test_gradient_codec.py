"""Gradients of the replicated dense part between two ranks: what is sent, what is carried, and the way back."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.step_report import StepReport
from neuroshard_trainer.sharding.live_sharding import LiveSharding
from neuroshard_trainer.state.checkpoint import CheckpointManifest
from support.trainer.rank_server import RankServer
from support.trainer.trainer_builders import job_data, plan_of, write_job, write_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader

pytestmark = [pytest.mark.processes]
SUMS = 1e-5
"""Sums in FP32, over their largest value."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, ranks: RankServer) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("gradients")
    ranks_found: list[dict[str, Any]] = ranks.found(
        Path(__file__).with_name("gradient_worker.py"), folder=folder, count=2
    )
    return ranks_found


def test_rounded_gradients_differ_by_their_rounding_and_take_half_the_bytes(found: list[dict[str, Any]]) -> None:
    """FP16 has 10 bits after the point, BF16 7; the mean of two ranks rounds each and their sum."""
    for rank in found:
        for kind, bits in (("FP16", 10), ("BF16", 7)):
            own = rank[kind]
            assert 0 < max(own["errors"]) <= 2.0**-bits, kind
            assert set(own["bytes"]) == {2 * own["num_parameters"]}, kind
            assert min(own["errors"]) < own["measured"] < max(own["errors"]), kind


def test_sent_and_carried_gradients_sum_to_the_gradients(found: list[dict[str, Any]]) -> None:
    """After every step; and what is carried goes out in the first step that is not encoded."""
    for rank in found:
        own, first_encoded = rank["Threshold"], 2
        assert max(own["conserved"]) < SUMS
        assert max(own["errors"][:first_encoded]) < SUMS
        assert min(own["errors"][first_encoded:]) > 0.01
        assert own["flushed"] < SUMS
        assert max(own["bytes"][first_encoded:]) < 0.3 * own["num_parameters"]  # 5 % x 1.25 x 4 bytes


def test_gradients_are_exact_and_equal_on_all_ranks_once_the_codec_is_off(found: list[dict[str, Any]]) -> None:
    """Otherwise copies of the dense part would drift apart."""
    for rank in found:
        for kind in ("FP16", "BF16", "Threshold"):
            assert rank[kind]["off"] < 1e-7, kind
            assert rank[kind]["equal"], kind


def test_a_resumed_run_sends_what_the_one_before_it_carried(found: list[dict[str, Any]]) -> None:
    """In its first step, from the checkpoint's means over the ranks."""
    for rank in found:
        assert rank["resumed"] < SUMS


@pytest.mark.parametrize("kind", ["FP16", "BF16", "Threshold"])
def test_a_codec_that_doubles_gradients_is_off_within_three_checks_and_back_once_it_is_sound(
    found: list[dict[str, Any]], kind: str
) -> None:
    """While it is off, gradients are those of a model without a codec, bit by bit."""
    for rank in found:
        own = rank["guard"][kind]
        assert own["checks"] == 3
        assert own["states"][-1] == "Suspended"
        assert own["off"]
        assert (own["retried"], own["in_a_row"]) == ("Narrow", 0)


def test_a_guard_that_only_reports_leaves_a_broken_codec_on(found: list[dict[str, Any]]) -> None:
    """All ranks decide alike."""
    for rank in found:
        assert rank["reported"]["states"] == ["Narrow"] * 7


def test_what_a_sound_codec_carries_is_no_difference_to_the_exact_mean(found: list[dict[str, Any]]) -> None:
    """Threshold leaves most of a gradient to later steps, and the guard is far from its maximum."""
    for rank in found:
        assert rank["Threshold"]["measured"] < SUMS


def test_the_kept_share_stays_between_half_of_what_was_asked_for_and_the_room(found: list[dict[str, Any]]) -> None:
    """In steps 400 to 500, although what is carried grows."""
    for rank in found:
        assert 0.025 <= min(rank["kept"]) <= max(rank["kept"]) <= 0.0625 + 1e-3


def test_a_gradient_that_is_no_number_reaches_all_ranks(found: list[dict[str, Any]]) -> None:
    """Also where entries before it take all the room: a rank that did not see it would train on with other weights."""
    for rank in found:
        assert rank["broken"] == {"one": True, "many": True}


def test_only_replicated_units_of_the_dense_part_are_encoded(tmp_path: Path, ranks: RankServer) -> None:
    """Sharded units and tables with a copy on each device exchange exact gradients, and leave nothing over.

    A checkpoint goes on under another layout: what was left over is sent for the units that are replicated then.
    """
    for rank in ranks.found(Path(__file__).with_name("gradient_layout_worker.py"), folder=tmp_path, count=2):
        assert rank["hooks"] == {"dense part": 1, "tables": 0}
        assert len(rank["carried"]) >= 6
        assert not rank["carried by a sharded unit"]
        assert rank["resumed"] == rank["replicated in both"]
        assert rank["equal"]


def test_a_job_trains_and_resumes_with_gradients_that_are_carried(tmp_path: Path, ranks: RankServer) -> None:
    """Its documents have what really ran, and its checkpoints what was left over of each parameter's gradient."""
    exchange = GradientExchange(type=GradientType.THRESHOLD)
    plan = write_plan(tmp_path, plan_of(world_size=2, batch_size_per_device=16, gradients=exchange))
    communication = {
        "embeddings": {"forward": ["FP32"], "backward": ["FP32"]},
        "dense": ["Threshold"],
        "guard": {"checkEverySteps": 2},
    }
    for max_steps in (6, 10):
        training = {"maxSteps": max_steps, "logEverySteps": 2, "communication": {"policy": "Fixed"}}
        job = write_job(
            tmp_path, job_data(world_size=2, training=training, experimental={"communication": communication})
        )
        arguments = [str(job), "--plan", str(plan), "--run-dir", str(tmp_path / "run")]
        ranks.succeed("neuroshard_trainer.__main__:main", arguments, folder=tmp_path, count=2)

    run = tmp_path / "run"
    progress = TrainingProgress.read(run / "progress.json")
    assert progress.step == 10
    assert progress.gradient_guard is not None
    assert progress.gradient_guard.num_checks >= 2
    assert LiveSharding.read(run / "live-sharding.json").gradients == exchange
    measured = StepReport.read(run / "step-report.json").gradients
    assert measured is not None
    assert measured.is_encoded
    assert measured.kept_percent
    folder = run / "checkpoints" / "step-00000006"
    assert CheckpointManifest.read(folder / "checkpoint.json").carries_gradients
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    assert "carried_gradients.over_arch.model.1.weight" in saved
