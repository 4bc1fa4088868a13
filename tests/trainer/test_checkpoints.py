"""Checkpoints of a training: when they are written, what resumes from them, and what is refused."""

import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.process.errors import DataError, InputError, StorageError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.drift.watch import DriftWatch
from neuroshard_trainer.metrics import Evaluation
from neuroshard_trainer.ranks.stopping import StepVote, Wish
from neuroshard_trainer.state import checkpoint as checkpoint_module
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.state.saver import Saver
from neuroshard_trainer.training import TrainingLoop
from support.trainer.trained_runs import WHOLE, Run, checkpoint_of, progress, saved_steps, weights_hash
from support.trainer.trainer_builders import Cuts, plan_of, write_plan

IN_BACKGROUND = {"checkpoint": {"inBackground": True}}
FROM_THE_START = {"checkpoint": {"resumePolicy": "None"}}


def test_a_continued_run_ends_as_one_that_was_not_stopped(run: Run, tmp_path: Path) -> None:
    """To the last bit: weights, both optimizers, and the position in the data."""
    assert run(run_dir="whole") == ExitCode.OK

    assert run(training={"maxSteps": 9}) == ExitCode.OK
    assert saved_steps(tmp_path / "run") == [9]
    assert run() == ExitCode.OK

    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert progress(tmp_path / "run").metrics["auc"] == progress(tmp_path / "whole").metrics["auc"]


def test_curves_continue_over_a_restart(run: Run, tmp_path: Path) -> None:
    """Losses and evaluations by step and samples, and the starts with their plan."""
    run(training={"maxSteps": 9, "logEverySteps": 3, "evalEverySteps": 6})
    run(training={"maxSteps": 15, "logEverySteps": 3, "evalEverySteps": 6})

    found = progress(tmp_path / "run")
    assert [each.step for each in found.losses] == [3, 6, 9, 12, 15]
    assert [each.step for each in found.evaluations] == [6, 9, 12, 15]
    assert found.losses[-1].metrics == {"loss": found.metrics["loss"]}
    assert {"auc", "normalized_entropy"} <= found.evaluations[-1].metrics.keys()
    (size,) = {each.samples / each.step for each in (*found.losses, *found.evaluations)}
    assert size > 1
    assert [each.step for each in found.starts] == [0, 9]
    assert len({each.plan_sha256 for each in found.starts}) == 1


def damage_bytes(folder: Path) -> None:
    """Flip a bit in the middle of the tensors."""
    file = folder / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": damage_bytes,
    "a missing file": lambda folder: (folder / ".metadata").unlink(),
    "a cut manifest": lambda folder: (folder / "checkpoint.json").write_text("{"),
}


def test_a_damaged_checkpoint_is_passed_over(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on from the one before, and comes to the same end."""
    run(checkpoint={"everySteps": 6, "keep": 2}, training={"maxSteps": 15})
    whole = tmp_path / "run"
    assert saved_steps(whole) == [12, 15]
    for name, damage in DAMAGES.items():
        shutil.copytree(whole, tmp_path / name)
        damage(tmp_path / name / "checkpoints" / "step-00000015")
        caplog.clear()
        capsys.readouterr()

        assert run(training={"maxSteps": 15}, run_dir=name) == ExitCode.OK

        assert "step-00000015 is damaged" in caplog.text + capsys.readouterr().out, name
        assert weights_hash(tmp_path / name, 15) == weights_hash(whole, 15), name


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


@pytest.mark.parametrize(("mode", "expected"), [("Auto", [5, WHOLE]), ("Suggest", [WHOLE])])
def test_a_restart_is_priced_by_a_checkpoint_once_inputs_drifted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, expected: list[int]
) -> None:
    """One is written in mode Auto, by the next votes after the cause is named, and no second one."""
    steps: list[Wish] = []
    vote_of_all = StepVote.wish
    evidence = Evidence(part=StepPart.STEP, reference_ms=1.0, recent_ms=2.0)
    drifted = DriftChange(
        cause=SlowdownCause.INPUTS_DRIFTED, tables=("user",), since_step=1, evidence=(evidence,), confidence=1.0
    )

    def wish(vote: StepVote, *, save_is_due: bool, save_has_failed: bool) -> Wish:
        steps.append(vote_of_all(vote, save_is_due=save_is_due, save_has_failed=save_has_failed))
        return steps[-1]

    def causes(_watch: DriftWatch) -> tuple[DriftChange, ...]:
        return (drifted,) if len(steps) >= 3 else ()

    defaults: Any = TrainingLoop.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "clock", lambda: float(len(steps)))
    monkeypatch.setattr(StepVote, "wish", wish)
    monkeypatch.setattr(DriftWatch, "causes", property(causes))
    run(checkpoint={"keep": 9}, replanning={"mode": mode})

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
    assert run(checkpoint=spec, experimental=IN_BACKGROUND) == ExitCode.OK

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
    assert (
        run(checkpoint={"everySteps": 1, "keep": 99}, training={"maxSteps": 9}, experimental=IN_BACKGROUND)
        == ExitCode.OK
    )

    assert most == 1
    assert saved_steps(tmp_path / "run") == list(range(1, 10))


@pytest.mark.parametrize("error", [InputError, DataError])
def test_a_checkpoint_in_flight_outlives_an_error_of_the_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[InputError]
) -> None:
    """It becomes whole before the process ends, although its writing had only begun when step 9 failed."""
    is_awaited = threading.Event()
    save, loss_of, wait = CheckpointFolder.save, TrainingLoop._loss, Saver.wait
    num_steps = 0

    def save_later(folder: CheckpointFolder, state: Any, manifest: CheckpointManifest) -> Path:
        assert is_awaited.wait(timeout=60)
        return save(folder, state, manifest)

    def wait_after_failure(saver: Saver) -> None:
        if num_steps == 9:
            is_awaited.set()
        wait(saver)

    def loss(loop: TrainingLoop, batch: Batch) -> torch.Tensor:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 9:
            raise error("step 9 cannot be done")
        return loss_of(loop, batch)

    monkeypatch.setattr(CheckpointFolder, "save", save_later)
    monkeypatch.setattr(Saver, "wait", wait_after_failure)
    monkeypatch.setattr(TrainingLoop, "_loss", loss)

    assert run(checkpoint={"everySteps": 8}, experimental=IN_BACKGROUND) == ExitCode.INVALID_INPUT

    assert saved_steps(tmp_path / "run") == [8]


def test_a_disk_that_is_full_in_the_background_ends_training_in_a_sentence(
    run: Run, tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the next checkpoint is due; the newest whole one is resumed from, and nothing of it is lost."""
    spec = {"checkpoint": {"everySteps": 4}, "experimental": IN_BACKGROUND, "data": {"numSamples": 40_000}}
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
    again = {"experimental": FROM_THE_START, "training": {"seed": 1, "maxSteps": 5}}

    assert run(**again) == ExitCode.OK
    assert progress(tmp_path / "run").step == 5
    assert saved_steps(tmp_path / "run") == [5, 9]
    assert f"{tmp_path / 'run' / 'checkpoints' / 'step-00000009'} of an earlier run stays" in caplog.text
    replaced = weights_hash(tmp_path / "run", 9)

    assert run(experimental=FROM_THE_START, training={"seed": 1, "maxSteps": 9}) == ExitCode.OK
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


def test_a_training_continues_with_other_samples_of_a_step(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """From the same position, with a warning that has both numbers; none where they are the same."""
    run(training={"maxSteps": 4})
    run(training={"maxSteps": 5})
    assert "samples of all ranks from here on" not in caplog.text + capsys.readouterr().out

    assert run(training={"maxSteps": 7}, model={"batchSizePerDevice": 8}) == ExitCode.OK

    assert "a step has 8 samples of all ranks from here on, before it had 16" in caplog.text + capsys.readouterr().out
    manifest = CheckpointManifest.read(tmp_path / "run" / "checkpoints" / "step-00000007" / "checkpoint.json")
    assert (manifest.position, manifest.global_batch_size) == (5 * 16 + 2 * 8, 8)


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

    assert run(experimental=IN_BACKGROUND, training={"maxSteps": 3}) == ExitCode.INVALID_INPUT

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


@pytest.mark.parametrize(("seeds", "is_equal"), [((0, 0), True), ((0, 1), False), ((1, 0), False)])
def test_the_seed_of_the_data_decides_the_samples_alone(
    run: Run, tmp_path: Path, seeds: tuple[int, int], *, is_equal: bool
) -> None:
    """With another one other samples are held out, and with another seed of the training the weights are others."""
    still = {"maxSteps": 1, "denseLearningRate": "1e-9", "embeddingLearningRate": "1e-9"}
    run(run_dir="usual", training=still)
    run(training={**still, "seed": seeds[0]}, experimental={"data": {"seed": seeds[1]}})

    found = [progress(tmp_path / name).metrics["normalized_entropy"] for name in ("usual", "run")]

    assert (found[0] == found[1]) == is_equal
