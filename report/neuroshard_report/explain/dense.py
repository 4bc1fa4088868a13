"""The units of a dense part under a plan: what each needs, what it takes, and what its next smaller option would."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from neuroshard_api.documents.dense_layout import DenseChoices, PlannedUnit
from neuroshard_api.documents.dense_profile import DenseProfile, DenseUnit
from neuroshard_api.documents.plan import Plan
from neuroshard_costs.exchanges import TransferModel
from neuroshard_dense.named_units import divided
from neuroshard_dense.options import UnitBytes, UnitOption, UnitOptions, groups_of
from neuroshard_planner.errors import RequestError


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedUnit:
    """Equal modules that are kept alike. Sizes and times are those of one of them."""

    module: str
    """Path of the first."""
    count: int
    kept: str
    """In words."""
    memory_bytes: int
    """Weights, gradients, optimizer state, and activations; gathered weights where they are kept."""
    transient_bytes: int
    """Gathered weights and unreduced gradients, for a moment of a step."""
    recomputed_bytes: int
    """Activations that are computed again, for a moment of a step."""
    ms: float
    """Compute and exposed collectives."""
    smaller: str | None
    """The fastest option that keeps less and that the request permits. None: there is none."""
    saved_bytes: int = 0
    added_ms: float = 0.0


def explained_units(plan: Plan, *, costs: TransferModel) -> tuple[ExplainedUnit, ...]:
    """Return the units of a plan's dense part in the order of the forward pass; none where it has no layout.

    Raises:
        RequestError: the plan splits a unit, and its profile does not name the operators.
    """
    layout = plan.dense
    if plan.request.dense is None or layout is None:
        return ()
    topology = plan.request.topology
    choices = plan.request.dense_choices or DenseChoices()
    profile = divided(plan.request.dense, choices)
    groups = groups_of(choices.group, topology)[-1]
    options = UnitOptions(profile, topology, costs=costs, choices=choices, groups=groups)
    planned = {unit.module: unit for unit in layout.units}
    return tuple(each for unit in profile.units for each in _explained(unit, profile, options, planned))


def _explained(
    unit: DenseUnit, profile: DenseProfile, options: UnitOptions, planned: dict[str, PlannedUnit]
) -> Iterator[ExplainedUnit]:
    own = UnitBytes.of(unit, profile)
    kinds = {path: planned[path].model_copy(update={"module": unit.module}) for path in unit.modules}
    permitted = options.of(unit)
    for kind, count in Counter(kinds.values()).items():
        if kind.split and unit.operators is None:
            raise RequestError(
                f"dense: the plan splits module {unit.module!r}, and its profile names no operators of it; hint: count "
                "the dense part again with this release, and plan again"
            )
        option = options.option(unit, kind.strategy, kind.group, checkpointed=kind.checkpointed, split=kind.split)
        kept = own.choice(option).kept_bytes
        smaller = min(
            (each for each in permitted if own.choice(each).kept_bytes < kept),
            key=lambda each: (each.ms, own.choice(each).kept_bytes),
            default=None,
        )
        yield ExplainedUnit(
            module=next(path for path, each in kinds.items() if each == kind),
            count=count,
            kept=_in_words(option),
            memory_bytes=own.total + unit.activation_bytes + kept,
            transient_bytes=option.transient_bytes,
            recomputed_bytes=option.recomputed_bytes,
            ms=option.ms,
            smaller=None if smaller is None else _in_words(smaller),
            saved_bytes=0 if smaller is None else kept - own.choice(smaller).kept_bytes,
            added_ms=0.0 if smaller is None else smaller.ms - option.ms,
        )


def _in_words(option: UnitOption) -> str:
    shared = "" if option.group is None else f" over {option.shared_by}"
    further = f"{', checkpointed' if option.checkpointed else ''}{', operator by operator' if option.split else ''}"
    return f"{option.strategy.value}{shared}{further}"
