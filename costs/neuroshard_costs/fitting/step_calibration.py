"""Calibration by a job's own steps: measured parts of its steps next to the parts that a bundle predicts for its plan.

Of each part, such as the lookups or a family's collectives, the factor is the median of measured over predicted times:
first over the ranks within a set of steps, then over the sets. Each set is predicted once with the factor of the
others, and a factor counts only where it lowers that error. What a rank waits for slower ones is in none of these
times: lookups are a rank's own, and of a collective the least over ranks counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from neuroshard_api.documents.bundle import Calibration, NetworkName
from neuroshard_api.documents.plan_parts import DeviceCost
from neuroshard_api.documents.step_report import RankTimes
from neuroshard_api.sharding.collectives import CollectiveKind, CollectiveTime
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.bundle import NETWORK_FEATURES
from neuroshard_costs.errors import RecordsError

MIN_SETS: Final = 2
"""Sets of steps: one to fit to, and one to predict."""
MAX_FACTOR: Final = 10.0
"""A machine that is further off is another device, or the plan of another batch size."""
_REDUCED: Final = {Family.ROWS, Family.NODE_ROWS, Family.REPLICATED}
_EXCHANGES: Final = ("forward_communication", "backward_communication")
_UNSCALED: Final = (1.0, 1.0)

Steps = Sequence[RankTimes]
"""Medians of some steps, by rank in the order of the plan's devices."""


class CalibratedPart(NamedTuple):
    """A part of a step that has a factor of its own."""

    family: Family | None
    """Of a collective. None: lookups, of both passes together."""
    is_backward: bool = False

    @property
    def network(self) -> NetworkName | None:
        """The network that predicts it. None: a formula of the device simulator."""
        if self.family is None:
            return "compute"
        if self.family is not Family.COLUMNS:
            return None
        return "backward_communication" if self.is_backward else "forward_communication"

    def __str__(self) -> str:
        if self.family is None:
            return "lookups"
        return f"{'backward' if self.is_backward else 'forward'} exchange of tables by {self.family.value}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFactor:
    """How one part's predictions differ from measured times."""

    factor: float
    """Measured over predicted; 1 where the fitted factor does not lower the error."""
    num_times: int
    errors_before: tuple[float, ...]
    """Relative errors of the predictions, of each measured time."""
    errors_after: tuple[float, ...]
    """With the factor of the other sets of steps; those before, where that is not better."""

    @property
    def mape_before(self) -> float:
        """Mean of the errors before."""
        return float(np.mean(self.errors_before))

    @property
    def mape_after(self) -> float:
        """Mean of the errors after."""
        return float(np.mean(self.errors_after))


def step_factors(predicted: Sequence[DeviceCost], measured: Sequence[Steps]) -> dict[CalibratedPart, PartFactor]:
    """Return the factors of the parts that were measured in at least two sets of steps.

    Parts that the host bound in most steps are left out: their times are in part the host's. Devices with tables in
    host memory are left out of the lookups, whose times hold the host link; so are backward
    passes of devices with copied tables, whose times hold their optimizer.

    Args:
        predicted: of the plan that was trained, by the bundle that is to be calibrated.
        measured: sets of different steps.

    Raises:
        RecordsError: fewer than two sets, other ranks than the plan's, no part that has times in two sets, or a factor
            beyond ``MAX_FACTOR``.
    """
    if len(measured) < MIN_SETS:
        raise RecordsError(
            f"steps: {len(measured)} set of steps, at least {MIN_SETS} are needed, one of which shows the error; "
            "hint: give reports of other steps as well"
        )
    ranks = list(range(len(predicted)))
    for steps in measured:
        found = [times.rank for times in steps]
        if found != ranks:
            raise RecordsError(
                f"steps: are of the ranks {found}, the plan has {len(ranks)} devices; hint: give its reports"
            )
    logs: dict[CalibratedPart, list[list[float]]] = {}
    for steps in measured:
        for part, values in _log_ratios(predicted, steps).items():
            logs.setdefault(part, []).append(values)
    factors = {part: _factor(part, sets) for part, sets in logs.items() if len(sets) >= MIN_SETS}
    if not factors:
        raise RecordsError(
            "steps: the host launches the kernels of every part later than the device could run them, and their times "
            "would be the host's; hint: measure with a larger batch"
            if any(_is_bound_by_host(times) for steps in measured for times in steps)
            else "steps: no part has times in two sets of steps; hint: give reports of trainings with lookups"
        )
    return factors


def calibration_of(
    factors: Mapping[CalibratedPart, PartFactor], *, source: str, before: Calibration | None
) -> Calibration:
    """Return the calibration of a bundle whose times are those before, times the factors.

    Args:
        factors: of the parts, at least one.
        source: label of the machine that trained.
        before: calibration of the bundle that predicted, which is built upon. None: it has none.
    """
    scales: dict[str, tuple[float, float]] = {
        f"{name}_scale": getattr(before, f"{name}_scale") if before else _UNSCALED for name in NETWORK_FEATURES
    }
    reductions = dict(before.reduction_factors) if before else {}
    for part, found in factors.items():
        if part.network is not None:
            exponent, factor = scales[f"{part.network}_scale"]
            scales[f"{part.network}_scale"] = (exponent, factor * found.factor)
        elif part.family is not None:
            forward, backward = reductions.get(part.family, _UNSCALED)
            scaled = (forward, backward * found.factor) if part.is_backward else (forward * found.factor, backward)
            reductions[part.family] = scaled
    errors = {name: found.mape_after for part, found in factors.items() if (name := part.network) is not None}
    return Calibration(
        source=source,
        num_records=sum(found.num_times for found in factors.values()),
        compute_scale=scales["compute_scale"],
        forward_communication_scale=scales["forward_communication_scale"],
        backward_communication_scale=scales["backward_communication_scale"],
        reduction_factors=reductions,
        mape_before=float(np.mean([error for found in factors.values() for error in found.errors_before])),
        mape_after=float(np.mean([error for found in factors.values() for error in found.errors_after])),
        mape_after_by={**(before.mape_after_by if before else {}), **errors},
    )


def _factor(part: CalibratedPart, sets: Sequence[Sequence[float]]) -> PartFactor:
    """Return the factor of logarithms of measured over predicted times, by set of steps."""
    medians = [float(np.median(values)) for values in sets]
    fitted = math.exp(float(np.median(medians)))
    if not 1 / MAX_FACTOR <= fitted <= MAX_FACTOR:
        raise RecordsError(
            f"steps: the {part} take {fitted:.3g} times as long as predicted, a calibration allows at most "
            f"{MAX_FACTOR:g} times more or less; hint: use cost models of this device, or profile it"
        )
    before = [abs(math.expm1(-value)) for values in sets for value in values]
    after = []
    for index, values in enumerate(sets):
        others = float(np.median([each for number, each in enumerate(medians) if number != index]))
        after += [abs(math.expm1(others - value)) for value in values]
    is_better = np.mean(after) < np.mean(before)
    return PartFactor(
        factor=fitted if is_better else 1.0,
        num_times=len(before),
        errors_before=tuple(before),
        errors_after=tuple(after if is_better else before),
    )


def _log_ratios(predicted: Sequence[DeviceCost], steps: Steps) -> dict[CalibratedPart, list[float]]:
    """Return logarithms of measured over predicted times of each part that has both."""
    pairs: dict[CalibratedPart, list[tuple[float, float]]] = {CalibratedPart(None): []}
    for cost, times in zip(predicted, steps, strict=True):
        if not cost.host_link_ms:
            if not _is_bound_by_host(times, "forward_compute"):
                pairs[CalibratedPart(None)].append((cost.forward_compute_ms, times.forward_compute_ms))
            if not cost.dense_update_ms and not _is_bound_by_host(times, "backward_compute"):
                pairs[CalibratedPart(None)].append((cost.backward_compute_ms, times.backward_compute_ms))
    foreseen = [_by_family(cost.collectives) for cost in predicted]
    found = [_by_family(_collectives(times, cost)) for cost, times in zip(predicted, steps, strict=True)]
    for family in set.intersection(*(set(each) for each in (*foreseen, *found))):
        for is_backward in (False, True):
            if any(_is_bound_by_host(times, _EXCHANGES[is_backward]) for times in steps):
                continue
            least = [min(each[family][is_backward] for each in ranks) for ranks in (foreseen, found)]
            pairs[CalibratedPart(family, is_backward)] = [(least[0], least[1])]
    logs = {
        part: [math.log(measured / planned) for planned, measured in each if planned > 0 and measured > 0]
        for part, each in pairs.items()
    }
    return {part: values for part, values in logs.items() if values}


def _is_bound_by_host(times: RankTimes, *parts: str) -> bool:
    """Return whether the host bound one of a rank's parts in most steps; without names, any that is calibrated."""
    parts = parts or ("forward_compute", "backward_compute", *_EXCHANGES)
    return times.host_bound is not None and times.host_bound.binds(*parts)


def _collectives(times: RankTimes, cost: DeviceCost) -> Sequence[CollectiveTime]:
    """Return a rank's collectives; where it tells the sum alone, that of a plan with one family is the family's."""
    planned = [each for each in cost.collectives if each.kind is not CollectiveKind.INDICES]
    if times.collectives or len(planned) != 1:
        return times.collectives
    (only,) = planned
    passes = {"forward_ms": times.forward_communication_ms, "backward_ms": times.backward_communication_ms}
    return (CollectiveTime(kind=only.kind, family=only.family, **passes),)


def _by_family(collectives: Sequence[CollectiveTime]) -> dict[Family, tuple[float, float]]:
    """Return forward and backward times of the collectives whose factor a bundle can hold.

    Not of indices, of which a plan has what a pipeline cannot hide; nor of sequences by rows, which share the name of
    their family with sums.
    """
    return {
        each.family: (each.forward_ms, each.backward_ms)
        for each in collectives
        if each.family is not None
        and (each.family is Family.COLUMNS or (each.family in _REDUCED and each.kind is not CollectiveKind.ALL_TO_ALL))
    }
