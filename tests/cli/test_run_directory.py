"""The folder of a run."""

from pathlib import Path

import pytest
from neuroshard_api.process.failures import CommandError
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.sweep_results import training_seconds


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A new one, with a plan in it."""
    made = RunDirectory(tmp_path / "runs" / "job")
    with made.locked():
        made.plan_file.write_text("{}", encoding="utf-8")
    return made


def test_a_stage_is_finished_for_its_inputs_only(directory: RunDirectory) -> None:
    """Changed inputs ask for it again."""
    directory.finish("plan", "inputs", [directory.plan_file])

    assert directory.is_finished("plan", "inputs")
    assert not directory.is_finished("plan", "others")
    assert not directory.is_finished("train", "inputs")


def test_a_stage_whose_file_was_changed_is_not_finished(directory: RunDirectory) -> None:
    """Nobody trains under a plan that was edited or damaged."""
    directory.finish("plan", "inputs", [directory.plan_file])
    directory.plan_file.write_text("{ }", encoding="utf-8")

    assert not directory.is_finished("plan", "inputs")


def test_a_stage_whose_file_is_gone_is_not_finished(directory: RunDirectory) -> None:
    """It is made again."""
    directory.finish("plan", "inputs", [directory.plan_file])
    directory.plan_file.unlink()

    assert not directory.is_finished("plan", "inputs")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": 7}', '{"plan": {"inputs": "inputs", "outputs": 7}}'])
def test_a_damaged_state_means_that_nothing_is_finished(directory: RunDirectory, text: str) -> None:
    """At worst a stage is repeated."""
    (directory.path / "state.json").write_text(text, encoding="utf-8")

    assert not directory.is_finished("plan", "inputs")


def test_one_run_at_a_time_works_in_a_folder(directory: RunDirectory) -> None:
    """Two would write over each other."""
    with (
        directory.locked(),
        pytest.raises(CommandError, match="another `neuroshard run` works here"),
        RunDirectory(directory.path).locked(),
    ):
        pass


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    """The message says what to give instead."""
    (tmp_path / "file").touch()

    with (
        pytest.raises(CommandError, match="file: is not a folder; hint: give another --run-dir"),
        RunDirectory(tmp_path / "file").locked(),
    ):
        pass


def test_a_folder_of_another_purpose_is_moved_aside(directory: RunDirectory) -> None:
    """Checkpoints of other data are neither mixed in nor lost."""
    assert directory.keep_for(directory.train_dir, "first") is None
    for number, purpose in ((1, "second"), (2, "third")):
        directory.train_dir.mkdir()
        (directory.train_dir / "checkpoint").write_text(purpose, encoding="utf-8")

        assert directory.keep_for(directory.train_dir, purpose) == directory.path / f"train.{number}"
        assert not directory.train_dir.exists()


def test_a_folder_of_the_same_purpose_stays(directory: RunDirectory) -> None:
    """What was interrupted goes on."""
    directory.keep_for(directory.train_dir, "first")
    directory.train_dir.mkdir()

    assert directory.keep_for(directory.train_dir, "first") is None
    assert directory.train_dir.exists()


def test_a_training_with_other_facts_is_moved_aside_with_both_values(directory: RunDirectory) -> None:
    """One whose facts an earlier release did not record stays: the trainer judges it."""
    for before, moves in (({"seed": "0"}, True), ("a digest of an earlier release", False), (None, False)):
        directory.train_dir.mkdir(exist_ok=True)
        directory._remember("purpose of train", before)

        aside, others = directory.keep_facts(directory.train_dir, {"seed": "1"})

        assert (aside is not None) is moves is not directory.train_dir.exists()
        assert others == (("was trained with seed = 0, the job has 1",) if moves else ())
        assert directory.keep_facts(directory.train_dir, {"seed": "1"}) == (None, ())


def test_a_training_that_is_moved_aside_takes_its_seconds_along(directory: RunDirectory) -> None:
    """Those of all starts of the present training add up, and the course keeps what the other one did."""

    def work(stage: str, seconds: int) -> dict[str, str]:
        return {"stage": stage, "begin": "2026-11-27T10:00:00", "end": f"2026-11-27T10:00:{seconds}", "outcome": "done"}

    directory.keep_facts(directory.train_dir, {"seed": "0"})
    directory.train_dir.mkdir()
    directory._remember("course", [work("plan", 10), work("train", 20)])
    assert training_seconds(directory) == 20

    directory.keep_facts(directory.train_dir, {"seed": "1"})
    assert training_seconds(directory) is None
    directory._remember("course", [*directory.course, work("train", 30), work("train", 12)])

    assert training_seconds(directory) == 42
    assert [each["outcome"] for each in directory.course] == ["done", "moved aside", "done", "done"]


def test_the_course_of_stages_is_recorded(tmp_path: Path) -> None:
    """Begin, end, and outcome of each attempt; one whose process was killed is forgotten by the next."""
    directory = RunDirectory(tmp_path)
    directory.begun("plan")
    assert directory.course[-1]["end"] is None
    directory.ended("done")
    directory.begun("train")
    directory.ended("failed")
    directory.begun("train")
    directory.begun("train")
    directory.ended("done")

    assert [(each["stage"], each["outcome"]) for each in directory.course] == [
        ("plan", "done"),
        ("train", "failed"),
        ("train", "done"),
    ]
    assert all(each["begin"] <= each["end"] for each in directory.course)
