"""When an elastic job restarts on more nodes: what pays, and what holds it up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.replanning.decision import COOLDOWN_S, PRICE_FACTOR, ReplanVerdict, Restart
from neuroshard_api.replanning.growth import LargerSize, cooldown_s, decide_growth

TIMES = st.floats(0.1, 1e4)


def restart(**fields: Any) -> Restart:
    """Return a restart in the middle of a long training, which costs 50.15 s."""
    usual = {"step_ms": 145.0, "step": 50_000, "num_steps": 100_000, "checkpoint_ms": 2_900.0, "start_ms": 40_000.0}
    return Restart(**{**usual, **fields})


def larger(**fields: Any) -> LargerSize:
    """Return twice as many nodes, whose embedding part is predicted at three quarters of that in force."""
    usual = {
        "nodes_now": 2,
        "num_nodes": 4,
        "embedding_ms": 45.0,
        "incumbent_ms": 40.0,
        "predicted_ms": 30.0,
        "keeps_global_batch": True,
    }
    return LargerSize(**{**usual, **fields})


def test_more_nodes_that_pay_are_taken() -> None:
    """The embedding part is that of the plan, the rest shrinks with the samples of a device, and half counts."""
    decision = decide_growth(larger(), restart())

    assert (decision.verdict, decision.acts) == (ReplanVerdict.RESTART_PAYS, True)
    assert decision.gain_ms == pytest.approx((145 - 45 * 30 / 40 - 100 / 2) / 2)


def test_with_a_larger_batch_the_time_of_as_many_samples_counts() -> None:
    """With the batch of each device kept, a step on twice the nodes has twice the samples."""
    decision = decide_growth(larger(predicted_ms=44.0, keeps_global_batch=False), restart())

    assert decision.gain_ms == pytest.approx((145 - (45 * 44 / 40 + 100) / 2) / 2)


@pytest.mark.parametrize(
    ("size", "fields", "expected"),
    [
        ({"predicted_ms": 200.0}, {}, ReplanVerdict.NO_BETTER_PLAN),
        ({"predicted_ms": 80.0}, {}, ReplanVerdict.GAIN_TOO_SMALL),
        ({}, {"num_steps": 50_100}, ReplanVerdict.GAIN_TOO_SMALL),
        ({}, {"checkpoint_ms": None}, ReplanVerdict.PRICE_UNKNOWN),
        ({}, {"keeps_checkpoints": False}, ReplanVerdict.PRICE_UNKNOWN),
        ({}, {"since_replan_s": 60.0}, ReplanVerdict.COOLING_DOWN),
        ({}, {"num_steps": 55_000, "start_ms": 1.0}, ReplanVerdict.NEAR_END),
        ({"predicted_ms": float("nan")}, {}, ReplanVerdict.UNUSABLE_REPORT),
    ],
)
def test_more_nodes_are_left_with_the_reason(
    size: dict[str, Any], fields: dict[str, Any], expected: ReplanVerdict
) -> None:
    """Each rule of restarts has its word."""
    decision = decide_growth(larger(**size), restart(**fields))

    assert (decision.verdict, decision.acts) == (expected, False)


@given(
    times=st.tuples(TIMES, TIMES, TIMES, TIMES),
    nodes=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    keeps=st.booleans(),
)
def test_no_restart_is_expected_to_gain_less_than_twice_its_price(
    *, times: tuple[float, float, float, float], nodes: tuple[int, int], keeps: bool
) -> None:
    """Whatever is measured and predicted."""
    step, embedding, incumbent, predicted = times
    size = larger(
        nodes_now=nodes[0],
        num_nodes=sum(nodes),
        embedding_ms=min(embedding, step),
        incumbent_ms=incumbent,
        predicted_ms=predicted,
        keeps_global_batch=keeps,
    )
    price = restart(step_ms=step)
    decision = decide_growth(size, price)

    if decision.acts:
        assert decision.gain_ms is not None
        assert price.price_ms is not None
        assert decision.gain_ms * price.remaining_steps >= PRICE_FACTOR * price.price_ms


def test_replans_and_their_budget_hold_no_nodes_up() -> None:
    """The bounds of the job ask for the nodes; maxReplans is of plans."""
    assert decide_growth(larger(), restart(replans=100)).acts


def test_nodes_that_were_missed_double_the_cooldown() -> None:
    """Up to 64 times."""
    assert [cooldown_s(missed) / COOLDOWN_S for missed in (0, 1, 2, 6, 7)] == [1, 2, 4, 64, 64]
