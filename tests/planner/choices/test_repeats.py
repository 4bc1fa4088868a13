"""Plans that leave out repeated lists, where that costs less."""

from typing import Any

import pytest
from neuroshard_api.documents.bundle import CollectionParts
from neuroshard_api.documents.communication import CommunicationChoices, WireType
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.plan_parts import PlanCost
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.tables import Pooling, Table
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_costs.deduplication import is_grouped, looked_up, product_saved_ms, repeating_groups
from neuroshard_costs.step_cost import added_calls_ms
from neuroshard_planner.errors import RequestError
from neuroshard_planner.planning import searched
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.explain.table import explain_table
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned


def history(name: str, factor: float, group: str | None = None, **fields: Any) -> Table:
    """Return a table of long lists that repeat."""
    defaults = {"pooling_factor": 40.0, "embedding_dim": 64, "num_embeddings": 1_000_000}
    return builders.table(name, duplication_group=group or name, duplication_factor=factor, **{**defaults, **fields})


def asked(*members: Table, **fields: Any) -> PlanRequest:
    """Return a request that may leave out the repeats of every group."""
    tables = builders.table_set(*members, *builders.tables(4), session_run=8)
    defaults = {"deduplicate": tables.duplication_groups, "search": SearchSettings(work_budget=500)}
    return builders.request(tables=tables, **{**defaults, **fields})


def on_all_lists(request: PlanRequest) -> Plan:
    """Return the plan that leaves nothing out."""
    return planned(request.model_copy(update={"deduplicate": None}))


def test_a_plan_leaves_out_repeats_that_cost_more_than_their_expansion() -> None:
    """It says which, in which form, and what that saves; and it is sound and survives JSON."""
    request = asked(history("seen", 8.0, "user"), history("bought", 8.0, "user"), search=builders.QUICK)

    plan = planned(request)

    (group,) = plan.deduplication or ()
    assert (group.group, group.features, group.form) == ("user", ("seen", "bought"), "first_sample")
    assert group.factor == pytest.approx(8.0, rel=0.01)
    assert plan.all_lists_ms is not None
    searched_ms = on_all_lists(request).predicted.total_ms  # the plan's placement may be better on all lists, too
    assert 0.97 * searched_ms <= plan.all_lists_ms <= searched_ms * (1 + 1e-9)
    assert group.saved_ms is not None
    assert plan.predicted.total_ms < 0.7 * plan.all_lists_ms
    assert group.saved_ms >= plan.all_lists_ms - plan.predicted.total_ms - 1e-9
    assert plan.resolved.deduplicate == ("user",)
    assert not plan_problems(plan)
    assert GivenPlan.from_json(plan.to_json()).deduplicated_features == (("seen", "bought"),)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_plan_on_data_that_does_not_repeat_is_the_plan_on_all_lists(factor: float) -> None:
    """To the last byte, but for the record of what was tried; a bound that is not below the plan's needs no search."""
    request = asked(history("seen", factor))

    plan = planned(request)

    assert plan.choices is not None
    assert [each.name for each in plan.choices] == [ChoiceName.REPEATS]
    for tried in plan.choices[0].alternatives:
        assert tried.total_ms is None
        assert "lower bound" in (tried.refusal or "") or "no plan of it takes less" in (tried.refusal or "")
    without = on_all_lists(request)
    assert plan.model_copy(update={"choices": None, "request": without.request}).to_json() == without.to_json()


def test_a_group_that_saves_nothing_is_kept_whole() -> None:
    """Wide embeddings of single lookups cost more to expand than to look up."""
    request = asked(
        history("seen", 8.0), history("city", 1.02, pooling_factor=1.0, embedding_dim=512, num_embeddings=1000)
    )

    plan = planned(request)

    assert [group.group for group in plan.deduplication or ()] == ["seen"]
    assert plan.resolved.deduplicate == ("seen",)


def test_a_feature_of_several_tables_is_in_its_group_once() -> None:
    """Also where these are the blocks of one table's columns, which are wider than a kernel takes."""
    several = [history(name, 8.0, "user", feature_names=("seen",)) for name in ("short", "long")]
    wide_blocks = history("wide", 8.0, "user", embedding_dim=4096, num_embeddings=1000)

    groups = [group for each in (several, [wide_blocks]) for group in planned(asked(*each)).deduplication or ()]

    assert [group.features for group in groups] == [("seen",), ("wide",)]


def test_a_sequence_of_a_group_is_looked_up_as_it_is() -> None:
    """The trainer leaves out repeats of bags alone."""
    request = asked(history("seen", 8.0, "user"), history("clicks", 8.0, "user", pooling=Pooling.NONE))

    (group,) = repeating_groups(request)
    seen, clicks, *_ = looked_up(request).tables.tables

    assert group.features == ("seen",)
    assert seen.pooling_factor < clicks.pooling_factor == 40.0
    assert not is_grouped(clicks, request.model_copy(update={"grouped": ("user",)}))
    assert not plan_problems(planned(request))


def test_memory_has_room_for_a_batch_without_repeats() -> None:
    """The ledger of the plan's shards is that of all lists."""
    request = asked(history("seen", 8.0), num_devices=1)

    assert planned(request).memory == on_all_lists(request).memory


def test_a_table_is_explained_with_its_repeats() -> None:
    """Group, factor, and form where they are left out, and what is known where they are not."""
    wide: dict[str, Any] = {"pooling_factor": 1.0, "embedding_dim": 512, "num_embeddings": 1000}
    request = asked(history("seen", 8.0, pooling_factor=200.0), history("page", 1.01, **wide))
    costs = ExactCosts(request.topology.device)
    plan = planned(request)

    def repeats(name: str) -> str | None:
        return explain_table(plan, name, bundle=costs).repeats

    assert repeats("seen") is not None
    assert "group 'seen', 8.00 samples per distinct list in runs of 8; repeats are left out (first_sample" in str(
        repeats("seen")
    )
    assert repeats("page") == (
        "group 'page', 1.01 samples per distinct list in runs of 8; all lists are looked up: leaving its repeats out "
        "saves nothing"
    )
    assert repeats(request.tables.tables[-1].name) is None


def test_the_search_counts_the_expansion_of_plans_by_columns() -> None:
    """On one device there is one placement: nothing is left between its cost and the lower bound."""
    plan = planned(asked(history("seen", 8.0), topology=builders.topology(1)))

    assert plan.predicted.devices[0].expansion_ms
    assert plan.gap == pytest.approx(0, abs=1e-3)


def wide(name: str, columns: int) -> Table:
    """Return a table of user lists whose embeddings are expensive to exchange."""
    return history(name, 8.0, "user", embedding_dim=columns, pooling_factor=4.0)


def test_a_group_has_its_own_collection_where_that_spares_more_than_its_calls_cost() -> None:
    """Over slow links its embeddings travel for distinct lists alone; the plan says so."""
    devices = builders.topology(8, num_nodes=4)
    request = asked(*(wide(f"wide{index}", 512) for index in range(8)), topology=devices, batch_size_per_device=8192)

    plan = planned(request)

    (group,) = plan.deduplication or ()
    assert (group.form, plan.resolved.grouped) == ("grouped", ("user",))
    first_sample = on_first_samples(request)
    sent, sent_with_repeats = sent_bytes(plan), sent_bytes(first_sample)
    others = sum(table.embedding_dim for table in builders.tables(4)) * 4 * request.global_batch_size
    assert sent - others == pytest.approx((sent_with_repeats - others) / group.factor, rel=0.01)
    assert plan.predicted.total_ms < 0.9 * first_sample.predicted.total_ms
    assert not plan_problems(plan)
    assert GivenPlan.from_json(plan.to_json()).deduplication == plan.deduplication


def test_a_group_of_its_own_saves_a_part_of_the_first_product_with_all_features() -> None:
    """The plan prices it, apart from the embedding part; explanation and step have it, and a narrow group has none."""
    devices = builders.topology(8, num_nodes=4)
    tables = [wide(f"wide{index}", 512) for index in range(8)]
    request = asked(*tables, topology=devices, batch_size_per_device=8192, joint_product_columns=512)
    costs = ExactCosts(devices.device)

    plan = planned(request)

    (group,) = plan.deduplication or ()
    assert group.form == "grouped"
    flops = 2 * 8 * 512 * 512 * 8192 * (1 - 1 / group.factor)
    assert group.product_saved_ms is not None
    products_ms = sum(costs.matrices_ms(flops, 2 * flops))
    assert 0.5 * products_ms < group.product_saved_ms < products_ms
    assert plan.predicted == planned(request.model_copy(update={"joint_product_columns": None})).predicted
    assert "takes their part once per list, which saves" in str(explain_table(plan, "wide0", bundle=costs).repeats)
    assert product_saved_ms(asked(wide("wide", 4), joint_product_columns=512), "user", costs) is None
    assert product_saved_ms(request.model_copy(update={"joint_product_columns": None}), "user", costs) is None


def test_a_group_may_have_its_own_collection_for_the_product_alone() -> None:
    """On one device nothing travels: the form depends on whether the model has such a product."""
    request = asked(*(wide(f"wide{index}", 512) for index in range(4)), num_devices=1, batch_size_per_device=8192)

    forms = {
        columns: [group.form for group in planned(each).deduplication or ()]
        for columns in (None, 512)
        for each in (request.model_copy(update={"joint_product_columns": columns}),)
    }

    assert forms == {None: ["first_sample"], 512: ["grouped"]}


def test_the_product_counts_where_the_embedding_part_takes_longer() -> None:
    """Single lookups of one device cost more to expand than to look up, and the product saves more than that."""
    fields: dict[str, Any] = {"embedding_dim": 512, "pooling_factor": 1.0}
    members = [history(name, 8.0, "user", **fields) for name in ("first", "second")]
    request = asked(*members, num_devices=1, batch_size_per_device=8192, joint_product_columns=2048)

    plan = planned(request)

    (group,) = plan.deduplication or ()
    assert group.form == "grouped"
    added_ms = plan.predicted.total_ms - on_all_lists(request).predicted.total_ms
    assert 0 < added_ms < (group.product_saved_ms or 0.0)


def test_a_group_has_its_own_collection_where_no_other_form_saves() -> None:
    """Single lookups of wide rows cost more to expand than to look up; their exchange is spared all the same."""
    devices = builders.topology(8, num_nodes=4)
    fields: dict[str, Any] = {"embedding_dim": 512, "pooling_factor": 1.0}
    several = [history(name, 8.0, "user", **fields) for name in ("first", "second")]
    request = asked(*several, history("page", 1.3, **fields), topology=devices, batch_size_per_device=8192)

    for each in (request.model_copy(update={"deduplicate": ("user",)}), request):
        plan = planned(each)

        assert {group.group: group.form for group in plan.deduplication or ()}["user"] == "grouped"
        assert plan.predicted.total_ms < 0.9 * on_all_lists(request).predicted.total_ms
        assert plan.choices is not None
        first, *_, last = plan.choices[0].alternatives
        assert first.refusal is not None
        assert "of its own" in last.text or "of their own" in last.text
        assert not plan_problems(plan)


def test_narrow_types_are_tried_without_the_collections_that_spare_as_much() -> None:
    """Both shorten the same exchange: to permit both is not dearer than to permit one of them."""
    members = [history(f"seen{index}", 2.0, "user", embedding_dim=128, pooling_factor=1.0) for index in range(4)]
    members += builders.tables(2, embedding_dim=128)
    half = CommunicationChoices(forward=(WireType.FP16,), backward=(WireType.FP16,))
    both = asked(
        *(table.model_copy(update={"name": f"table{index}"}) for index, table in enumerate(members)),
        topology=builders.topology(8, num_nodes=2),
        batch_size_per_device=4096,
        constraints=Constraints(sharding_types=BY_COLUMNS),
        communication=half,
    )

    plan, narrow, grouped = (
        planned(both.model_copy(update={field: None} if field else {}))
        for field in (None, "deduplicate", "communication")
    )

    assert grouped.resolved.grouped == ("user",)
    assert plan.predicted.total_ms <= 1.001 * min(narrow.predicted.total_ms, grouped.predicted.total_ms)
    assert plan.choices is not None
    last = plan.choices[-1].alternatives[-1]
    assert last.text.endswith("no collection of its own")
    assert last.refusal is None
    assert plan.communication is not None
    assert plan.communication.exact_ms == on_all_lists(grouped.request).predicted.total_ms
    assert not plan_problems(plan)


def sent_bytes(plan: Plan) -> int:
    """Return the bytes of pooled embeddings that all devices send."""
    found = (each for device in plan.predicted.devices for each in device.collectives)
    return sum(each.num_bytes for each in found if each.kind is CollectiveKind.ALL_TO_ALL)


def on_first_samples(request: PlanRequest) -> Plan:
    """Return the plan without repeats and without collections of groups."""
    return searched(request, ExactCosts(request.topology.device), None)


def test_a_group_stays_in_the_common_collection_where_calls_cost_more() -> None:
    """Narrow embeddings on one node spare less than two more all-to-alls and one of indices take."""
    request = asked(history("seen", 8.0, embedding_dim=4), batch_size_per_device=512)

    (group,) = planned(request).deduplication or ()

    assert group.form == "first_sample"


def test_a_plan_of_groups_is_not_below_its_bound() -> None:
    """The bound counts what distinct lists send, and the calls of further collections."""
    devices = builders.topology(2)
    request = asked(wide("wide", 512), topology=devices).model_copy(update={"grouped": ("user",)})

    plan = on_first_samples(request)

    assert plan.lower_bound_ms <= plan.predicted.total_ms
    added = added_calls_ms(request, ExactCosts(devices.device))
    assert added.min() > 0
    whole = on_first_samples(request.model_copy(update={"grouped": None}))
    assert plan.predicted.devices[0].forward_communication_ms < whole.predicted.devices[0].forward_communication_ms


def test_a_measured_call_of_a_collection_is_in_the_price_of_a_group() -> None:
    """Its exchanges and kernels, in parts and total alike, and the bound; without such a group it costs nothing."""
    devices = builders.topology(2)
    request = asked(wide("wide", 512), topology=devices)
    call = CollectionParts(indices_ms=6.0, compute_ms=(0.6, 0.3), exchange_ms=(7.0, 2.0))
    plain, measured = ExactCosts(devices.device), ExactCosts(devices.device, added_collection=call)

    plan = searched(request.model_copy(update={"grouped": ("user",)}), measured, None)
    assert plan.lower_bound_ms <= plan.predicted.total_ms

    def cost(costs: ExactCosts, grouped: tuple[str, ...] | None) -> PlanCost:
        problem = Problem(request.model_copy(update={"grouped": grouped}), costs)
        return predicted_cost(problem, placement_of(plan.tables, problem), plan.predicted.source)

    assert cost(measured, None) == cost(plain, None)
    before, after = cost(plain, ("user",)), cost(measured, ("user",))
    assert after == plan.predicted
    own, without = after.devices[0], before.devices[0]
    assert own.forward_compute_ms - without.forward_compute_ms == pytest.approx(0.6)
    assert own.backward_compute_ms - without.backward_compute_ms == pytest.approx(0.3)
    added = added_calls_ms(request.model_copy(update={"grouped": ("user",)}), plain)
    assert own.forward_communication_ms - without.forward_communication_ms == pytest.approx(7.0 - added[0])
    assert 5 < own.input_communication_ms - without.input_communication_ms < 6
    parts = own.input_communication_ms + own.forward_communication_ms + own.backward_communication_ms
    parts += own.forward_compute_ms + own.backward_compute_ms + own.wait_ms + (own.expansion_ms or 0.0)
    assert after.total_ms == pytest.approx(parts, rel=0.05)
    alone = request.model_copy(update={"topology": builders.topology(1), "grouped": ("user",)})
    assert added_calls_ms(alone, measured).tolist() == [0.0, 0.0]


def test_tables_of_a_group_of_its_own_are_not_cut_by_rows() -> None:
    """Parts of rows are added up for equally many lists on every device."""
    only_rows = Constraints(sharding_types=(ShardingType.ROW_WISE,))
    request = asked(wide("wide", 256), constraints=only_rows).model_copy(update={"grouped": ("user",)})

    with pytest.raises(RequestError, match=r"'wide'.*row_wise adds up parts of equally many lists on every device"):
        on_first_samples(request)
    (group,) = planned(request.model_copy(update={"grouped": None})).deduplication or ()
    assert group.form == "first_sample"


@pytest.mark.slow
def test_repeats_are_left_out_next_to_tables_in_host_memory() -> None:
    """Where device memory does not hold the tables; what host memory takes is counted for all lists."""
    devices = builders.topology(2, memory_bytes=7 * builders.GIB, host_memory=builders.host_memory())
    kernels = Constraints(compute_kernels=(ComputeKernel.FUSED, ComputeKernel.FUSED_UVM))
    large = builders.table("large", num_embeddings=100_000_000, pooling_factor=0.01)
    request = asked(history("seen", 8.0), large, topology=devices, constraints=kernels)

    plan = planned(request)

    assert [group.group for group in plan.deduplication or ()] == ["seen"]
    assert [table.name for table in plan.tables if table.compute_kernel.is_on_host] == ["large"]
    assert not plan_problems(plan)
    costs = ExactCosts(devices.device)
    added = []
    for groups in (None, request.deduplicate):
        problem = Problem(request.model_copy(update={"deduplicate": groups}), costs)
        placement = placement_of(plan.tables, problem)
        added.append(problem.host_ms(problem.device_sums(placement.kinds, placement.devices)).sum())
    assert added[0] == added[1] > 0


def test_only_groups_without_repeats_have_collections() -> None:
    """The field is named."""
    with pytest.raises(ValueError, match=r"grouped\[0\]: 'user' is not in deduplicate"):
        builders.request(tables=builders.table_set(history("seen", 8.0, "user"), session_run=8), grouped=("user",))
