"""What a unit of the dense part may be: bytes by hand, and what the choices permit."""

from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DenseGroup,
    DensePolicy,
    DenseStrategy,
    GroupChoice,
    SplittingChoice,
    UnitChoice,
)
from neuroshard_api.documents.dense_profile import DensePass, DenseUnit
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import Reduction
from neuroshard_dense.options import LEAST_SHARDED, UnitBytes, UnitOption, UnitOptions, groups_of
from support.builders import GIB, dense_operators, dense_profile, topology
from support.planner.exact_costs import ExactCosts

P = 2**28
"""Parameters of the unit: 1 GiB in FP32, and with gradient and Adam's state 4."""


def unit(**fields: Any) -> DenseUnit:
    """Return a unit of 2 ** 28 parameters that keeps 3 GiB of activations."""
    return DenseUnit(
        **{
            "module": "interaction",
            "num_parameters": P,
            "forward_flops": 2**43,
            "backward_flops": 2**44,
            "activation_bytes": 3 * GIB,
            "input_bytes": GIB // 2,
            "output_bytes": GIB // 2,
            "transient_bytes": 0,
            **fields,
        }
    )


SPLITTABLE = unit(
    operators=(
        *dense_operators(P // 2, "large"),
        *dense_operators(P // 4, "small"),
        *dense_operators(P // 8, "smaller"),
    )
)
"""An eighth of its parameters is in no operator."""


def options_of(
    one: DenseUnit, devices: Topology | None = None, *groups: DenseGroup, **choices: Any
) -> tuple[UnitOption, ...]:
    """Return the options of a dense part of one unit, whose weights, gradients, and state are 4, 4, and 8 bytes."""
    devices = devices or topology(8)
    num_bytes = 4 * one.num_parameters
    profile = dense_profile(
        weights_bytes=num_bytes, gradient_bytes=num_bytes, optimizer_state_bytes=2 * num_bytes, units=(one,)
    )
    made = UnitOptions(
        profile,
        devices,
        costs=ExactCosts(devices.device),
        choices=DenseChoices(**choices),
        groups=groups or (DenseGroup.NODE,),
    )
    return made.of(one)


def test_compute_has_the_rate_that_was_measured() -> None:
    """Operations of each pass have their own; products have no time of theirs, since a profile does not count them."""
    devices = topology(8)
    measured = MatrixTimes(product_ms=(1.0, 1.0), operation_ms=(2.0**-43, 2.0**-44))
    made = UnitOptions(
        dense_profile(units=(unit(),)),
        devices,
        costs=ExactCosts(devices.device, matrices=measured),
        choices=DenseChoices(),
        groups=(DenseGroup.NODE,),
    )

    assert made.replicated(unit()).compute_ms == 2.0
    assert made.option(unit(), DenseStrategy.ZERO3, DenseGroup.NODE, checkpointed=True).compute_ms == 3.0


@pytest.mark.parametrize("strategy", [DenseStrategy.ZERO2, DenseStrategy.ZERO3])
def test_no_compute_hides_collectives_that_are_waited_for(strategy: DenseStrategy) -> None:
    """A compute that takes 1.3 s hides those of shards entirely, where they overlap; replicas overlap in any case."""
    devices = topology(8)
    shards, replicas = [], []
    for waits in (False, True):
        costs = ExactCosts(devices.device, waits_for_shards=waits)
        made = UnitOptions(
            dense_profile(units=(unit(),)), devices, costs=costs, choices=DenseChoices(), groups=(DenseGroup.NODE,)
        )
        shards.append(made.option(unit(), strategy, DenseGroup.NODE, checkpointed=False).exposed_ms)
        replicas.append(made.replicated(unit()).exposed_ms)

    assert shards[0] == 0.0 < shards[1]
    assert replicas[0] == replicas[1]


def names(options: tuple[UnitOption, ...]) -> set[str]:
    """Return the strategies, with a star where they are checkpointed, and split ones with a slash."""
    return {f"{each.strategy.value}{'*' if each.checkpointed else ''}{'/' if each.split else ''}" for each in options}


def test_small_gradients_travel_together() -> None:
    """DistributedDataParallel reduces those of several units at once, up to its bucket; larger ones alone."""
    devices = topology(8)
    costs = ExactCosts(devices.device)
    small = unit(num_parameters=1000, forward_flops=0, backward_flops=0)
    large = unit(num_parameters=2**24, forward_flops=0, backward_flops=0)

    def exposed_ms(*units: DenseUnit) -> list[float]:
        num_bytes = 4 * sum(each.num_parameters for each in units)
        profile = dense_profile(weights_bytes=num_bytes, gradient_bytes=num_bytes, units=units)
        made = UnitOptions(profile, devices, costs=costs, choices=DenseChoices(), groups=())
        return [made.replicated(each).exposed_ms for each in units]

    def reduced_ms(num_bytes: float) -> float:
        both = costs.reduction_ms(np.array(num_bytes), Reduction(topology=devices, family=Family.REPLICATED))
        return float(both[1])

    assert sum(exposed_ms(small, small, small)) == pytest.approx(reduced_ms(12_000))
    assert exposed_ms(large, small)[0] == pytest.approx(reduced_ms(2**26))
    assert exposed_ms(large, small)[1] < reduced_ms(4000)


def test_each_option_keeps_the_bytes_of_its_formula() -> None:
    """Sixteen bytes per parameter whole or shared by 8; zero2 also keeps the gathered weights during a step."""
    own = UnitBytes(weights=4 * P, gradients=4 * P, optimizer_state=8 * P)
    kept = {
        each.strategy: own.choice(each).kept_bytes
        for each in options_of(unit(), checkpointing=CheckpointingChoice.NEVER)
    }

    assert kept == {
        DenseStrategy.REPLICATE: 0,
        DenseStrategy.ZERO2: -16 * P * 7 // 8 + 4 * P,
        DenseStrategy.ZERO3: -16 * P * 7 // 8,
    }


def test_transients_are_gathered_weights_and_unreduced_gradients() -> None:
    """None where all is whole; a checkpointed unit also has its activations again for a moment."""
    found = options_of(unit())
    transient = {(each.strategy, each.checkpointed): each.transient_bytes for each in found}
    recomputed = {each.checkpointed: each.recomputed_bytes for each in found}

    assert transient[DenseStrategy.REPLICATE, False] == 0
    assert transient[DenseStrategy.ZERO2, False] == 12 * P
    assert transient[DenseStrategy.ZERO3, False] == 16 * P
    assert transient[DenseStrategy.ZERO3, True] == 16 * P
    assert recomputed == {False: 0, True: 5 * GIB // 2}


def test_a_split_unit_has_its_largest_operator_for_a_moment() -> None:
    """And what is in no operator, which is gathered for the whole unit; from step to step the same shares are kept."""
    own = UnitBytes(weights=4 * P, gradients=4 * P, optimizer_state=8 * P)
    whole, split = (
        each for each in options_of(SPLITTABLE) if each.strategy is DenseStrategy.ZERO3 and not each.checkpointed
    )

    assert (whole.split, split.split) == (False, True)
    assert whole.transient_bytes == 16 * P
    assert split.transient_bytes == 16 * (P // 2) + 16 * (P // 8)
    assert own.choice(split).kept_bytes == own.choice(whole).kept_bytes
    assert split.compute_ms == whole.compute_ms
    assert split.planned("interaction").split


def test_each_collective_of_a_split_unit_hides_behind_its_own_operator() -> None:
    """Work of one operator does not hide the gather of another: so splitting takes no less time, and here more."""
    first, second = dense_operators(P // 2, "a", "b")
    work = {"forward_flops": 2 * P * 4096, "backward_flops": 4 * P * 4096}
    first = first.model_copy(update={"forward_flops": 2 * P * 4096, "backward_flops": 4 * P * 4096})
    idle = second.model_copy(update={"forward_flops": 0, "backward_flops": 0})
    whole, split = (
        each
        for each in options_of(unit(operators=(first, idle), **work))
        if each.strategy is DenseStrategy.ZERO3 and not each.checkpointed
    )

    assert whole.exposed_ms == 0
    assert split.exposed_ms > 0


def test_copies_of_sharded_units_have_a_price() -> None:
    """Into and out of the buffer of each gather, and into that of a reduction: 13 / 4 of the weights where 8 share.

    Operators that are gathered alone copy as many bytes by more kernels; what is replicated copies none.
    """
    found = {
        f"{each.strategy.value}{'/' if each.split else ''}": each
        for each in options_of(SPLITTABLE, checkpointing=CheckpointingChoice.NEVER)
    }
    costs, weights = ExactCosts(topology(8).device), 4 * P

    def traffic_ms(moved: int, operations: int) -> float:
        return costs.dense_traffic_ms(DensePass(operations=operations, products=0, moved_bytes=moved))

    gather, reduction = 2 * (weights + weights // 8), 2 * weights
    assert found["replicate"].copies_ms == 0
    assert found["zero2"].copies_ms == traffic_ms(gather + reduction, 3)
    assert found["zero3"].copies_ms == traffic_ms(2 * gather + reduction, 5)
    assert found["zero3/"].copies_ms == pytest.approx(traffic_ms(2 * gather + reduction, 4 * 5))
    assert found["zero3/"].ms > found["zero3"].compute_ms + found["zero3"].exposed_ms + found["zero3"].copies_ms


def test_checkpointing_computes_forward_once_more() -> None:
    """A third of the work on top, and the activations but the output are gone."""
    whole, again = (
        next(each for each in options_of(unit()) if each.group is None and each.checkpointed is checkpointed)
        for checkpointed in (False, True)
    )

    assert again.compute_ms == pytest.approx(whole.compute_ms * 4 / 3)
    assert again.activation_bytes == -5 * GIB // 2


@pytest.mark.parametrize(
    ("one", "choices", "expected"),
    [
        (unit(), {}, {"replicate", "replicate*", "zero2", "zero2*", "zero3", "zero3*"}),
        (unit(), {"checkpointing": CheckpointingChoice.NEVER}, {"replicate", "zero2", "zero3"}),
        (unit(), {"checkpointing": CheckpointingChoice.ALWAYS}, {"replicate*", "zero2*", "zero3*"}),
        (unit(), {"policy": DensePolicy.REPLICATE}, {"replicate", "replicate*"}),
        (unit(activation_bytes=GIB), {}, {"replicate", "zero2", "zero3"}),
        (unit(num_parameters=LEAST_SHARDED - 1), {}, {"replicate", "replicate*"}),
        (
            unit(num_parameters=1000),
            {"policy": DensePolicy.SHARD, "checkpointing": CheckpointingChoice.NEVER},
            {"zero2", "zero3"},
        ),
        (
            unit(),
            {
                "units": (UnitChoice(module="interaction", strategy=DenseStrategy.ZERO3),),
                "checkpointing": CheckpointingChoice.NEVER,
            },
            {"zero3"},
        ),
        (SPLITTABLE, {}, {"replicate", "replicate*", "zero2", "zero2*", "zero3", "zero3*", "zero3/"}),
        (
            SPLITTABLE,
            {"splitting": SplittingChoice.NEVER, "policy": DensePolicy.SHARD},
            {"zero2", "zero2*", "zero3", "zero3*"},
        ),
        (SPLITTABLE, {"splitting": SplittingChoice.ALWAYS, "policy": DensePolicy.SHARD}, {"zero2", "zero2*", "zero3/"}),
        (SPLITTABLE, {"checkpointing": CheckpointingChoice.ALWAYS}, {"replicate*", "zero2*", "zero3*"}),
        (
            unit(num_parameters=1000, operators=dense_operators(500, "a", "b")),
            {"policy": DensePolicy.SHARD, "checkpointing": CheckpointingChoice.NEVER},
            {"zero2", "zero3"},
        ),
        (
            unit(),
            {"splitting": SplittingChoice.ALWAYS},
            {"replicate", "replicate*", "zero2", "zero2*", "zero3", "zero3*"},
        ),
        (unit(num_parameters=0, activation_bytes=0, output_bytes=0), {"policy": DensePolicy.SHARD}, {"replicate"}),
    ],
    ids=[
        "auto",
        "never checkpointed",
        "always checkpointed",
        "replicas alone",
        "activations no larger than weights are not checkpointed",
        "a small dense part is not sharded",
        "a small one is where that is asked for",
        "a unit with a strategy of its own",
        "a large unit with operators",
        "operators gathered together",
        "operators alone, also in place of checkpointing",
        "a checkpointed unit is not split",
        "a small unit is not split",
        "no operators",
        "nothing to shard",
    ],
)
def test_choices_decide_the_options(one: DenseUnit, choices: dict[str, Any], expected: set[str]) -> None:
    """Each case names the one setting that differs."""
    assert names(options_of(one, **choices)) == expected


def test_a_node_shares_and_nodes_average() -> None:
    """On 2 nodes of 4, a node's share is a quarter, and the slower links carry shares of gradients alone."""
    devices = topology(8, num_nodes=2)
    found = {
        each.group: each
        for each in options_of(
            unit(forward_flops=2 * P * 512, backward_flops=4 * P * 512),
            devices,
            *DenseGroup,
            checkpointing=CheckpointingChoice.NEVER,
        )
        if each.strategy is DenseStrategy.ZERO3
    }

    assert {group: each.shared_by for group, each in found.items()} == {DenseGroup.NODE: 4, DenseGroup.WORLD: 8}
    assert found[DenseGroup.NODE].exposed_ms < found[DenseGroup.WORLD].exposed_ms


def test_a_larger_batch_hides_the_gathers() -> None:
    """The weights travel as before, and each byte of them has more work to hide behind."""
    exposed = [
        next(
            each.exposed_ms
            for each in options_of(unit(forward_flops=2 * P * batch, backward_flops=4 * P * batch))
            if each.strategy is DenseStrategy.ZERO3 and not each.checkpointed
        )
        for batch in (128, 1024, 32768)
    ]

    assert exposed[0] > exposed[1] > exposed[2] == 0


@pytest.mark.parametrize(
    ("choice", "num_nodes", "expected"),
    [
        (GroupChoice.AUTO, 1, [["node"]]),
        (GroupChoice.WORLD, 1, [["node"]]),
        (GroupChoice.AUTO, 2, [["node"], ["node", "world"]]),
        (GroupChoice.NODE, 2, [["node"]]),
        (GroupChoice.WORLD, 2, [["world"]]),
    ],
)
def test_nodes_are_tried_before_all_devices(choice: GroupChoice, num_nodes: int, expected: list[list[str]]) -> None:
    """On one node both are the same."""
    found = groups_of(choice, topology(8, num_nodes=num_nodes))

    assert [[group.value for group in groups] for groups in found] == expected
