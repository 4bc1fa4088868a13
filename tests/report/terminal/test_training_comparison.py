"""A comparison of training in the terminal: one line per plan, and a verdict that keeps to the intervals."""

from neuroshard_api.documents.training_comparison import PlanTimes, PredictedMemory, TrainingComparison
from neuroshard_report.terminal.training_comparison import render_training_comparison
from rich.console import Console


def times(speedup: float, interval: tuple[float, float], *, embedding_ms: tuple[float, ...] | None = None) -> PlanTimes:
    """Return two rounds of a plan that is so much faster than the first."""
    rate = 100 * speedup
    return PlanTimes(
        step_ms=(1000 / rate, 1000 / rate),
        embedding_ms=embedding_ms,
        steps_per_second=rate,
        interval=(rate - 1, rate + 1),
        speedup=speedup,
        speedup_interval=interval,
        final_loss=0.5,
        largest_loss_difference=3e-7,
    )


def test_each_plan_has_its_line_and_its_verdict() -> None:
    """Above 1 is faster than the first plan, below is slower, and an interval around 1 decides nothing."""
    found = TrainingComparison(
        device="cpu",
        world_size=2,
        rounds=2,
        steps_per_round=5,
        plans={
            "theirs": times(1, (1, 1), embedding_ms=(4.0, 6.0)),
            "ours": times(1.25, (1.2, 1.3)),
            "random": times(0.8, (0.75, 0.9)),
            "twin": times(1.01, (0.98, 1.04)),
        },
        memory=PredictedMemory(
            device=1,
            plan_bytes={"theirs": 3 * 2**30, "ours": 2**30},
            total_bytes=7 * 2**29,
            capacity_bytes=80 * 2**30,
        ),
        peak_memory_bytes=3 * 2**30,
    )
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render_training_comparison(found))
    text = capture.get()
    table, _, verdict = text.partition("\nours is ")
    lines = {line.split()[0]: line.split() for line in table.splitlines() if line.strip()}

    assert "predicted 3.5 GiB for the models of all plans on device 1 (theirs 3 GiB, ours 1 GiB; of 80 GiB)" in text
    assert "measured 3 GiB at most on a device" in text
    assert "2 rounds of 5 steps under each plan in turns, on 2 x cpu; intervals of 95 %" in text
    assert lines["ours"][:8] == ["ours", "125.00", "124.00", "to", "126.00", "1.250", "1.200", "to"]
    assert lines["ours"][-1] == "3e-07"
    assert "1.250" not in lines["theirs"]
    verdict = " ".join(f"ours is {verdict}".split())
    assert "ours is 20.0 % to 30.0 % faster than theirs" in verdict
    assert "random is 10.0 % to 25.0 % slower than theirs" in verdict
    assert "twin and theirs cannot be distinguished; more rounds narrow the interval" in verdict
