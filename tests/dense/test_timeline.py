"""The memory of a step's passes: replicas as they were counted, sharded units by what fully_shard allocates."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from neuroshard_api.documents.dense_layout import DenseChoices, DenseGroup, DenseStrategy
from neuroshard_api.documents.dense_profile import DenseOperator, DenseUnit
from neuroshard_dense.layouts import Layouts
from neuroshard_dense.options import UnitBytes, UnitOption, UnitOptions
from neuroshard_dense.timeline import Moment, TimedOperator, TimedUnit, Timeline
from support.builders import dense_profile, topology
from support.planner.exact_costs import ExactCosts

W = 1000
"""Bytes of the weights of a unit, and of its gradients."""
KEPT, EDGE, TEMPORARY = 90, 10, 5
"""Bytes of activations of a unit; of its inputs and of its output; of its temporary tensors."""
OWN = UnitBytes(weights=W, gradients=W, optimizer_state=2 * W)
UNIT = TimedUnit(part="over", own=OWN, activation=KEPT, inputs=EDGE, output=EDGE, transient=TEMPORARY)


SMALL = 100
"""Bytes of the weights of the second operator, of its gradients, and of what is in no operator."""


def operator(size: int, *, level: int, transient: int = 0) -> TimedOperator:
    """Return an operator whose memory is level, but for a moment of its backward pass."""
    own = UnitBytes(weights=size, gradients=size, optimizer_state=0)
    return TimedOperator(own=own, forward=level, backward=level, transient=transient, left=level, gradients_kept=0)


def splittable(transient: int = 0) -> TimedUnit:
    """Return a unit of a large operator, a small one, and small parameters that are in neither."""
    operators = operator(W, level=KEPT, transient=transient), operator(SMALL, level=KEPT)
    rest = UnitBytes(weights=SMALL, gradients=SMALL, optimizer_state=0)
    total = W + 2 * SMALL
    own = UnitBytes(weights=total, gradients=total, optimizer_state=0)
    return replace(UNIT, own=own, transient=transient, operators=operators, rest=rest)


def option(strategy: DenseStrategy, *, checkpointed: bool = False, split: bool = False) -> UnitOption:
    """Return an option, shared by four devices where it is sharded."""
    is_sharded = strategy is not DenseStrategy.REPLICATE
    return UnitOption(
        strategy=strategy,
        group=DenseGroup.NODE if is_sharded else None,
        checkpointed=checkpointed,
        split=split,
        shared_by=4 if is_sharded else 1,
        gathered_bytes=0,
        activation_bytes=0,
        transient_bytes=0,
        recomputed_bytes=0,
        compute_ms=0.0,
        exposed_ms=0.0,
    )


def highest(*options: UnitOption, copies_transfers: bool = False, passes_bytes: int | None = None) -> int:
    """Return the highest moment of equal units."""
    counted = len(options) * KEPT + EDGE + TEMPORARY if passes_bytes is None else passes_bytes
    units = [UNIT] * len(options)
    (found,) = Timeline(units, passes_bytes=counted, copies_transfers=copies_transfers).highest([options])
    return found.working_bytes


@pytest.mark.parametrize("passes_bytes", [295, 100, 4000])
def test_replicas_need_what_was_counted(passes_bytes: int) -> None:
    """Also where the model keeps more than its units, or units overlap."""
    assert highest(*[option(DenseStrategy.REPLICATE)] * 3, passes_bytes=passes_bytes) == passes_bytes


def test_zero2_keeps_all_gathered_weights_until_the_backward_pass() -> None:
    """Three units' weights; then the last one's gradients are copied to be sent in place of its weights."""
    reduced = 2 * W + 2 * W + 2 * KEPT + EDGE
    gathered = 3 * W + W + 2 * KEPT + KEPT  # and the buffer of the last gather, with the forward pass at its end
    assert highest(*[option(DenseStrategy.ZERO2)] * 3) == max(reduced, gathered)


def test_zero3_has_a_unit_twice_while_gradients_are_on_their_way() -> None:
    """As the first unit's weights are copied out of the buffer: what the middle one sent, and the shares of both."""
    found = highest(*[option(DenseStrategy.ZERO3)] * 3)
    assert found == 2 * W + W + 2 * W // 4 + KEPT + EDGE


def test_gloo_takes_a_copy_of_gathered_weights() -> None:
    """Ahead of the middle unit: its weights, the first one's buffer and gloo's copy, and what was sent before."""
    ahead = W + 2 * W + W + W // 4 + 2 * KEPT + EDGE
    assert highest(*[option(DenseStrategy.ZERO3)] * 3, copies_transfers=True) == ahead


def test_a_sharded_unit_has_the_gradients_of_its_other_tensors() -> None:
    """While that of the largest is computed; those of a replica are there from step to step."""
    transient, others = 50 * W, 300
    unit = replace(UNIT, transient=transient, gradients_kept=others)

    def found(strategy: DenseStrategy) -> int:
        timeline = Timeline([unit], passes_bytes=KEPT + EDGE + transient, copies_transfers=False)
        return timeline.highest([[option(strategy)]])[0].working_bytes

    assert found(DenseStrategy.REPLICATE) == KEPT + EDGE + transient
    assert found(DenseStrategy.ZERO3) == KEPT + EDGE + transient + W + others


def test_a_checkpointed_unit_keeps_inputs_that_nothing_else_keeps() -> None:
    """Next to its output, until its own backward pass is over; a unit that keeps its activations does not."""
    unkept = 40
    first, second = replace(UNIT, unkept_inputs=unkept), replace(UNIT, activation=KEPT)

    def found(*, checkpointed: bool, units: Sequence[TimedUnit]) -> int:
        timeline = Timeline(units, passes_bytes=len(units) * KEPT + EDGE + TEMPORARY, copies_transfers=False)
        chosen = [option(DenseStrategy.REPLICATE, checkpointed=checkpointed)] * len(units)
        return timeline.highest([chosen])[0].working_bytes

    assert found(checkpointed=True, units=[first, second]) == 2 * EDGE + unkept + (KEPT - EDGE) + EDGE + TEMPORARY
    assert found(checkpointed=True, units=[second, first]) == 2 * EDGE + unkept + (KEPT - EDGE) + EDGE + TEMPORARY
    assert found(checkpointed=False, units=[first, second]) == 2 * KEPT + EDGE + TEMPORARY


def counted(*, largest: int, transient: int) -> DenseUnit:
    """Return a unit of ten parameters as a profile has it."""
    return DenseUnit(
        module="over",
        num_parameters=10,
        largest_tensor_parameters=largest,
        forward_flops=0,
        backward_flops=0,
        activation_bytes=KEPT,
        input_bytes=EDGE,
        output_bytes=EDGE,
        transient_bytes=transient,
    )


def test_counted_gradients_take_the_place_of_assumed_ones() -> None:
    """The highest moment of a sharded unit is the counted one, higher or lower than a replica's."""
    unit = counted(largest=4, transient=50 * W)
    profile = dense_profile(weights_bytes=40, gradient_bytes=40, optimizer_state_bytes=0, units=(unit,))

    def found(sharded: int | None, strategy: DenseStrategy) -> Moment:
        timed = TimedUnit.of(unit.model_copy(update={"sharded_transient_bytes": sharded}), "over", profile)
        timeline = Timeline([timed], passes_bytes=KEPT + EDGE + 50 * W, copies_transfers=False)
        return timeline.highest([[option(strategy)]])[0]

    computing = KEPT + EDGE + 40  # with its weights
    for sharded, gradients in ((50 * W + 7, 7), (50 * W, 0), (40 * W, 0)):
        assert found(sharded, DenseStrategy.REPLICATE).working_bytes == KEPT + EDGE + 50 * W
        moment = found(sharded, DenseStrategy.ZERO3)
        assert (moment.working_bytes, moment.collective_bytes) == (computing + sharded, 40 + gradients)
    assert found(None, DenseStrategy.ZERO3).working_bytes == computing + 50 * W + 6 * 4, "of an older profile"


def test_gloo_takes_a_copy_of_gradients_that_it_reduces() -> None:
    """Of a unit without weights on the way: what is sent, its copy, the share, and the gradient of the input."""
    weightless = replace(UNIT, own=UnitBytes(weights=0, gradients=W, optimizer_state=2 * W))
    timeline = Timeline([weightless], passes_bytes=KEPT + EDGE + TEMPORARY, copies_transfers=True)

    assert timeline.highest([[option(DenseStrategy.ZERO3)]])[0].working_bytes == 2 * W + W // 4 + EDGE


def test_the_other_tensors_are_all_but_the_largest() -> None:
    """Of a profile that does not say how large it is, the unit counts as one tensor."""
    unit = counted(largest=6, transient=0)
    older = unit.model_copy(update={"largest_tensor_parameters": None})

    profile = dense_profile(weights_bytes=40, gradient_bytes=W, optimizer_state_bytes=0, units=(unit,))

    assert TimedUnit.of(unit, "over", profile).gradients_kept == 4 * W // 10
    assert TimedUnit.of(older, "over", profile).gradients_kept == 0


def test_a_split_unit_gathers_its_operators_one_after_the_other() -> None:
    """The large operator's gradient, as computed and as sent, next to the unit's own weights and gradients."""
    timeline = Timeline([splittable()], passes_bytes=KEPT + EDGE, copies_transfers=False)

    (whole,), (split,) = (timeline.highest([[option(DenseStrategy.ZERO3, split=split)]]) for split in (False, True))

    total = W + 2 * SMALL
    assert whole.working_bytes == 2 * total + KEPT + EDGE
    computed = SMALL + SMALL  # own weights, and own gradients
    # The buffer ahead was copied out; what the small operator sent is dropped only where the large one reduces.
    gathered = SMALL + 2 * W + SMALL + SMALL // 4 + KEPT
    assert split.working_bytes == max(computed + 2 * W + SMALL // 4 + KEPT, gathered)


def test_a_split_unit_has_all_it_needs_while_its_largest_gradient_is_computed() -> None:
    """The highest moment is assumed between operators too: after the large one, with what that sent and its share."""
    transient = 50 * W
    timeline = Timeline([splittable(transient)], passes_bytes=KEPT + EDGE + transient, copies_transfers=False)

    (found,) = timeline.highest([[option(DenseStrategy.ZERO3, split=True)]])

    own_weights_and_gradients = 2 * SMALL
    computing = own_weights_and_gradients + W + SMALL + SMALL // 4 + KEPT + transient
    between = own_weights_and_gradients + W + W // 4 + SMALL // 4 + KEPT + EDGE + transient
    assert found.working_bytes == max(computing, between)


@pytest.mark.parametrize("strategy", list(DenseStrategy))
def test_operators_change_nothing_where_a_unit_is_not_split(strategy: DenseStrategy) -> None:
    """A profile that names operators gives each other option the memory that it had."""
    unit = splittable(transient=7)
    plain = replace(unit, operators=(), rest=UnitBytes(weights=0, gradients=0, optimizer_state=0))

    def found(unit: TimedUnit) -> list[Moment]:
        timeline = Timeline([unit] * 3, passes_bytes=2000, copies_transfers=True)
        return timeline.highest([[option(strategy), option(strategy, checkpointed=True), option(strategy)]])

    assert found(unit) == found(plain)


def test_a_unit_is_recomputed_while_gradients_of_another_are_sent() -> None:
    """Activations of a checkpointed replica next to the last reduction's input and share: both count."""
    large = 50 * W
    units = [replace(UNIT, activation=large), UNIT]
    options = [option(DenseStrategy.REPLICATE, checkpointed=True), option(DenseStrategy.ZERO3)]

    timeline = Timeline(units, passes_bytes=large + KEPT + EDGE + TEMPORARY, copies_transfers=False)
    (found,) = timeline.highest([options])

    assert found.collective_bytes == W + W // 4
    assert found.working_bytes == large + EDGE + TEMPORARY + found.collective_bytes


def test_checkpointing_equal_units_keeps_their_outputs() -> None:
    """All outputs but the last, and one unit's activations."""
    found = highest(*[option(DenseStrategy.REPLICATE, checkpointed=True)] * 3)
    assert found == 2 * EDGE + KEPT + EDGE + TEMPORARY


def test_choices_do_not_change_each_other() -> None:
    """The moments of many choices at once are those of each alone, with units of three parts of the model."""
    rng = random.Random(5)  # noqa: S311 - draws test data
    units = [
        replace(UNIT, part=part, own=UnitBytes(weights=size, gradients=size, optimizer_state=0), transient=size // 3)
        for part, size in zip("aabbbca", (900, 0, 400, 700, 100, 300, 800), strict=True)
    ]
    choices = [
        [option(rng.choice(list(DenseStrategy)), checkpointed=rng.random() < 0.5) for _ in units] for _ in range(50)
    ]
    units[3:5] = splittable(), splittable(transient=30)
    for chosen in choices[::2]:
        chosen[3 + rng.randrange(2)] = option(DenseStrategy.ZERO3, split=True)
    timeline = Timeline(units, passes_bytes=2000, copies_transfers=True)

    assert timeline.highest(choices) == [timeline.highest([each])[0] for each in choices]


def with_operators(unit: DenseUnit, rng: random.Random) -> DenseUnit:
    """Return a unit of two to four operators of random size, with its work in proportion."""
    shares = [rng.randint(1, 9) for _ in range(rng.randint(2, 4))]
    level = unit.activation_bytes + unit.output_bytes
    operators = tuple(
        DenseOperator(
            module=f"{index}",
            num_parameters=unit.num_parameters * share // sum(shares),
            largest_tensor_parameters=unit.num_parameters * share // sum(shares),
            forward_flops=unit.forward_flops * share // sum(shares),
            backward_flops=unit.backward_flops * share // sum(shares),
            forward_bytes=unit.activation_bytes,
            backward_bytes=level,
            transient_bytes=unit.transient_bytes,
            left_bytes=level,
        )
        for index, share in enumerate(shares)
    )
    return unit.model_copy(update={"operators": operators})


def test_no_choice_is_far_below_the_frontier() -> None:
    """Of all choices for random dense parts, the frontier needs 2 % more on average for the same time, at most half."""
    rng, devices = random.Random(2), topology(4)  # noqa: S311 - draws test data
    losses, num_split = [], 0
    for _ in range(12):
        units = tuple(
            DenseUnit(
                module=f"over_arch.{index}",
                num_parameters=rng.randint(2**25, 2**28),
                forward_flops=2**40,
                backward_flops=2**41,
                activation_bytes=rng.randint(2**28, 2**31),
                input_bytes=2**27,
                output_bytes=2**27,
                transient_bytes=2**27,
            )
            for index in range(3)
        )
        units = tuple(with_operators(unit, rng) for unit in units)
        weights = 4 * sum(unit.num_parameters for unit in units)
        passes = sum(unit.activation_bytes for unit in units) + 2**28
        profile = dense_profile(
            weights_bytes=weights,
            gradient_bytes=weights,
            optimizer_state_bytes=2 * weights,
            working_bytes=passes,
            passes_working_bytes=passes,
            optimizer_working_bytes=0,
            units=units,
        )
        options = UnitOptions(
            profile, devices, costs=ExactCosts(devices.device), choices=DenseChoices(), groups=(DenseGroup.NODE,)
        )
        layouts = Layouts(profile, options)
        choices = list(product(*map(options.of, units)))
        num_split += sum(any(each.split for each in chosen) for chosen in choices)
        for chosen, needed in zip(choices, layouts.memory(choices), strict=True):
            memory = needed.total_bytes
            ms = sum(each.ms for each in chosen)
            least = min(each.memory.total_bytes for each in layouts.candidates if each.ms <= ms + 1e-9)
            losses.append(max(least / memory - 1, 0.0))
    assert num_split > 0
    assert sum(losses) / len(losses) < 0.02
    assert max(losses) < 0.5
