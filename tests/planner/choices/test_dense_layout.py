"""The dense part next to the tables: replicas where they fit, otherwise the fastest layout that leaves enough."""

import math
import random
from typing import Any

import pytest
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
from neuroshard_api.documents.dense_profile import DensePass, DensePasses, DenseProfile, DenseUnit
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import MemorySettings, PlanRequest, SearchSettings
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_dense.layouts import MOST_POINTS, LayoutCandidate, Layouts
from neuroshard_dense.options import UnitOptions
from neuroshard_planner.choices.dense_layout import joint_plan
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_report.explain.dense import explained_units
from support.builders import GIB, dense_profile, request, table, tables, topology
from support.depth import depth
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

MEMBERS = tables(8, num_embeddings=40_000_000, embedding_dim=128)
"""Eight tables of 19 GiB: two on each of four devices."""
LAYERS = 16
LEAST = SearchSettings(work_budget=300)


def profile_of(
    members: tuple[Table, ...], *, num_parameters: int = 2**27, activation_bytes: int = GIB, **fields: Any
) -> DenseProfile:
    """Return 16 equal layers, by default of 2 GiB with Adam and 1 GiB of activations each."""
    weights = 4 * num_parameters * LAYERS
    layer = DenseUnit(
        module="interaction.layers.0",
        repeats=LAYERS,
        further_modules=tuple(f"interaction.layers.{index}" for index in range(1, LAYERS)),
        num_parameters=num_parameters,
        forward_flops=2 * num_parameters * 8192,
        backward_flops=4 * num_parameters * 8192,
        activation_bytes=activation_bytes,
        input_bytes=activation_bytes // 8,
        output_bytes=activation_bytes // 8,
        transient_bytes=activation_bytes // 8,
    )
    return dense_profile(
        *members,
        weights_bytes=weights,
        gradient_bytes=weights,
        optimizer_state_bytes=2 * weights,
        working_bytes=LAYERS * activation_bytes,
        passes_working_bytes=LAYERS * activation_bytes,
        optimizer_working_bytes=weights,
        units=(layer,),
        **fields,
    )


def asked(profile: DenseProfile, members: tuple[Table, ...] = MEMBERS, **fields: Any) -> PlanRequest:
    """Return a request for four devices with a very small budget of work."""
    defaults = {"search": LEAST, "memory": MemorySettings(reserve_fraction=0.05)}
    return request(*members, **{**defaults, **fields}).with_dense(profile, where="dense.json")


def test_what_fits_is_replicated_and_placed_as_with_the_same_bytes_given() -> None:
    """The placement is that of the request without units, and no layout is written down."""
    small = profile_of(MEMBERS, num_parameters=2**20, activation_bytes=2**20)

    found = planned(asked(small))

    given = request(
        *MEMBERS,
        search=LEAST,
        memory=MemorySettings(reserve_fraction=0.05, dense_bytes=small.total_bytes),
    )
    assert found.dense is None
    assert found.placement_sha256 == planned(given).placement_sha256
    assert planned(given).replicated_dense is planned(given).dense_cost is None


def test_replicas_have_a_predicted_time_as_layouts_do() -> None:
    """The compute of all layers, and their all-reduce where compute does not hide it; a layout has one of its own."""
    small = planned(asked(profile_of(MEMBERS, num_parameters=2**20, activation_bytes=2**20)))
    large = planned(asked(profile_of(MEMBERS)))

    assert small.replicated_dense is not None
    assert small.replicated_dense == small.dense_cost
    assert small.replicated_dense.compute_ms > 0
    assert small.replicated_dense.source.startswith("simulated:")
    assert Plan.from_data(small.model_dump(mode="json", exclude_none=True)) == small
    assert large.dense is not None
    assert large.dense_cost is not None
    assert (large.replicated_dense, large.dense_cost.passes_ms) == (None, large.dense.dense_ms)
    assert large.dense_cost.total_ms == large.dense_cost.passes_ms + (large.dense_cost.optimizer_ms or 0)
    assert large.step is not None
    assert large.step.dense_ms == large.dense_cost.total_ms


def test_what_does_not_fit_is_sharded_until_it_does() -> None:
    """48 GiB of dense part next to 38 GiB of tables on 80 GiB: refused with replicas, planned without."""
    profile = profile_of(MEMBERS)

    with pytest.raises(InfeasibleError, match=r"shard the dense part.*in place of 48 GiB"):
        planned(asked(profile, dense_choices=DenseChoices(policy=DensePolicy.REPLICATE, checkpointing=NEVER)))
    found = planned(asked(profile))

    assert found.dense is not None
    assert len(found.dense.units) == LAYERS
    assert max(each.used_bytes for each in found.memory) <= 80 * GIB
    assert found.dense.memory.total_bytes < 80 * GIB - 38 * GIB
    assert plan_problems(found) == []
    assert Plan.from_data(found.model_dump(mode="json", exclude_none=True)) == found


NEVER = CheckpointingChoice.NEVER


def test_the_host_has_the_collectives_of_each_sharded_module() -> None:
    """Of 16 that are all sharded: a gather and a reduction each in zero2, one gather more in zero3."""
    one = DensePass(operations=100, products=16, moved_bytes=0)
    counted = profile_of(
        MEMBERS,
        num_parameters=2**20,
        activation_bytes=2**20,
        passes=DensePasses(forward=one, backward=one, optimizer=one, num_tensors=32),
    )

    def launches(strategy: DenseStrategy) -> int:
        named = (UnitChoice(module="interaction", strategy=strategy),)
        found = planned(asked(counted, dense_choices=DenseChoices(units=named, checkpointing=NEVER)))
        assert found.step is not None
        return found.step.host.launches

    replicas, zero2, zero3 = map(launches, DenseStrategy)
    assert zero2 - replicas == LAYERS * (3 + 2)
    assert zero3 - zero2 == LAYERS * 3


def test_activations_that_weigh_more_than_weights_are_checkpointed() -> None:
    """With few parameters and much memory for activations nothing is sharded: recomputing is enough."""
    profile = profile_of(MEMBERS, num_parameters=2**20, activation_bytes=3 * GIB)

    found = planned(asked(profile))

    assert found.dense is not None
    assert {unit.strategy for unit in found.dense.units} == {DenseStrategy.REPLICATE}
    assert any(unit.checkpointed for unit in found.dense.units)
    assert found.dense.added_ms > 0


def test_shard_shards_every_unit_also_where_replicas_fit() -> None:
    """The policy by hand."""
    small = profile_of(MEMBERS, num_parameters=2**20, activation_bytes=2**20)

    found = planned(asked(small, dense_choices=DenseChoices(policy=DensePolicy.SHARD)))

    assert found.dense is not None
    assert DenseStrategy.REPLICATE not in {unit.strategy for unit in found.dense.units}


def test_all_devices_share_units_only_where_nodes_are_not_enough() -> None:
    """Two nodes of two devices: a half of each layer is too much, a quarter is not, and a warning says its price."""
    profile = profile_of(MEMBERS, num_parameters=5 * 2**26, activation_bytes=2**20)
    devices = topology(4, num_nodes=2)

    found = planned(asked(profile, topology=devices))

    assert found.dense is not None
    assert DenseGroup.WORLD in {unit.group for unit in found.dense.units}
    assert any("shared by the devices of all nodes" in warning for warning in found.warnings)


def test_a_dense_part_that_never_fits_is_named_in_the_refusal() -> None:
    """The tables alone fill the devices."""
    members = tables(14, num_embeddings=40_000_000, embedding_dim=128)

    with pytest.raises(InfeasibleError, match=r"sharded and checkpointed dense part, .* is not enough"):
        planned(asked(profile_of(members), members))


def named(module: str, strategy: DenseStrategy = DenseStrategy.ZERO3, **fields: Any) -> DenseChoices:
    """Return choices that name the strategy of one path."""
    return DenseChoices(units=(UnitChoice(module=module, strategy=strategy),), **fields)


def test_a_strategy_for_a_module_that_there_is_not_is_refused() -> None:
    """The field, what was found, and the modules that there are."""
    wanted = (
        r"dense_choices\.units\[0\]\.module: .*'interactoin'"
        r"; hint: name one of interaction\.layers\.0, .* and 4 more"
    )

    with pytest.raises(RequestError, match=wanted):
        planned(asked(profile_of(MEMBERS), dense_choices=named("interactoin")))


def test_one_of_equal_modules_may_have_a_strategy_of_its_own() -> None:
    """The third layer is sharded, and under auto all others that fit are replicated."""
    small = profile_of(MEMBERS, activation_bytes=2**20, num_parameters=2**24)
    choices = named("interaction.layers.2")

    found = planned(asked(small, dense_choices=choices))

    assert found.dense is not None
    sharded = [unit.module for unit in found.dense.units if unit.strategy is not DenseStrategy.REPLICATE]
    assert sharded == ["interaction.layers.2"]
    assert found.request.dense_choices == choices


def test_what_fits_is_replicated_also_where_all_is_to_be_checkpointed() -> None:
    """Sharding would take less time than replicas, whose gradients travel whole, and auto shards nothing that fits."""
    small = profile_of(MEMBERS, num_parameters=2**25, activation_bytes=2**27)

    found = planned(asked(small, dense_choices=DenseChoices(checkpointing=CheckpointingChoice.ALWAYS)))

    assert found.dense is not None
    assert {(unit.strategy, unit.checkpointed) for unit in found.dense.units} == {(DenseStrategy.REPLICATE, True)}


@pytest.mark.parametrize("choices", [DenseChoices(policy=DensePolicy.SHARD), named("interaction")])
def test_shards_on_one_device_are_a_warning(choices: DenseChoices) -> None:
    """There is nobody to share with, so all is replicated."""
    members = tables(2, num_embeddings=1_000_000, embedding_dim=128)
    small = profile_of(members, num_parameters=2**20, activation_bytes=2**20)

    found = planned(asked(small, members, topology=topology(1), dense_choices=choices))

    assert found.dense is None
    assert any(warning.startswith("dense_choices: units are to be sharded") for warning in found.warnings)


@pytest.mark.parametrize("splitting", list(SplittingChoice))
def test_a_split_that_is_asked_for_where_no_unit_has_operators_is_a_warning(splitting: SplittingChoice) -> None:
    """Whether units are sharded or not; what is decided by size says nothing."""
    members = tables(2, num_embeddings=1_000_000, embedding_dim=128)
    small = profile_of(members, num_parameters=2**20, activation_bytes=2**20)
    for policy in (DensePolicy.AUTO, DensePolicy.SHARD):
        found = planned(asked(small, members, dense_choices=DenseChoices(policy=policy, splitting=splitting)))

        warned = [each for each in found.warnings if each.startswith("dense_choices.splitting: ")]
        assert len(warned) == (splitting is SplittingChoice.ALWAYS)


def test_shards_that_are_asked_for_take_all_devices_where_a_node_has_one() -> None:
    """Two nodes of one device: the group auto goes on to all devices."""
    members = tables(2, num_embeddings=1_000_000, embedding_dim=128)
    small = profile_of(members, num_parameters=2**20, activation_bytes=2**20)
    choices = DenseChoices(policy=DensePolicy.SHARD)

    found = planned(asked(small, members, topology=topology(2, num_nodes=2), dense_choices=choices))

    assert found.dense is not None
    assert {unit.group for unit in found.dense.units} == {DenseGroup.WORLD}


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            DenseChoices(policy=DensePolicy.REPLICATE, checkpointing=NEVER, group=GroupChoice.NODE),
            r"policy=Shard; spec\.experimental\.denseParallelism\.group=Auto\): it then needs",
        ),
        (
            DenseChoices(policy=DensePolicy.SHARD, checkpointing=NEVER, group=GroupChoice.NODE),
            r"shard the dense part \(spec\.experimental\.denseParallelism\.group=Auto\): it then needs",
        ),
    ],
    ids=["policy and group", "group"],
)
def test_a_refusal_names_the_settings_that_differ(choices: DenseChoices, words: str) -> None:
    """Two nodes of two devices: a half of each layer is too much for the tables, a quarter is not."""
    profile = profile_of(MEMBERS, num_parameters=5 * 2**26, activation_bytes=2**20)

    with pytest.raises(InfeasibleError, match=words):
        planned(asked(profile, topology=topology(4, num_nodes=2), dense_choices=choices))


def test_a_refusal_prices_the_checkpointing_that_the_request_permits() -> None:
    """Activations alone are too large: shards do not help while nothing may be checkpointed."""
    profile = profile_of(MEMBERS, num_parameters=2**24, activation_bytes=4 * GIB)
    choices = DenseChoices(policy=DensePolicy.REPLICATE, checkpointing=NEVER)

    with pytest.raises(InfeasibleError, match=r"; a sharded dense part, .* is not enough by columns"):
        planned(asked(profile, dense_choices=choices))


def test_an_explanation_proposes_what_the_request_permits() -> None:
    """Shares of a half within nodes, by name: a quarter over all devices would be smaller, and is not permitted."""
    small = profile_of(MEMBERS, num_parameters=2**24, activation_bytes=2**20)
    devices = topology(4, num_nodes=2)
    choices = named("interaction", group=GroupChoice.NODE, checkpointing=NEVER)

    found = planned(asked(small, topology=devices, dense_choices=choices))

    explained = explained_units(found, costs=ExactCosts(devices.device))
    assert [(each.kept, each.smaller) for each in explained] == [("zero3 over 2", None)]


def test_an_explanation_of_a_split_whose_profile_lacks_operators_is_refused() -> None:
    """Its time cannot be worked out; the module is named."""
    small = profile_of(MEMBERS, num_parameters=2**24, activation_bytes=2**20)
    devices = topology(4, num_nodes=2)
    found = planned(asked(small, topology=devices, dense_choices=named("interaction", checkpointing=NEVER)))
    assert found.dense is not None
    units = tuple(each.model_copy(update={"split": True}) for each in found.dense.units)
    split = found.model_copy(update={"dense": found.dense.model_copy(update={"units": units})})

    with pytest.raises(RequestError, match=r"splits module 'interaction\..*names no operators"):
        explained_units(split, costs=ExactCosts(devices.device))


@pytest.mark.parametrize("group", list(GroupChoice))
def test_tables_that_fit_next_to_no_layout_are_searched_once_next_to_the_smallest(group: GroupChoice) -> None:
    """Where a named unit excludes replicas, that is the only search, whatever groups and stages there are."""
    huge = tables(8, num_embeddings=400_000_000, embedding_dim=128)
    choices = named("interaction.layers.3", group=group)
    whole = asked(profile_of(huge), huge, topology=topology(4, num_nodes=2), dense_choices=choices)
    costs, tried = ExactCosts(whole.topology.device), []

    def search(given: PlanRequest) -> Plan:
        tried.append(given.dense_bytes)
        memory = given.memory.model_copy(update={"dense_bytes": given.dense_bytes})
        return plan(given.model_copy(update={"dense": None, "dense_memory": None, "memory": memory}), bundle=costs)

    with pytest.raises(InfeasibleError, match="the tables need"):
        joint_plan(whole, costs=costs, search=search)

    assert len(tried) == 1
    assert tried[0] < whole.dense_bytes / 2


def test_a_profile_that_does_not_name_repeated_modules_is_refused() -> None:
    """As earlier releases counted it, where a layout is needed."""
    old = profile_of(MEMBERS)
    layers = tuple(unit.model_copy(update={"further_modules": None}) for unit in old.units)

    with pytest.raises(RequestError, match="count the dense part again"):
        planned(asked(old.model_copy(update={"units": layers})))


def test_a_layout_needs_its_memory() -> None:
    """A plan that lost it is refused with the field."""
    found = planned(asked(profile_of(MEMBERS)))
    data = found.model_dump(mode="json", exclude_none=True)
    del data["dense"]["memory"]

    with pytest.raises(ValueError, match=r"dense\.memory"):
        Plan.from_data(data)


def test_a_long_frontier_is_written_down_in_part() -> None:
    """A dense part of many different layers has more layouts than a plan names; the ends are there."""
    profile, devices = profile_of(MEMBERS), topology(4)
    options = UnitOptions(
        profile, devices, costs=ExactCosts(devices.device), choices=DenseChoices(), groups=(DenseGroup.NODE,)
    )
    layouts = Layouts(profile, options)
    first, *_, last = layouts.candidates
    layouts.candidates = (*[first] * 300, last)

    points = layouts.layout(first, source="simulated:test").frontier

    assert len(points) == MOST_POINTS
    assert points[0].memory_bytes == first.memory.total_bytes
    assert points[-1].memory_bytes == last.memory.total_bytes


def test_groups_of_devices_keep_replicas() -> None:
    """A plan with groups has no layout; asking for one is refused."""
    small = profile_of(MEMBERS, num_parameters=2**20, activation_bytes=2**20)
    members = tables(8, num_embeddings=1_000_000, embedding_dim=128)
    profile = small.model_copy(update={"features_sha256": profile_of(members).features_sha256})
    groups = {"replication": ReplicationChoices(group_sizes=(2,)), "optimizer": Optimizer.SGD}

    assert planned(asked(profile, members, **groups)).dense is None
    with pytest.raises(RequestError, match="dense_choices: groups train"):
        planned(asked(profile, members, **groups, dense_choices=DenseChoices(policy=DensePolicy.SHARD)))


def test_a_plan_that_lost_its_layout_has_other_memory() -> None:
    """That of a replicated dense part, on each device."""
    found = planned(asked(profile_of(MEMBERS)))

    problems = plan_problems(found.model_copy(update={"dense": None}))

    assert any(problem.startswith("memory[0].dense_bytes") for problem in problems)


@pytest.mark.parametrize("activation_bytes", [2**24, 2**30])
@pytest.mark.parametrize("choices", [DenseChoices(), DenseChoices(checkpointing=CheckpointingChoice.NEVER)])
def test_no_layout_that_keeps_all_units_one_way_beats_the_frontier(
    choices: DenseChoices, activation_bytes: int
) -> None:
    """For each of ZeRO-2 and ZeRO-3 of all units, the frontier has one that takes no more memory and no more time."""
    profile, devices = profile_of(MEMBERS, activation_bytes=activation_bytes), topology(2)
    costs = ExactCosts(devices.device, waits_for_shards=True)

    def layouts(asked: DenseChoices) -> Layouts:
        return Layouts(profile, UnitOptions(profile, devices, costs=costs, choices=asked, groups=(DenseGroup.NODE,)))

    frontier = layouts(choices).candidates
    for strategy in (DenseStrategy.ZERO2, DenseStrategy.ZERO3):
        named = DenseChoices(
            checkpointing=CheckpointingChoice.NEVER,
            splitting=SplittingChoice.NEVER,
            units=(UnitChoice(module="interaction", strategy=strategy),),
        )
        (uniform,) = layouts(named).candidates
        no_larger = [each for each in frontier if each.memory.total_bytes <= uniform.memory.total_bytes]
        assert min(each.ms for each in no_larger) <= uniform.ms


@pytest.mark.deep
def test_the_joint_choice_is_within_a_percent_of_every_share_of_the_memory() -> None:
    """Over eight layouts at even distances of the frontier, each with a search of the tables next to it."""
    rng = random.Random(5)  # noqa: S311 - draws test data
    for _ in range(depth(1, 2)):
        members = tuple(
            table(f"t{index}", num_embeddings=rng.randint(10, 30) * 1_000_000, embedding_dim=128) for index in range(12)
        )
        profile = profile_of(members, num_parameters=rng.randint(3, 5) * 2**25)
        whole = asked(profile, members, search=SearchSettings(work_budget=2000))
        costs = ExactCosts(whole.topology.device)
        options = UnitOptions(profile, whole.topology, costs=costs, choices=DenseChoices(), groups=(DenseGroup.NODE,))
        candidates = Layouts(profile, options).candidates

        found = plan(whole, bundle=costs)

        own = 0.0 if found.dense is None else found.dense.added_ms
        least = min(
            tables_ms(whole, candidates[index]) + candidates[index].ms - Layouts(profile, options).plain.ms
            for index in {round(place * (len(candidates) - 1) / 7) for place in range(8)}
        )
        assert found.predicted.total_ms + own <= 1.01 * least + 0.01 * Layouts(profile, options).plain.ms


def tables_ms(whole: PlanRequest, candidate: LayoutCandidate) -> float:
    """Return the cost of the tables next to a dense part in a layout; infinite where they do not fit."""
    memory = MemorySettings(reserve_fraction=0.05, dense_bytes=candidate.memory.total_bytes)
    try:
        return planned(whole.model_copy(update={"dense": None, "memory": memory})).predicted.total_ms
    except InfeasibleError:
        return math.inf
