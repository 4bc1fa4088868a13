"""What shows the steps of a training: the trace, and TensorBoard."""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from support.trainer.trained_runs import WHOLE, Run, progress, saved_steps


@pytest.mark.parametrize("pipeline", ["None", "SparseDist"])
def test_a_trace_has_a_range_for_each_phase(run: Run, tmp_path: Path, pipeline: str) -> None:
    """Of the steps that were asked for, in the format that Chrome and Perfetto read."""
    training = {"maxSteps": 9, "evalEverySteps": 4}
    checkpoint, experimental = {"everySteps": 4}, {"checkpoint": {"inBackground": True}, "pipeline": pipeline}

    assert (
        run("--trace-steps", "3:6", training=training, checkpoint=checkpoint, experimental=experimental) == ExitCode.OK
    )

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
    assert [event.step for event in events.Scalars("loss")] == [5, 10, 15, 20, WHOLE]
    assert [event.step for event in events.Scalars("auc")] == [10, 20, WHOLE]
    assert events.Scalars("auc")[-1].value == pytest.approx(progress(tmp_path / "run").metrics["auc"])
