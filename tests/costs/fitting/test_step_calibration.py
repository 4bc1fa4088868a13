"""Specification of calibration by a job's own steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.bundle import Calibration
from neuroshard_api.documents.plan_parts import CollectiveCost, DeviceCost
from neuroshard_api.documents.step_report import HostBoundShares, MeasuredCollective, RankTimes
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.step_calibration import CalibratedPart, Steps, calibration_of, step_factors
from support.builders import device_cost, rank_times

LOOKUPS, FORWARD, BACKWARD = (
    CalibratedPart(None),
    CalibratedPart(Family.COLUMNS),
    CalibratedPart(Family.COLUMNS, is_backward=True),
)
SUMS = CalibratedPart(Family.ROWS)
TRUE = {LOOKUPS: 1.4, FORWARD: 0.5, BACKWARD: 2.0, SUMS: 3.0, CalibratedPart(Family.ROWS, is_backward=True): 1.0}
RANKS = 4


def predicted(**fields: float) -> tuple[DeviceCost, ...]:
    """Return the costs of four devices with tables by columns and by rows."""
    return tuple(
        device_cost(
            forward_compute_ms=1.0 + rank,
            backward_compute_ms=2.0 + rank,
            collectives=(
                CollectiveCost(kind=CollectiveKind.INDICES, forward_ms=0.1, num_bytes=1),
                CollectiveCost(
                    kind=CollectiveKind.ALL_TO_ALL, family=Family.COLUMNS, forward_ms=0.8, backward_ms=0.4, num_bytes=1
                ),
                CollectiveCost(
                    kind=CollectiveKind.REDUCE_SCATTER, family=Family.ROWS, forward_ms=0.2, backward_ms=0.3, num_bytes=1
                ),
            ),
            **fields,
        )
        for rank in range(RANKS)
    )


def steps(seed: int = 0, *, noise: float = 0.0, slow: float = 1.0) -> tuple[RankTimes, ...]:
    """Return measured steps of a machine with TRUE's factors; other ranks wait for the last one in their exchanges."""
    rng = np.random.default_rng(seed)

    def off() -> float:
        return 1 + noise * float(rng.normal())

    return tuple(
        rank_times(
            rank,
            forward_compute_ms=TRUE[LOOKUPS] * cost.forward_compute_ms * off() * slow,
            backward_compute_ms=TRUE[LOOKUPS] * cost.backward_compute_ms * off() * slow,
            collectives=tuple(
                MeasuredCollective(
                    kind=each.kind,
                    family=each.family,
                    forward_ms=TRUE.get(CalibratedPart(each.family), 7.0) * each.forward_ms * off() + RANKS - 1 - rank,
                    backward_ms=TRUE.get(CalibratedPart(each.family, is_backward=True), 7.0) * each.backward_ms * off()
                    + RANKS - 1 - rank,
                )
                for each in cost.collectives
            ),
        )
        for rank, cost in enumerate(predicted())
    )  # fmt: skip


def test_each_parts_factor_is_found() -> None:
    """What ranks wait for each other, and what a pipeline hides of the indices, is in none of them."""
    factors = step_factors(predicted(), [steps(), steps()])

    assert {part: found.factor for part, found in factors.items()} == pytest.approx(TRUE)
    assert factors[LOOKUPS].mape_before == pytest.approx(1 - 1 / 1.4)
    assert all(found.mape_after == pytest.approx(0, abs=1e-12) for found in factors.values())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(4, 7), st.floats(0, 0.05))
def test_one_disturbed_set_of_steps_counts_little(seed: int, count: int, noise: float) -> None:
    """Another program that doubled all times of one set leaves the factor within three deviations of the noise."""
    sets = [steps(seed + each, noise=noise) for each in range(count - 1)]

    found = step_factors(predicted(), [*sets, steps(seed, noise=noise, slow=2.0)])[LOOKUPS]

    assert found.factor == pytest.approx(TRUE[LOOKUPS], rel=0.001 + 3 * noise)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=5))
def test_a_factor_never_raises_the_error_on_other_steps(speeds: list[float]) -> None:
    """However unlike the sets of steps are; what does not predict the others is not used."""
    factors = step_factors(predicted(), [steps(slow=speed) for speed in speeds])

    assert all(found.mape_after <= found.mape_before for found in factors.values())


def test_a_sum_of_collectives_is_that_of_the_only_family() -> None:
    """Reports of the steps after the warm-up have sums alone."""
    cost = tuple(
        device_cost(
            collectives=(
                CollectiveCost(kind=CollectiveKind.INDICES, forward_ms=0.1, num_bytes=1),
                CollectiveCost(
                    kind=CollectiveKind.ALL_TO_ALL, family=Family.COLUMNS, forward_ms=1.0, backward_ms=1.0, num_bytes=1
                ),
            )
        )
        for _ in range(2)
    )
    alone = tuple(rank_times(rank, forward_communication_ms=3.0, backward_communication_ms=5.0) for rank in range(2))

    factors = step_factors(cost, [alone, alone])

    assert factors[FORWARD].factor == pytest.approx(3.0)
    assert factors[BACKWARD].factor == pytest.approx(5.0)


def test_times_that_hold_something_else_are_left_out() -> None:
    """Lookups of devices that wait for host memory, and backward passes with the optimizer of copied tables."""
    both = [steps(), steps()]

    assert LOOKUPS not in step_factors(predicted(host_link_ms=0.1), both)
    assert step_factors(predicted(dense_update_ms=0.1), both)[LOOKUPS].num_times == 2 * RANKS


def test_times_that_the_host_bound_are_left_out() -> None:
    """They would teach the models the host; where nothing else was measured, the error names it."""
    forward = HostBoundShares(forward_compute=0.9, backward_communication=0.9)
    some = [tuple(each.model_copy(update={"host_bound": forward}) for each in steps()) for _ in range(2)]
    every = HostBoundShares(
        forward_compute=1.0, backward_compute=1.0, forward_communication=1.0, backward_communication=1.0
    )
    none = [tuple(each.model_copy(update={"host_bound": every}) for each in steps()) for _ in range(2)]

    found = step_factors(predicted(), some)

    assert found[LOOKUPS].num_times == 2 * RANKS, "backward passes alone"
    assert FORWARD in found
    assert BACKWARD not in found
    with pytest.raises(RecordsError, match=r"later than the device could run them.*hint: measure with a larger batch"):
        step_factors(predicted(), none)


def test_a_calibration_builds_on_the_one_before() -> None:
    """The predictions have its factors in them."""
    factors = step_factors(predicted(), [steps(), steps()])
    before = Calibration(
        source="measured:A",
        num_records=8,
        compute_scale=(0.9, 2.0),
        mape_before=0.5,
        mape_after=0.1,
        mape_after_by={"compute": 0.1},
        reduction_factors={Family.ROWS: (2.0, 2.0), Family.REPLICATED: (1.0, 5.0)},
    )

    first = calibration_of(factors, source="cpu:B", before=None)
    second = calibration_of(factors, source="cpu:B", before=before)

    assert first.compute_scale == pytest.approx((1.0, 1.4))
    assert second.compute_scale == pytest.approx((0.9, 2.8))
    assert second.forward_communication_scale == pytest.approx((1.0, 0.5))
    assert second.backward_communication_scale == pytest.approx((1.0, 2.0))
    assert second.reduction_factors[Family.ROWS] == pytest.approx((6.0, 2.0))
    assert second.reduction_factors[Family.REPLICATED] == (1.0, 5.0)
    assert second.mape_after_by == pytest.approx(
        {"compute": 0.0, "forward_communication": 0.0, "backward_communication": 0.0}, abs=1e-12
    )
    assert (second.source, second.num_records) == ("cpu:B", sum(each.num_times for each in factors.values()))


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        ([steps()], "1 set of steps, at least 2 are needed"),
        ([steps(), steps()[:2]], r"are of the ranks \[0, 1\], the plan has 4 devices"),
        ([steps(slow=20.0), steps(slow=20.0)], "the lookups take 28 times as long as predicted"),
        ([tuple(rank_times(rank, forward_compute_ms=0.0, backward_compute_ms=0.0) for rank in range(RANKS))] * 2,
         "no part has times in two sets"),
    ],
    ids=["one set", "other ranks", "another device", "no times"],
)  # fmt: skip
def test_steps_that_calibrate_nothing_are_refused(measured: list[Steps], problem: str) -> None:
    """With what was found, and what to give instead."""
    with pytest.raises(RecordsError, match=problem):
        step_factors(predicted(), measured)
