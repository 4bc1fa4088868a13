"""The trainer as a command, on a process group of one."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.batch_choice import BatchDecision, TriedBatch
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.sharding.live_sharding import LiveSharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from support import builders
from support.mounts import mounted
from support.trainer.data_builders import npz_arrays
from support.trainer.trained_runs import WHOLE, Run, progress, saved_steps, weights_hash
from support.trainer.trainer_builders import TABLES, plan_of, write_plan


def test_a_run_leaves_its_documents(run: Run, tmp_path: Path) -> None:
    """Progress, step report, the live sharding and a checkpoint; the planted signal is learned."""
    assert run(data={"numSamples": 4000}, training={"epochs": 2, "embeddingLearningRate": "0.1"}) == ExitCode.OK

    folder = tmp_path / "run"
    done = progress(folder)
    assert (done.step, done.num_steps) == (450, 450)
    assert done.metrics["auc"] > 0.7
    assert done.metrics["normalized_entropy"] < 0.95
    assert done.checkpoint_step == 450
    report = StepReport.read(folder / "step-report.json")
    live = LiveSharding.read(folder / "live-sharding.json")
    assert report.plan_sha256 == live.plan_sha256
    assert (report.first_step, report.num_steps, len(report.ranks)) == (350, 100, 1)
    assert report.source.startswith("cpu:")
    assert report.samples_per_second == pytest.approx(16 * 1000 / report.ranks[0].step_ms)
    assert (report.ranks[0].peak_memory_bytes or 0) > 2**20
    assert {name: len(shards) for name, shards in live.tables.items()} == {"user": 1, "item": 1, "country": 1}


def test_the_last_steps_have_a_loss(run: Run, tmp_path: Path) -> None:
    """Of a training whose steps are no multiple of those between two lines, or too few for one."""
    assert run(training={"logEverySteps": 9}) == ExitCode.OK
    assert run(run_dir="short", training={"logEverySteps": 100}) == ExitCode.OK

    assert [each.step for each in progress(tmp_path / "run").losses] == [9, 18, WHOLE]
    short = progress(tmp_path / "short")
    assert [each.metrics["loss"] for each in short.losses] == [short.metrics["loss"]]


def test_a_trial_leaves_the_times_of_its_steps_alone(run: Run, tmp_path: Path) -> None:
    """Of all but the warm-up; no checkpoint, no metrics, and no drift of so few steps."""
    assert run("--trial-steps", "40", data={"numSamples": 4000}) == ExitCode.OK

    folder = tmp_path / "run" / "trial"
    report = StepReport.read(folder / "step-report.json")
    assert [each.name for each in folder.parent.iterdir()] == ["trial"]
    assert (report.first_step, report.num_steps) == (10, 30)
    assert (report.num_timed_steps or 0) >= 5
    assert saved_steps(folder) == []
    assert not [name for name in ("progress.json", "drift-report.json") if (folder / name).exists()]


def test_a_trial_that_the_data_end_leaves_its_warm_up_out(run: Run, tmp_path: Path) -> None:
    """Of a training with fewer steps than are asked for."""
    assert run("--trial-steps", "40") == ExitCode.OK

    report = StepReport.read(tmp_path / "run" / "trial" / "step-report.json")
    assert (report.first_step, report.num_steps) == (10, WHOLE - 10)


@pytest.mark.parametrize(("enough", "reported"), [(1, True), (10, False)])
def test_a_trial_ends_when_its_time_is_over(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, enough: int, reported: bool
) -> None:
    """Steps that are far slower than predicted are reported where there are enough of them; others say little."""
    monkeypatch.setattr("neuroshard_trainer.run.MOST_SECONDS", 1e-9)
    monkeypatch.setattr("neuroshard_trainer.run.WARM_UP_STEPS", 1)
    monkeypatch.setattr("neuroshard_trainer.training.LEAST_TIMED_STEPS", enough)

    assert run("--trial-steps", "40", data={"numSamples": 4000}) == ExitCode.OK

    file = tmp_path / "run" / "trial" / "step-report.json"
    assert file.exists() == reported
    assert not reported or StepReport.read(file).first_step == 1
    assert not reported or StepReport.read(file).num_steps < 10
    assert saved_steps(file.parent) == []


def test_a_table_of_means_is_trained_as_one(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels are proven to average, the weights become others, and sums do not resume from them."""
    means = (TABLES[0].model_copy(update={"pooling": Pooling.MEAN}), *TABLES[1:])
    assert run(run_dir="sums") == ExitCode.OK

    write_plan(tmp_path, plan_of(tables=means))
    assert run(tables=means) == ExitCode.OK
    assert weights_hash(tmp_path / "run") != weights_hash(tmp_path / "sums")

    write_plan(tmp_path, plan_of())
    assert run() == ExitCode.INVALID_INPUT
    assert "was trained with spec.model.embeddingTables" in capsys.readouterr().err


@pytest.mark.slow
def test_a_large_plan_is_read_as_its_config_map_holds_it(run: Run, tmp_path: Path) -> None:
    """Compressed, since it is above half a megabyte; reports name it by the hash of the plan itself."""
    name = "a_name_as_long_as_some_that_data_pipelines_give_to_crossed_and_hashed_features_of_items_users_and_sessions"
    tables = [
        builders.table(
            f"{name}_{index}",
            num_embeddings=8,
            embedding_dim=4,
            feature_names=(f"{name}_{index}_clicked", f"{name}_{index}_bought"),
            reuse_histogram=(0.3, *[0.7 / 16] * 16),
        )
        for index in range(500)
    ]
    text = plan_of(tables=tables).to_json().encode()
    folder = mounted({"plan.json": text}, tmp_path / "plan")
    assert [path.name for path in folder.iterdir()] == ["plan.json.gz"]

    code = run("--plan", str(folder / "plan.json.gz"), tables=tables, data={"numSamples": 16, "validationPercent": 0})

    assert code == ExitCode.OK
    live = LiveSharding.read(tmp_path / "run" / "live-sharding.json")
    assert live.plan_sha256 == hashlib.sha256(text).hexdigest()
    assert len(live.tables) == 500


EVERY_PART_USED = {"evalEverySteps": 7, "gradientClipNorm": "0.5", "learningRateSchedule": {"warmupSteps": 5}}


def test_a_pipelined_run_ends_as_a_plain_one(run: Run, tmp_path: Path) -> None:
    """To the last bit, with evaluations in between that use the model outside of the pipeline, and with a resume."""
    for pipeline in ("None", "SparseDist"):
        assert run(run_dir=pipeline, training=EVERY_PART_USED, experimental={"pipeline": pipeline}) == ExitCode.OK
    for steps in (9, WHOLE):
        assert run(training={"maxSteps": steps, **EVERY_PART_USED}) == ExitCode.OK

    assert weights_hash(tmp_path / "SparseDist") == weights_hash(tmp_path / "None") == weights_hash(tmp_path / "run")
    assert progress(tmp_path / "SparseDist").metrics == progress(tmp_path / "None").metrics


@pytest.mark.processes
@pytest.mark.parametrize("pipeline", ["None", "SparseDist"])
def test_bf16_learns_as_well(run: Run, tmp_path: Path, pipeline: str) -> None:
    """The planted signal is found with the dense part's products in BF16; the weights stay FP32."""
    training = {"epochs": 2, "embeddingLearningRate": "0.1", "precision": "BF16"}
    assert run(data={"numSamples": 4000}, training=training, experimental={"pipeline": pipeline}) == ExitCode.OK

    assert progress(tmp_path / "run").metrics["auc"] > 0.7


def test_labels_of_one_kind_are_the_reason_for_no_auc(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has their number and value, in the place of metrics."""
    arrays = npz_arrays(200, [table.name for table in TABLES], num_dense=3)
    values = {name: each % 7 for name, each in arrays.items() if name.endswith("values")}
    np.savez(tmp_path / "data.npz", **arrays | values | {"label": np.zeros(200)})

    assert run(data={"format": "NPZ", "path": "data.npz", "numSamples": None}) == ExitCode.OK

    assert ": no auc: all 20 held-out labels are 0, " in caplog.text
    assert set(progress(tmp_path / "run").metrics) == {"loss"}


def test_a_batch_that_leaves_few_steps_in_an_epoch_is_warned_of(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the plan chose it: nothing counts the samples of files before. 360 of 400 samples are trained on."""
    chosen = BatchDecision(tried=(TriedBatch(samples_per_device=16, samples_per_second=1.0),))
    write_plan(tmp_path, plan_of(batch_size_per_device=16).model_copy(update={"batch": chosen}))

    assert run(model={"batchSizePerDevice": "Auto"}) == ExitCode.OK

    assert "the plan's batch leaves 22 steps in an epoch of 360 samples; hint: give a number, such as 2" in caplog.text
    assert "16 samples per device by the plan; learning rates of embeddings 3.90625e-05" in caplog.text
    assert progress(tmp_path / "run").step == 22


def test_training_ends_at_its_target(run: Run, tmp_path: Path) -> None:
    """At the first evaluation whose AUC less its error is there; the state of that step is saved."""
    spec = {"data": {"numSamples": 4000}, "checkpoint": {"everySteps": 100}}
    training = {"epochs": 9, "embeddingLearningRate": "0.1", "evalEverySteps": 50, "targetAuc": "0.6"}

    assert run(**spec, training=training) == ExitCode.OK

    done = progress(tmp_path / "run")
    assert done.step < (done.num_steps or 0)
    assert done.step % 50 == 0
    assert done.metrics["auc"] - done.metrics["auc_error"] >= 0.6
    assert done.checkpoint_step == done.step
    report = StepReport.read(tmp_path / "run" / "step-report.json")
    assert report.first_step + report.num_steps == done.step


def test_a_node_is_ready_when_its_first_process_trains(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone who asks for the file by the variable finds it once the live sharding has proven to be the plan."""
    ready = tmp_path / "ready"
    monkeypatch.setenv("NEUROSHARD_READY_FILE", str(ready))
    with monkeypatch.context() as other_plan:
        cut = sharding_plan(plan_of({"user": ((0, 16), (0, 16))}), module_path=TABLES_PATH, compute_device="cpu")
        other_plan.setattr("neuroshard_trainer.run.sharding_plan", lambda *_, **__: cut)
        assert run() == ExitCode.INVALID_INPUT
        assert not ready.exists()
    assert run(training={"maxSteps": 2}) == ExitCode.OK

    assert ready.exists()


def test_a_worker_is_told_that_its_checkpoints_die_with_its_pod(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable; elsewhere they are kept."""
    kept: list[bool] = []
    monkeypatch.setattr("neuroshard_trainer.run.train", lambda _, places, **__: kept.append(places.keeps_checkpoints))
    assert run() == ExitCode.OK
    monkeypatch.setenv("NEUROSHARD_CHECKPOINTS_LOST", "1")
    assert run() == ExitCode.OK

    assert kept == [True, False]


def test_a_plan_with_narrow_types_is_guarded(run: Run, tmp_path: Path) -> None:
    """Progress, checkpoints, live sharding, and step reports tell of it; a restart goes on with the guard's record."""
    wire = WireTypes(forward=WireType.INT8, backward=WireType.FP16)
    write_plan(tmp_path, plan_of(wire=wire))
    types = {"forward": ["INT8"], "backward": ["FP16"]}
    guarded = {"communication": {"embeddings": types, "guard": {"checkEverySteps": 5}}}
    training: dict[str, Any] = {"maxSteps": 12, "communication": {"policy": "Fixed"}}

    assert run(training=training, experimental=guarded) == ExitCode.OK

    guard = TrainingProgress.read(tmp_path / "run" / "progress.json").guard
    assert guard is not None
    assert (guard.state, guard.num_checks, guard.change_percent) == ("Narrow", 2, 0.0)  # one rank exchanges nothing
    assert json.loads((tmp_path / "run" / "live-sharding.json").read_text())["wire"] == wire.model_dump()
    report = StepReport.read(tmp_path / "run" / "step-report.json").communication
    assert report is not None
    assert (report.forward, report.backward, report.is_encoded, report.forward_bytes) == ("INT8", "FP16", True, 0.0)
    assert run(training={**training, "maxSteps": 16}, experimental=guarded) == ExitCode.OK
    resumed = TrainingProgress.read(tmp_path / "run" / "progress.json").guard
    assert resumed is not None
    assert resumed.num_checks == 3
