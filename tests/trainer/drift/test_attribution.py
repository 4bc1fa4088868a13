"""The cause of a slow-down, from ranks' times with each cause planted in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.drift_report import DriftChange, SlowdownCause, StepPart
from neuroshard_api.documents.step_report import HostBoundShares, RankTimes
from neuroshard_trainer.drift.attribution import InputChange, causes
from support.builders import rank_times

RANKS = 4
RANKS_PER_NODE = 2
PARTS = ("input", "forward", "backward", "forward_exchange", "backward_exchange", "dense", "wait")
USUAL_MS = dict(zip(PARTS, (1.0, 4.0, 8.0, 3.0, 3.0, 20.0, 0.5), strict=True))
"""What each part takes alone, without the wait for other ranks."""


def step(own_ms: Sequence[Mapping[str, float]]) -> tuple[RankTimes, ...]:
    """Return the times of ranks that wait for the slowest at every exchange, and in the gradients' all-reduce."""
    found: list[dict[str, float]] = [{} for _ in own_ms]
    clocks = [times["wait"] for times in own_ms]
    for compute, exchange in (("input", "input"), ("forward", "forward_exchange"), ("dense", "backward_exchange")):
        if compute != exchange:
            clocks = [clock + times[compute] for clock, times in zip(clocks, own_ms, strict=True)]
        end = max(clocks) + max(times[exchange] for times in own_ms)
        for rank, times in enumerate(own_ms):
            found[rank] |= {compute: times[compute], exchange: end - clocks[rank]}
        clocks = [end] * len(own_ms)
    clocks = [clock + times["backward"] for clock, times in zip(clocks, own_ms, strict=True)]
    return tuple(
        rank_times(
            rank,
            input_communication_ms=times["input"],
            forward_compute_ms=times["forward"],
            backward_compute_ms=own_ms[rank]["backward"],
            forward_communication_ms=times["forward_exchange"],
            backward_communication_ms=times["backward_exchange"],
            dense_ms=times["dense"] + max(clocks) - clocks[rank],
            data_wait_ms=own_ms[rank]["wait"],
            step_ms=max(clocks),
        )
        for rank, times in enumerate(found)
    )


def ranks(factors: Mapping[int, Mapping[str, float]], *, seed: int = 0, noise: float = 0.0) -> tuple[RankTimes, ...]:
    """Return a step of four ranks whose own parts take longer by factors, with noise of medians."""
    rng = np.random.default_rng(seed)
    return step(
        [
            {
                part: USUAL_MS[part] * factors.get(rank, {}).get(part, 1.0) * (1 + noise * float(rng.normal()))
                for part in PARTS
            }
            for rank in range(RANKS)
        ]
    )


def everywhere(*parts: str, factor: float) -> dict[int, dict[str, float]]:
    """Return one factor for parts of all ranks."""
    return {rank: dict.fromkeys(parts, factor) for rank in range(RANKS)}


def found(
    factors: Mapping[int, Mapping[str, float]],
    *,
    inputs: InputChange = InputChange(ranks_of_table={}),  # noqa: B008 - frozen
    seed: int = 0,
    noise: float = 0.0,
) -> tuple[DriftChange, ...]:
    """Return the causes of a step's change."""
    before, since = ranks({}, seed=seed, noise=noise), ranks(factors, seed=seed + 1_000_000, noise=noise)
    return causes(before, since, since_step=700, ranks_per_node=RANKS_PER_NODE, inputs=inputs)


COMPUTE = ("forward", "backward")
LOOKED_UP_TWICE = InputChange(ranks_of_table={"item": (2,)}, compute_ratios={2: 2.0})
PLANTED = {
    "a device": ({2: dict.fromkeys(COMPUTE, 1.6)}, InputChange(ranks_of_table={}), SlowdownCause.DEVICE_SLOW, (2,)),
    "a node": (
        {rank: dict.fromkeys(COMPUTE, 1.6) for rank in (2, 3)},
        InputChange(ranks_of_table={}),
        SlowdownCause.NODE_SLOW,
        (2, 3),
    ),
    "communication": (
        everywhere("forward_exchange", "backward_exchange", factor=2.0),
        InputChange(ranks_of_table={}),
        SlowdownCause.COMMUNICATION_SLOW,
        (),
    ),
    "a neighbour": (everywhere(*PARTS, factor=2.5), InputChange(ranks_of_table={}), SlowdownCause.EVERYTHING_SLOW, ()),
    "the data": (
        everywhere("wait", factor=20.0),
        InputChange(ranks_of_table={}),
        SlowdownCause.DATA_LATE,
        (0, 1, 2, 3),
    ),
    "the inputs": ({2: dict.fromkeys(COMPUTE, 2.0)}, LOOKED_UP_TWICE, SlowdownCause.INPUTS_DRIFTED, (2,)),
    "the dense part": (everywhere("dense", factor=1.5), InputChange(ranks_of_table={}), SlowdownCause.DENSE_SLOW, ()),
    "the dense part of a rank": ({1: {"dense": 1.5}}, InputChange(ranks_of_table={}), SlowdownCause.DENSE_SLOW, (1,)),
    "all of a device": (
        {2: dict.fromkeys((*COMPUTE, "dense"), 1.6)},
        InputChange(ranks_of_table={}),
        SlowdownCause.DEVICE_SLOW,
        (2,),
    ),
    "inputs that take less than they could": (
        {2: dict.fromkeys(COMPUTE, 1.5)},
        LOOKED_UP_TWICE,
        SlowdownCause.INPUTS_DRIFTED,
        (2,),
    ),
}
each_cause = pytest.mark.parametrize(("factors", "inputs", "cause", "on"), list(PLANTED.values()), ids=list(PLANTED))


@each_cause
def test_each_planted_cause_is_named(
    factors: dict[int, dict[str, float]], inputs: InputChange, cause: SlowdownCause, on: tuple[int, ...]
) -> None:
    """With its ranks, its first step, and numbers; the waits of the other ranks name nothing."""
    (change,) = found(factors, inputs=inputs)

    assert (change.cause, change.ranks, change.since_step) == (cause, on, 700)
    assert change.tables == (("item",) if cause is SlowdownCause.INPUTS_DRIFTED else ())
    assert any(each.recent_ms > each.reference_ms for each in change.evidence)


@each_cause
def test_causes_are_right_in_95_of_100_noisy_reports(
    factors: dict[int, dict[str, float]], inputs: InputChange, cause: SlowdownCause, on: tuple[int, ...]
) -> None:
    """Each part's median is off by 1 %."""
    named = [found(factors, inputs=inputs, seed=seed, noise=0.01) for seed in range(100)]

    assert sum([(change.cause, change.ranks) for change in each] == [(cause, on)] for each in named) >= 95


def test_the_confidence_is_the_share_that_the_evidence_accounts_for() -> None:
    """A device that takes 7.2 ms longer, and data that come 9.5 ms later; what nothing explains has none."""
    late = {rank: {"wait": 20.0} for rank in range(RANKS)}
    data, device = found({**late, 2: {**dict.fromkeys(COMPUTE, 1.6), "wait": 20.0}})
    (unexplained,) = found({1: {"backward": 2.0}})

    assert (device.cause, data.cause, unexplained.cause) == (
        SlowdownCause.DEVICE_SLOW,
        SlowdownCause.DATA_LATE,
        SlowdownCause.UNEXPLAINED,
    )
    assert device.confidence == pytest.approx(7.2 / 16.7, abs=0.001)
    assert data.confidence == pytest.approx(9.5 / 16.7, abs=0.001)
    assert unexplained.confidence == 0


@each_cause
def test_a_single_cause_accounts_for_the_change(
    factors: dict[int, dict[str, float]], inputs: InputChange, cause: SlowdownCause, on: tuple[int, ...]
) -> None:
    """Four fifths under noise of 1 %; a third where a device's dense part, which is no evidence, is slow too."""
    named = [found(factors, inputs=inputs, seed=seed, noise=0.01) for seed in range(20)]

    shares = [change.confidence for each in named for change in each if (change.cause, change.ranks) == (cause, on)]
    assert all(share is not None for share in shares)
    assert np.median(np.array(shares, dtype=float)) >= (0.33 if "dense" in factors.get(2, {}) else 0.8)


def test_steps_that_take_as_long_have_no_cause() -> None:
    """Whatever the parts do."""
    assert found({}) == ()
    assert found({}, inputs=LOOKED_UP_TWICE) == ()


def test_what_inputs_explain_is_divided_out() -> None:
    """A rank that is slow next to drifted tables is named as well; so is one that adds more than they explain."""
    two = found({2: dict.fromkeys(COMPUTE, 2.0), 0: dict.fromkeys(COMPUTE, 1.7)}, inputs=LOOKED_UP_TWICE)
    beyond = found({2: dict.fromkeys(COMPUTE, 4.0)}, inputs=LOOKED_UP_TWICE)

    assert [(each.cause, each.ranks) for each in two] == [
        (SlowdownCause.INPUTS_DRIFTED, (2,)),
        (SlowdownCause.DEVICE_SLOW, (0,)),
    ]
    assert [(each.cause, each.ranks) for each in beyond] == [
        (SlowdownCause.INPUTS_DRIFTED, (2,)),
        (SlowdownCause.DEVICE_SLOW, (2,)),
    ]
    assert [each.confidence for each in beyond] == pytest.approx([12 / 36, 24 / 36], abs=0.001)


def test_lookups_that_take_longer_than_explained_are_drift_of_inputs() -> None:
    """Their bound errs where programs share the cores: 29 times as long, of which 15.5 are explained."""
    inputs = InputChange(ranks_of_table={"item": (2,)}, compute_ratios={2: 15.5})

    (change,) = found({2: dict.fromkeys(COMPUTE, 29.0)}, inputs=inputs)

    assert (change.cause, change.ranks, change.tables) == (SlowdownCause.INPUTS_DRIFTED, (2,), ("item",))
    assert change.confidence == pytest.approx(14.5 / 28, abs=0.001)


def test_an_exchange_of_more_indices_is_drift_of_inputs() -> None:
    """Where the lookups themselves are cheap; with the same inputs it is communication."""
    factors = everywhere("input", factor=5.0)

    (drifted,) = found(factors, inputs=LOOKED_UP_TWICE)
    (slow,) = found(factors)

    assert (drifted.cause, slow.cause) == (SlowdownCause.INPUTS_DRIFTED, SlowdownCause.COMMUNICATION_SLOW)
    assert drifted.evidence[0].part is StepPart.INPUT_EXCHANGE


def test_a_rank_that_is_slow_in_one_direction_is_not_a_slow_device() -> None:
    """A device that computes slower does so forward and backward."""
    (change,) = found({1: {"backward": 2.0}})

    assert change.cause is SlowdownCause.UNEXPLAINED


def test_changed_inputs_are_named_however_slow_the_machine_became() -> None:
    """First, by the step that they alone would make longer; what other programs add is another cause."""
    slow = {rank: dict.fromkeys(PARTS, 4.0) for rank in range(RANKS)}

    drifted, machine = found({**slow, 2: {**slow[2], **dict.fromkeys(COMPUTE, 8.0)}}, inputs=LOOKED_UP_TWICE)

    assert (drifted.cause, drifted.ranks) == (SlowdownCause.INPUTS_DRIFTED, (2,))
    assert machine.cause is SlowdownCause.EVERYTHING_SLOW
    assert 0 < (drifted.confidence or 0) < 0.2 < (machine.confidence or 0)


def test_steps_that_only_wait_for_processors_are_slow_by_other_programs() -> None:
    """Also where the exchanges show it most; beyond what the waiting explains, they are the cause."""
    exchanges = everywhere("forward_exchange", "backward_exchange", factor=4.0)

    def waiting(times: Sequence[RankTimes], share: float) -> list[RankTimes]:
        return [each.model_copy(update={"processor_wait_share": share}) for each in times]

    def named(share: float, **fields: Any) -> list[SlowdownCause]:
        before, since = waiting(ranks({}), 0.2), waiting(ranks(exchanges), share)
        since = [each.model_copy(update=fields) for each in since]
        return [each.cause for each in causes(before, since, since_step=1, ranks_per_node=RANKS_PER_NODE)]

    assert named(0.2) == named(0.3) == [SlowdownCause.COMMUNICATION_SLOW]
    assert named(0.6) == [SlowdownCause.EVERYTHING_SLOW]
    assert named(0.6, host_bound=HostBoundShares()) == [SlowdownCause.COMMUNICATION_SLOW], (
        "devices do not wait for cores"
    )


@pytest.mark.parametrize(
    ("factor", "share", "expected"),
    [
        (1.5, 0.2, [SlowdownCause.COMMUNICATION_SLOW]),
        (1.5, 0.7, []),
        (2.5, 0.7, [SlowdownCause.COMMUNICATION_SLOW]),
    ],
    ids=["a core", "a third of a core", "a third of a core, much slower"],
)
def test_ranks_that_mostly_wait_for_processors_name_large_shifts_alone(
    factor: float, share: float, expected: list[SlowdownCause]
) -> None:
    """Steps 8 % longer have a cause where processors are free, and none where ranks wait for one 70 % of the time."""
    exchanges = everywhere("forward_exchange", "backward_exchange", factor=factor)
    before, since = (
        [each.model_copy(update={"processor_wait_share": share}) for each in times]
        for times in (ranks({}), ranks(exchanges))
    )

    named = causes(before, since, since_step=1, ranks_per_node=RANKS_PER_NODE)

    assert [each.cause for each in named] == expected


def test_changed_inputs_have_evidence_of_their_own_on_a_busy_machine() -> None:
    """They are named by the least shift, however long ranks wait for processors."""
    lookups = {2: dict.fromkeys(COMPUTE, 1.5)}
    before, since = (
        [each.model_copy(update={"processor_wait_share": 0.8}) for each in times]
        for times in (ranks({}), ranks(lookups))
    )

    (change,) = causes(before, since, since_step=1, ranks_per_node=RANKS_PER_NODE, inputs=LOOKED_UP_TWICE)

    assert (change.cause, change.ranks) == (SlowdownCause.INPUTS_DRIFTED, (2,))


def test_changed_inputs_are_named_where_nothing_else_explains_the_steps() -> None:
    """With the share that they explain, which is nothing where lookups became fewer."""
    fewer = InputChange(ranks_of_table={"item": (2,)}, compute_ratios={2: 0.5})

    (change,) = found({1: {"backward": 2.0}}, inputs=fewer)

    assert (change.cause, change.ranks, change.confidence) == (SlowdownCause.INPUTS_DRIFTED, (2,), 0.0)


FACTORS = st.dictionaries(
    st.integers(0, RANKS - 1), st.dictionaries(st.sampled_from(PARTS), st.floats(0.2, 10.0)), max_size=RANKS
)


@settings(max_examples=100, deadline=None)
@given(FACTORS, st.integers(0, 10_000), st.floats(0, 0.1))
def test_inputs_are_never_the_cause_while_they_are_the_same(
    factors: dict[int, dict[str, float]], seed: int, noise: float
) -> None:
    """A new plan must not follow from a slow machine."""
    assert all(each.cause is not SlowdownCause.INPUTS_DRIFTED for each in found(factors, seed=seed, noise=noise))


@settings(max_examples=100, deadline=None)
@given(FACTORS, st.floats(0.1, 40.0), st.integers(0, 10_000))
def test_steps_with_changed_inputs_are_never_unexplained(
    factors: dict[int, dict[str, float]], ratio: float, seed: int
) -> None:
    """Their share of the added time is within 0 and 1."""
    named = found(factors, inputs=InputChange(ranks_of_table={"item": (2,)}, compute_ratios={2: ratio}), seed=seed)

    assert all(each.cause is not SlowdownCause.UNEXPLAINED for each in named)
    assert all(each.confidence is not None and 0 <= each.confidence <= 1 for each in named)


@settings(max_examples=50, deadline=None)
@given(FACTORS, st.integers(0, 10_000))
def test_a_slow_step_always_has_a_cause(factors: dict[int, dict[str, float]], seed: int) -> None:
    """If only that it is unexplained, and none without one."""
    before, since = ranks({}, seed=seed), ranks(factors, seed=seed)
    is_slow = max(each.step_ms for each in since) >= 1.05 * max(each.step_ms for each in before)

    assert bool(found(factors, seed=seed)) == is_slow
