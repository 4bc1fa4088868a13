"""What people see of a run while it goes on."""

import io

import pytest
from neuroshard_cli.local.progress_view import RunView
from rich.console import Console

STAGES = ("profile", "plan", "train")


def test_in_a_pipe_each_change_is_a_line() -> None:
    """Nothing moves, and nothing is printed twice."""
    shown = io.StringIO()
    with RunView(STAGES, Console(file=shown)) as view:
        view.begin("profile", "measuring for 60 s")
        view.note("profile", "12 %")
        view.end("profile", "done", "cpu:any")
        view.end("plan", "reused")

    assert shown.getvalue() == ("profile: measuring for 60 s\nprofile: done after 0 s: cpu:any\nplan: reused\n")


def test_in_a_pipe_a_stage_at_work_has_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest words with the time left; what comes in between is passed over."""
    times = iter([0.0, 10.0, 61.0, 70.0, 122.0])
    shown = io.StringIO()
    monkeypatch.setattr("neuroshard_cli.local.progress_view.time.monotonic", lambda: next(times))
    view = RunView(STAGES, Console(file=shown, width=200))
    view.begin("train")
    for step in (100, 151, 160, 212):
        view.note("train", f"step {step} of 312: loss 0.5")

    assert shown.getvalue().splitlines() == [
        "train: begun",
        "train: 61 s: step 151 of 312: loss 0.5; 161 s left",
        "train: 122 s: step 212 of 312: loss 0.5; 100 s left",
    ]


def test_on_a_terminal_all_stages_stay_in_place() -> None:
    """Each with its mark, its time and its newest words; those to come are there too."""
    shown = io.StringIO()
    with RunView(STAGES, Console(file=shown, force_terminal=True, width=80)) as view:
        view.end("profile", "reused", "cpu:any")
        view.begin("plan")
        view.note("plan", "searching")

    last = shown.getvalue().split("profile")[-1].splitlines()
    assert "= profile" in shown.getvalue()
    assert "cpu:any" in last[0]
    assert "> plan" in last[1]
    assert "searching" in last[1]
    assert "train" in last[2]


def test_the_time_left_of_a_training_follows_from_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 100 to 200 took 10 s, so that 300 more take 30 s; the first line alone tells no speed."""
    seconds = iter([0.0, 5.0, 15.0])
    shown = io.StringIO()
    view = RunView(STAGES, Console(file=shown, force_terminal=True, width=80))
    monkeypatch.setattr("neuroshard_cli.local.progress_view.time.monotonic", lambda: next(seconds, 15.0))
    view.begin("train")
    view.note("train", "step 100 of 500: loss 0.5, 9,000 samples/s")
    with view:
        pass
    view.note("train", "step 200 of 500: loss 0.5, 9,000 samples/s")
    with view:
        pass

    assert "30 s left step 200 of 500" in shown.getvalue()
    assert "left step 100 of 500" not in shown.getvalue()


@pytest.mark.parametrize(
    ("error", "word"), [(ValueError(), "failed"), (KeyboardInterrupt(), "stopped")], ids=["failure", "ctrl-c"]
)
def test_a_stage_under_way_ends_with_the_run(error: BaseException, word: str) -> None:
    """With its newest words on a terminal, with the word alone in a pipe."""
    shown = io.StringIO()
    view = RunView(STAGES, Console(file=shown))
    view.begin("train")
    view.__exit__(type(error), error, None)

    assert shown.getvalue() == f"train: begun\ntrain: {word} after 0 s\n"


def test_a_stage_that_begins_again_counts_the_time_that_is_left_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of the workers: steps of the training before it are no measure."""
    times = iter([0.0, 200.0, 210.0, 220.0, 275.0])
    shown = io.StringIO()
    monkeypatch.setattr("neuroshard_cli.local.progress_view.time.monotonic", lambda: next(times))
    view = RunView(STAGES, Console(file=shown, width=200))
    view.begin("train")
    view.note("train", "step 200 of 500")
    view.begin("train", "restarting all workers")
    view.note("train", "step 100 of 500")
    view.note("train", "step 210 of 500")

    assert shown.getvalue().splitlines() == [
        "train: begun",
        "train: 200 s: step 200 of 500",
        "train: restarting all workers",
        "train: 65 s: step 210 of 500; 145 s left",
    ]
