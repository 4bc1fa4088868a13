"""The trainer as a command, on a process group of one."""

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.request import MemorySettings
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import DataType, Pooling
from neuroshard_api.process.errors import DataError, InputError, StorageError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.__main__ import main
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.metrics import Evaluation
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.ranks.stopping import StepVote, Wish
from neuroshard_trainer.sharding.live_sharding import LiveSharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.state import checkpoint as checkpoint_module
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.training import TrainingLoop
from support import builders
from support.mounts import mounted
from support.trainer.data_builders import npz_arrays
from support.trainer.trainer_builders import TABLES, Cuts, job_data, plan_of, write_job, write_plan

Run = Callable[..., ExitCode]
WHOLE = 22
"""Steps of the small job: 360 training samples by 16."""


def progress(folder: Path) -> TrainingProgress:
    """Return the progress of a run."""
    return TrainingProgress.read(folder / "progress.json")


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def weights_hash(folder: Path, step: int = WHOLE) -> dict[str, str]:
    """Return the hashes of a checkpoint's tensors."""
    manifest = CheckpointManifest.read(folder / "checkpoints" / f"step-{step:08d}" / "checkpoint.json")
    return {name: digest for name, digest in manifest.files.items() if name != ".metadata"}


def checkpoint_of(folder: Path, step: int) -> dict[str, bytes]:
    """Return the files of a checkpoint."""
    found = folder / "checkpoints" / f"step-{step:08d}"
    return {path.name: path.read_bytes() for path in found.iterdir()}


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


def test_a_continued_run_ends_as_one_that_was_not_stopped(run: Run, tmp_path: Path) -> None:
    """To the last bit: weights, both optimizers, and the position in the data."""
    assert run(run_dir="whole") == ExitCode.OK

    assert run(training={"maxSteps": 9}) == ExitCode.OK
    assert saved_steps(tmp_path / "run") == [9]
    assert run() == ExitCode.OK

    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert progress(tmp_path / "run").metrics["auc"] == progress(tmp_path / "whole").metrics["auc"]


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
        assert run(run_dir=pipeline, training={"pipeline": pipeline, **EVERY_PART_USED}) == ExitCode.OK
    for steps in (9, WHOLE):
        assert run(training={"pipeline": "SparseDist", "maxSteps": steps, **EVERY_PART_USED}) == ExitCode.OK

    assert weights_hash(tmp_path / "SparseDist") == weights_hash(tmp_path / "None") == weights_hash(tmp_path / "run")
    assert progress(tmp_path / "SparseDist").metrics == progress(tmp_path / "None").metrics


@pytest.mark.processes
@pytest.mark.parametrize("pipeline", ["None", "SparseDist"])
def test_bf16_learns_as_well(run: Run, tmp_path: Path, pipeline: str) -> None:
    """The planted signal is found with the dense part's products in BF16; the weights stay FP32."""
    training = {"epochs": 2, "embeddingLearningRate": "0.1", "precision": "BF16", "pipeline": pipeline}
    assert run(data={"numSamples": 4000}, training=training) == ExitCode.OK

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


def damage_bytes(folder: Path) -> None:
    """Flip a bit in the middle of the tensors."""
    file = folder / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        damage_bytes,
        lambda folder: (folder / ".metadata").unlink(),
        lambda folder: (folder / "checkpoint.json").write_text("{"),
    ],
    ids=["a flipped bit", "a missing file", "a cut manifest"],
)
def test_a_damaged_checkpoint_is_passed_over(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    """Training goes on from the one before, and comes to the same end."""
    run(checkpoint={"everySteps": 6, "keep": 2}, training={"maxSteps": 15})
    folder = tmp_path / "run"
    assert saved_steps(folder) == [12, 15]
    before = weights_hash(folder, 15)
    damage(folder / "checkpoints" / "step-00000015")

    assert run(training={"maxSteps": 15}) == ExitCode.OK

    assert "step-00000015 is damaged" in caplog.text + capsys.readouterr().out
    assert weights_hash(folder, 15) == before


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        pytest.param({"everySeconds": 5, "keep": 9}, [7, 14, 21, WHOLE], id="by time"),
        pytest.param({"everySeconds": 5, "everySteps": 8, "keep": 9}, [7, 8, 15, 16, WHOLE], id="by both"),
        pytest.param({}, [WHOLE], id="no volume"),
        pytest.param({"persistentVolumeClaim": {"claimName": "c"}, "everySeconds": 0}, [WHOLE], id="none by time"),
    ],
)
def test_a_checkpoint_is_written_when_its_time_has_come(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: dict[str, Any], expected: list[int]
) -> None:
    """A step takes 1 s here; the ranks agree on a checkpoint in the step after it is due. Any checkpoint counts."""
    steps: list[Wish] = []
    vote_of_all = StepVote.wish

    def wish(vote: StepVote, *, save_is_due: bool, save_has_failed: bool) -> Wish:
        steps.append(vote_of_all(vote, save_is_due=save_is_due, save_has_failed=save_has_failed))
        return steps[-1]

    defaults: Any = TrainingLoop.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "clock", lambda: float(len(steps)))
    monkeypatch.setattr(StepVote, "wish", wish)
    run(checkpoint=checkpoint)

    assert saved_steps(tmp_path / "run") == expected


@pytest.mark.parametrize("cuts", [{}, {"user": ((0, 16), (0, 16))}], ids=["whole", "cut"])
def test_training_continues_while_a_checkpoint_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: Cuts
) -> None:
    """The state of step 8 is written when step 12 is done, and is that of step 8 bit by bit."""
    write_plan(tmp_path, plan_of(cuts))
    num_steps = 0
    is_ahead = threading.Event()
    loss_of, save = TrainingLoop._loss, CheckpointFolder.save

    def loss(loop: TrainingLoop, batch: Batch) -> torch.Tensor:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 13:
            is_ahead.set()
        return loss_of(loop, batch)

    def save_later(folder: CheckpointFolder, state: Any, manifest: CheckpointManifest) -> Path:
        assert is_ahead.wait(timeout=60)
        return save(folder, state, manifest)

    spec = {"everySteps": 8, "keep": 9}
    assert run(checkpoint=spec, run_dir="waits") == ExitCode.OK
    monkeypatch.setattr(TrainingLoop, "_loss", loss)
    monkeypatch.setattr(CheckpointFolder, "save", save_later)
    assert run(checkpoint={**spec, "inBackground": True}) == ExitCode.OK

    assert saved_steps(tmp_path / "run") == [8, 16, WHOLE]
    for step in (8, 16, WHOLE):
        assert weights_hash(tmp_path / "run", step) == weights_hash(tmp_path / "waits", step)
    assert progress(tmp_path / "run").checkpoint_step == WHOLE


def test_one_checkpoint_is_in_flight_at_most(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one is due in every step, each waits for the one before it."""
    in_flight: list[int] = []
    most = 0
    save = CheckpointFolder.save

    def counted(folder: CheckpointFolder, state: Any, manifest: CheckpointManifest) -> Path:
        nonlocal most
        in_flight.append(manifest.step)
        most = max(most, len(in_flight))
        try:
            return save(folder, state, manifest)
        finally:
            in_flight.remove(manifest.step)

    monkeypatch.setattr(CheckpointFolder, "save", counted)
    assert run(checkpoint={"everySteps": 1, "keep": 99, "inBackground": True}, training={"maxSteps": 9}) == ExitCode.OK

    assert most == 1
    assert saved_steps(tmp_path / "run") == list(range(1, 10))


@pytest.mark.parametrize("error", [InputError, DataError])
def test_a_checkpoint_in_flight_outlives_an_error_of_the_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[InputError]
) -> None:
    """It becomes whole before the process ends, although its writing had only begun when step 9 failed."""
    has_failed = threading.Event()
    save, loss_of = CheckpointFolder.save, TrainingLoop._loss
    num_steps = 0

    def save_later(folder: CheckpointFolder, state: Any, manifest: CheckpointManifest) -> Path:
        assert has_failed.wait(timeout=60)
        time.sleep(0.2)  # an end that waits for nothing has come by then
        return save(folder, state, manifest)

    def loss(loop: TrainingLoop, batch: Batch) -> torch.Tensor:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 9:
            has_failed.set()
            raise error("step 9 cannot be done")
        return loss_of(loop, batch)

    monkeypatch.setattr(CheckpointFolder, "save", save_later)
    monkeypatch.setattr(TrainingLoop, "_loss", loss)

    assert run(checkpoint={"everySteps": 8, "inBackground": True}) == ExitCode.INVALID_INPUT

    assert saved_steps(tmp_path / "run") == [8]


def test_a_disk_that_is_full_in_the_background_ends_training_in_a_sentence(
    run: Run, tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the next checkpoint is due; the newest whole one is resumed from, and nothing of it is lost."""
    spec = {"checkpoint": {"everySteps": 4, "inBackground": True}, "data": {"numSamples": 40_000}}
    folder, filler = small_disk / "run", small_disk / "filler"
    assert run(**spec, run_dir="disk/run", training={"maxSteps": 4}) == ExitCode.OK
    whole = checkpoint_of(folder, 4)
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 700_000))

    assert run(**spec, run_dir="disk/run", training={"maxSteps": 2000}) == ExitCode.STORAGE

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "the disk is full: a checkpoint needs" in line
    assert saved_steps(folder) == [4]
    assert checkpoint_of(folder, 4) == whole
    filler.unlink()
    assert run(**spec, run_dir="disk/run", training={"maxSteps": 10}) == ExitCode.OK
    assert run(**spec, run_dir="whole", training={"maxSteps": 10}) == ExitCode.OK
    assert weights_hash(tmp_path / "whole", 10) == weights_hash(folder, 10)


def test_unfinished_checkpoints_are_removed(run: Run, tmp_path: Path) -> None:
    """What a killed run left in the middle of writing is none."""
    part = tmp_path / "run" / "checkpoints" / ".step-00000099.part"
    part.mkdir(parents=True)

    assert run() == ExitCode.OK

    assert saved_steps(tmp_path / "run") == [WHOLE]
    assert not part.exists()


def test_resume_policy_none_begins_anew(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint of a later step stays, and a warning names it; one of the same step is replaced by the new run's."""
    run(training={"maxSteps": 9})
    again = {"checkpoint": {"resumePolicy": "None"}, "training": {"seed": 1, "maxSteps": 5}}

    assert run(**again) == ExitCode.OK
    assert progress(tmp_path / "run").step == 5
    assert saved_steps(tmp_path / "run") == [5, 9]
    assert f"{tmp_path / 'run' / 'checkpoints' / 'step-00000009'} of an earlier run stays" in caplog.text
    replaced = weights_hash(tmp_path / "run", 9)

    assert run(checkpoint={"resumePolicy": "None"}, training={"seed": 1, "maxSteps": 9}) == ExitCode.OK
    assert weights_hash(tmp_path / "run", 9) != replaced


def test_a_finished_run_is_evaluated_only(run: Run, tmp_path: Path) -> None:
    """Starting it again trains no further."""
    run()
    before = progress(tmp_path / "run")

    assert run() == ExitCode.OK

    assert progress(tmp_path / "run").step == before.step == WHOLE
    assert progress(tmp_path / "run").metrics["auc"] == before.metrics["auc"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"training": {"seed": 1}}, "was trained with spec.training.seed = 0, the job has 1"),
        ({"model": {"overArchLayerSizes": [4]}}, "was trained with spec.model.architecture"),
        ({"data": {"numSamples": 500}}, r"was trained with spec.data (training samples) = 360"),
    ],
    ids=["seed", "model", "data"],
)
def test_a_checkpoint_of_another_job_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], expected: str
) -> None:
    """Neither its tensors nor its position would mean the same."""
    run(training={"maxSteps": 2})

    assert run(**spec) == ExitCode.INVALID_INPUT

    message = capsys.readouterr().err
    assert expected in message
    assert "resumePolicy: None" in message


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"data": {"format": "CriteoTSV", "path": "none.tsv", "numSamples": None}}, "none.tsv does not exist"),
        ({"data": {"format": "Parquet", "path": "x.csv", "numSamples": None}}, "x.csv: is not a Parquet file"),
        ({"model": {"batchSizePerDevice": 400}}, "there are 360 training samples and one step takes 400"),
        ({"model": {"embeddingOptimizer": "Adam"}}, "FBGEMM has no training kernel with adam"),
        ({"training": {"steps": 3}}, "spec.training.steps: is not a known key"),
        (
            {"training": {"embeddingLearningRate": "1e30"}},
            "the loss is nan; hint: lower spec.training.embeddingLearningRate",
        ),
    ],
    ids=["no data", "other data", "too little data", "no kernel", "unknown field", "diverges"],
)
def test_a_job_that_cannot_be_trained_ends_in_a_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], expected: str
) -> None:
    """One line, which begins with the rank, and the code of invalid input."""
    (tmp_path / "x.csv").write_text("a,b\n")

    assert run(**spec) == ExitCode.INVALID_INPUT

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: rank 0: ")
    assert expected in line


def test_a_model_that_diverges_in_the_last_step_ends_in_a_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss was finite before the step; the evaluation finds out, and the checkpoint of the step is named."""
    assert run(training={"embeddingLearningRate": "1e30", "maxSteps": 1}) == ExitCode.INVALID_INPUT

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(r"step 1: \d+ of 40 logits of the evaluation are not finite; hint: lower spec.training", line)
    assert f"remove {tmp_path / 'run' / 'checkpoints' / 'step-00000001'} to start from the first step" in line


def test_a_diverged_model_is_named_before_a_checkpoint_that_failed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk fills up while the last checkpoint is written in the background: more storage would not help."""
    evaluated = threading.Event()

    def full(_part: Path, _needed_bytes: int) -> None:
        assert evaluated.wait(timeout=60)
        raise StorageError("the disk is full")

    def diverged(_evaluation: Evaluation) -> dict[str, float]:
        evaluated.set()
        raise InputError("3 of 40 logits of the evaluation are not finite")

    monkeypatch.setattr(checkpoint_module, "_make_room", full)
    monkeypatch.setattr(Evaluation, "compute", diverged)

    assert run(checkpoint={"inBackground": True}, training={"maxSteps": 3}) == ExitCode.INVALID_INPUT

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.endswith("3 of 40 logits of the evaluation are not finite")
    assert saved_steps(tmp_path / "run") == []


def test_a_diverged_checkpoint_has_one_before_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although only one is kept: the advice of the evaluation can be followed."""

    def diverged(_evaluation: Evaluation) -> dict[str, float]:
        raise InputError("3 of 40 logits of the evaluation are not finite")

    spec = {"checkpoint": {"everySteps": 4, "keep": 1}, "training": {"maxSteps": 9, "evalEverySteps": 100}}
    newest = tmp_path / "run" / "checkpoints" / "step-00000009"
    with monkeypatch.context() as diverging:
        diverging.setattr(Evaluation, "compute", diverged)
        assert run(**spec) == ExitCode.INVALID_INPUT
    assert f"; hint: remove {newest} to resume from the one before" in capsys.readouterr().err
    assert saved_steps(tmp_path / "run") == [8, 9]

    shutil.rmtree(newest)
    assert run(**spec) == ExitCode.OK
    assert saved_steps(tmp_path / "run") == [9]


def test_a_diverged_model_is_not_saved(run: Run, tmp_path: Path) -> None:
    """Checkpoints hold no state after a loss that is not finite, also where no line of the log was due."""
    training = {"embeddingLearningRate": "1e30", "logEverySteps": 100}

    assert run(training=training, checkpoint={"everySteps": 4}) == ExitCode.INVALID_INPUT

    assert saved_steps(tmp_path / "run") == []


@pytest.mark.parametrize("eval_every_steps", [9, 100], ids=["between steps", "the last one"])
def test_sigterm_during_an_evaluation_loses_no_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eval_every_steps: int
) -> None:
    """The evaluation ends at its next batch, the step is saved, and a second start goes on from it."""
    evaluated_samples = 0
    take_in = Evaluation.add

    def add(evaluation: Evaluation, logits: torch.Tensor, labels: torch.Tensor) -> None:
        nonlocal evaluated_samples
        evaluated_samples += len(logits)
        take_in(evaluation, logits, labels)
        os.kill(os.getpid(), signal.SIGTERM)

    step = min(eval_every_steps, 12)
    spec = {"data": {"validationPercent": 50}, "training": {"evalEverySteps": eval_every_steps}}
    defaults: Any = TrainingLoop.__init__.__kwdefaults__
    with monkeypatch.context() as stopping:
        stopping.setattr(Evaluation, "add", add)
        stopping.setitem(defaults, "clock", itertools.count().__next__)  # a vote in each step
        assert run(**spec) == ExitCode.STOPPED
    assert evaluated_samples < 200
    assert saved_steps(tmp_path / "run") == [step]

    assert run(**spec) == ExitCode.OK
    assert run(**spec, run_dir="whole") == ExitCode.OK
    assert weights_hash(tmp_path / "run", 12) == weights_hash(tmp_path / "whole", 12)


def test_a_finished_checkpoint_is_not_written_again(run: Run, tmp_path: Path) -> None:
    """A start that finds nothing left to train replaces nothing, so that an interruption can lose nothing."""
    run()
    written = (tmp_path / "run" / "checkpoints" / f"step-{WHOLE:08d}").stat()

    assert run() == ExitCode.OK

    found = (tmp_path / "run" / "checkpoints" / f"step-{WHOLE:08d}").stat()
    assert (found.st_ino, found.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


@pytest.mark.parametrize("pipeline", ["None", "SparseDist"])
def test_a_trace_has_a_range_for_each_phase(run: Run, tmp_path: Path, pipeline: str) -> None:
    """Of the steps that were asked for, in the format that Chrome and Perfetto read."""
    training = {"pipeline": pipeline, "maxSteps": 9, "evalEverySteps": 4}
    checkpoint = {"everySteps": 4, "inBackground": True}

    assert run("--trace-steps", "3:6", training=training, checkpoint=checkpoint) == ExitCode.OK

    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    counts = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    wanted = {"wait for data": 3, "optimizer": 3, "evaluation": 1, "copy of the state": 1}
    assert {phase: counts[f"neuroshard/{phase}"] for phase in wanted} == wanted
    assert counts["neuroshard/forward"] == 3
    assert counts["neuroshard/backward"] == (3 if pipeline == "None" else 0)  # the pipeline has its own
    own_ranges = sum(count for name, count in counts.items() if name.startswith("## backward"))
    assert own_ranges == (0 if pipeline == "None" else 3)


def test_a_trace_that_cannot_be_written_changes_no_outcome(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a warning, and the training ends as without a trace."""
    (tmp_path / "run" / "trace.json").mkdir(parents=True)

    assert run("--trace-steps", "3:6", training={"maxSteps": 9}) == ExitCode.OK

    assert "trace.json: the trace cannot be written (" in caplog.text
    assert saved_steps(tmp_path / "run") == [9]


def test_steps_that_are_never_trained_are_not_traced_with_a_warning(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They may lie behind the end, or before the step that is resumed from."""
    for steps, max_steps in (("100:105", 9), ("3:6", 12)):
        caplog.clear()
        assert run("--trace-steps", steps, training={"maxSteps": max_steps}) == ExitCode.OK
        assert "of which a trace was asked for, lie before the first step" in caplog.text
    assert not (tmp_path / "run" / "trace.json").exists()


@pytest.mark.parametrize("steps", ["5", "5:", "7:5", "a:b", "-1:4", "1:" + "9" * 5000])
def test_steps_that_cannot_be_traced_are_refused(run: Run, capsys: pytest.CaptureFixture[str], steps: str) -> None:
    """Before training."""
    assert run(f"--trace-steps={steps}") == ExitCode.INVALID_INPUT

    assert f"--trace-steps: {steps[:40]!r} is not FIRST:END" in capsys.readouterr().err


def test_tensorboard_without_its_package_is_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the field and the package, with the code of a missing one, before a step is taken."""
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)

    assert run(training={"tensorboard": True}) == ExitCode.MISSING_PACKAGE

    assert "spec.training.tensorboard needs tensorboard" in capsys.readouterr().err


def test_tensorboard_shows_losses_and_metrics_of_a_resumed_run(run: Run, tmp_path: Path) -> None:
    """Each step once, also those that an interrupted start took after its last checkpoint."""
    from tensorboard.backend.event_processing import event_accumulator as accumulators

    training = {"tensorboard": True, "evalEverySteps": 10}
    assert run(training={**training, "maxSteps": 15}, checkpoint={"everySteps": 10}) == ExitCode.OK
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000015")

    assert run(training=training) == ExitCode.OK

    events = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [5, 10, 15, 20]
    assert [event.step for event in events.Scalars("auc")] == [10, 20, WHOLE]
    assert events.Scalars("auc")[-1].value == pytest.approx(progress(tmp_path / "run").metrics["auc"])


def test_an_id_out_of_range_is_named(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, row, feature, and the rows that there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 100
    columns: dict[str, list[Any]] = {name: [0] * count for name in ("label", "item", "country")}
    columns |= {f"dense_{position}": [0.5] * count for position in range(3)}
    pq.write_table(pa.table({**columns, "user": [[5]] * 40 + [[1, 60]] * 60}), tmp_path / "x.parquet")

    assert run(data={"format": "Parquet", "path": "x.parquet", "numSamples": None}) == ExitCode.INVALID_INPUT

    found = re.search(
        r"x.parquet row (\d+): 'user' looks up row 60, table 'user' has rows 0 to 59", capsys.readouterr().err
    )
    assert found is not None
    assert 40 <= int(found[1]) < 100


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


def test_a_job_for_gpus_is_not_trained_on_a_cpu(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is asked for, before any process is met."""
    gpus = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    assert run(trainer=gpus) == ExitCode.INVALID_INPUT
    assert "spec.trainer.resourcesPerNode asks for 1 GPUs per node, but" in capsys.readouterr().err

    assert run("--device", "cpu", trainer=gpus, training={"maxSteps": 1}) == ExitCode.OK


def test_a_plan_whose_gradients_would_vanish_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pooled embeddings of FP16 have gradients of FP16."""
    write_plan(tmp_path, plan_of(memory=MemorySettings(output_data_type=DataType.FP16)))

    assert run() == ExitCode.INVALID_INPUT

    assert "pooled embeddings of type FP16, in which gradients of a mean loss become 0" in capsys.readouterr().err


def test_a_plan_with_narrow_types_is_guarded(run: Run, tmp_path: Path) -> None:
    """Progress, checkpoints, live sharding, and step reports tell of it; a restart goes on with the guard's record."""
    wire = WireTypes(forward=WireType.INT8, backward=WireType.FP16)
    write_plan(tmp_path, plan_of(wire=wire))
    types = {"forward": ["INT8"], "backward": ["FP16"]}
    guarded = {"policy": "Fixed", "embeddings": types, "guard": {"checkEverySteps": 5}}
    training: dict[str, Any] = {"maxSteps": 12, "communication": guarded}

    assert run(training=training) == ExitCode.OK

    guard = TrainingProgress.read(tmp_path / "run" / "progress.json").guard
    assert guard is not None
    assert (guard.state, guard.num_checks, guard.change_percent) == ("Narrow", 2, 0.0)  # one rank exchanges nothing
    assert json.loads((tmp_path / "run" / "live-sharding.json").read_text())["wire"] == wire.model_dump()
    report = StepReport.read(tmp_path / "run" / "step-report.json").communication
    assert report is not None
    assert (report.forward, report.backward, report.is_encoded, report.forward_bytes) == ("INT8", "FP16", True, 0.0)
    assert run(training={**training, "maxSteps": 16}) == ExitCode.OK
    resumed = TrainingProgress.read(tmp_path / "run" / "progress.json").guard
    assert resumed is not None
    assert resumed.num_checks == 3


def test_narrow_types_without_held_out_samples_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would see what they do to the accuracy."""
    write_plan(tmp_path, plan_of(wire=WireTypes(forward=WireType.INT8)))

    assert run(data={"validationPercent": 0}) == ExitCode.INVALID_INPUT

    assert "INT8 forward, FP32 backward, and there are no held-out samples to guard" in capsys.readouterr().err


def test_a_plan_for_more_processes_is_refused(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence has both numbers."""
    write_plan(tmp_path, plan_of(world_size=2))

    assert run() == ExitCode.INVALID_INPUT

    assert "is for 2 devices, there are 1 processes" in capsys.readouterr().err


def test_a_taken_metrics_port_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Before training."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 - where the server would listen
        taken.listen()

        assert run("--metrics-port", str(taken.getsockname()[1])) == ExitCode.INVALID_INPUT

    assert "cannot be served (Address already in use)" in capsys.readouterr().err


def test_an_unreadable_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the file's name."""
    places = ["--plan", "plan.json", "--run-dir", str(tmp_path)]

    assert main([str(tmp_path / "job.yaml"), *places]) == ExitCode.INVALID_INPUT

    assert "job.yaml: does not exist" in capsys.readouterr().err


def test_without_torchrun_the_trainer_says_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one process of several."""
    monkeypatch.delenv("RANK", raising=False)
    job = write_job(tmp_path, job_data())

    assert main([str(job), "--plan", "plan.json", "--run-dir", str(tmp_path)]) == ExitCode.INVALID_INPUT

    assert "RANK is not set; hint: start with `torchrun" in capsys.readouterr().err


def test_a_run_directory_that_is_a_file_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a matter of storage."""
    (tmp_path / "run").touch()

    assert run() == ExitCode.STORAGE

    assert "cannot be written: File exists" in capsys.readouterr().err
