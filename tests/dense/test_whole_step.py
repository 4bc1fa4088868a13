"""The whole step of a plan: the longer of devices and host on a GPU, their sum on a CPU."""

from typing import Any

import pytest
from neuroshard_api.documents.communication import CommunicationChoices, WireType, WireTypes
from neuroshard_api.documents.dense_profile import DensePass, DensePasses, DenseProfile
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, Shard, TablePlacement
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import DataType, Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.host import host_work
from neuroshard_dense.whole_step import with_whole_step
from neuroshard_planner.levers import with_levers
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.explain.comparison import compare
from neuroshard_report.explain.step import step_gain, step_text
from support.builders import dense_profile, device_type, request, table, table_set, tables, topology
from support.planner.exact_costs import ExactCosts

LEAST = SearchSettings(work_budget=300)
FOUR = topology(4, device=device_type(name="cpu-test"))


def profile_of(members: tuple[Table, ...], *, operations: int, moved_bytes: int = 0) -> DenseProfile:
    """Return a dense part of no products, with this many operations in each pass."""
    one = DensePass(operations=operations, products=0, moved_bytes=moved_bytes)
    return dense_profile(*members, passes=DensePasses(forward=one, backward=one, optimizer=one, num_tensors=10))


def planned(devices: Topology, *, operations: int | None, moved_bytes: int = 0, **fields: Any) -> Plan:
    """Return a plan of four tables, next to a dense part of this many operations; None: it is not counted."""
    members = tables(4)
    asked = request(*members, topology=devices, search=LEAST, **fields)
    if operations is not None:
        counted = profile_of(members, operations=operations, moved_bytes=moved_bytes)
        asked = asked.with_dense(counted, where="dense profile")
    return plan(asked, bundle=ExactCosts(device=devices.device))


def placed(members: tuple[Table, ...], *kinds: ShardingType) -> tuple[TablePlacement, ...]:
    """Return the tables on the first device, or with a copy or a part on both of two devices."""
    found = []
    for each, kind in zip(members, kinds, strict=True):
        devices = (0,) if kind is ShardingType.TABLE_WISE else (0, 1)
        shards = tuple(Shard(device=device, num_rows=10, num_columns=8) for device in devices)
        found.append(TablePlacement(name=each.name, sharding_type=kind, shards=shards))
    return tuple(found)


def asked_for(*members: Table, **fields: Any) -> PlanRequest:
    """Return the request of some tables on two devices."""
    return request(*members, num_devices=2, **fields)


def test_a_step_is_the_longer_of_devices_and_host() -> None:
    """Many small operations bind the host, much traffic the devices; the plan's share is named in the second alone."""
    of_host = planned(topology(4), operations=10_000)
    of_devices = planned(topology(4), operations=10, moved_bytes=10**11)

    for found, is_host_bound in ((of_host, True), (of_devices, False)):
        step = found.step
        assert step is not None
        assert step.total_ms == max(step.device_ms, step.host.total_ms)
        assert step.device_ms == step.embedding_ms + (step.dense_ms or 0)
        assert step.embedding_ms == found.predicted.total_ms
        assert step.is_host_bound is is_host_bound
        assert (step.decided_share == 0) is is_host_bound
    assert "bound by the host" in (step_text(of_host) or "")
    assert "a better plan changes nothing" in (step_text(of_host) or "")
    assert "the plan decides" in (step_text(of_devices) or "")


def test_a_cpu_does_what_the_host_does_after_what_devices_do() -> None:
    """One thread has both."""
    step = planned(FOUR, operations=100).step

    assert step is not None
    assert step.total_ms == pytest.approx(step.device_ms + step.host.total_ms)
    assert not step.is_host_bound


def test_a_product_that_is_computed_once_per_list_is_taken_off_the_dense_part() -> None:
    """Of the plan, and not of the baselines, which compute it for every sample."""
    found = planned(topology(4), operations=10, moved_bytes=10**11)
    assert found.step is not None
    group = DeduplicatedGroup(group="user", features=("t0",), factor=4.0, product_saved_ms=1.5)

    once = with_whole_step(
        found.model_copy(update={"deduplication": (group,)}), costs=ExactCosts(found.request.topology.device)
    )

    assert once.step is not None
    assert once.step.dense_ms == pytest.approx((found.step.dense_ms or 0.0) - 1.5)
    assert once.step.total_ms == pytest.approx(found.step.total_ms - 1.5)
    assert once.baselines == found.baselines


def test_a_step_without_a_counted_dense_part_is_a_lower_limit() -> None:
    """Its sentence says that the dense part is missing, and no gain of a step is shown."""
    found = planned(topology(4), operations=None)

    assert found.step is not None
    assert found.step.dense_ms is None
    assert "not counted" in (step_text(found) or "")
    assert all(step_gain(found, each) is None for each in found.baselines)


@pytest.mark.parametrize(("operations", "moved_bytes"), [(10_000, 0), (10, 10**11)], ids=["host", "devices"])
def test_forms_that_the_host_needs_longer_for_are_taken_where_devices_decide_the_step(
    operations: int, moved_bytes: int
) -> None:
    """Codecs and collections of groups' own shorten the embedding part; no lever promises what a plan refuses."""
    is_host_bound = not moved_bytes
    members = tables(8, embedding_dim=256, pooling_factor=1.0)
    counted = profile_of(members, operations=operations, moved_bytes=moved_bytes)
    repeating = [
        each.model_copy(update={"duplication_group": "user", "duplication_factor": 8.0} if index % 2 else {})
        for index, each in enumerate(members)
    ]
    asked = request(
        tables=table_set(*repeating, session_run=8),
        topology=topology(8, num_nodes=4),
        constraints=Constraints(sharding_types=BY_COLUMNS),
        search=LEAST,
    ).with_dense(counted, where="dense profile")
    half = CommunicationChoices(forward=(WireType.FP16,), backward=(WireType.FP16,))
    costs = ExactCosts(device=asked.topology.device)
    exact = plan(asked, bundle=costs)
    assert exact.step is not None

    for permitted in ({"communication": half}, {"deduplicate": ("user",)}):
        found = plan(asked.model_copy(update=permitted), bundle=costs)

        assert found.step is not None
        assert found.step.is_host_bound is is_host_bound
        assert (found.predicted.total_ms < 0.95 * exact.predicted.total_ms) is not is_host_bound
        assert found.step.total_ms <= exact.step.total_ms
        reasons = [each.refusal for choice in found.choices or () for each in choice.alternatives]
        reasons += [found.communication.reason] if found.communication is not None else []
        assert any("the host needs" in (reason or "") for reason in reasons) is is_host_bound
    named = {each.name for each in with_levers(exact, costs=costs).levers or ()}
    assert ({LeverName.WIRE_TYPES, LeverName.REPEATS} & named != set()) is not is_host_bound


def test_a_gain_is_one_of_the_embedding_part_and_one_of_the_step() -> None:
    """The step's is less where devices decide it, and about nothing where the host does."""
    of_host = planned(topology(4), operations=10_000)
    of_devices = planned(topology(4), operations=10, moved_bytes=10**11)
    for found in (of_host, of_devices):
        for each in found.baselines:
            if each.total_ms is None:
                continue
            gain, of_tables = step_gain(found, each), 1 - found.predicted.total_ms / each.total_ms
            assert gain is not None
            assert abs(gain) <= max(abs(of_tables), 0.05)
            assert each.step_ms is not None
            assert each.step_ms >= each.total_ms


def test_baselines_have_the_types_that_tables_are_bound_to_on_the_host() -> None:
    """They obey constraints, so that they cost the host the same exchange of rows."""
    free = planned(topology(4), operations=10_000)
    bound = TableConstraints(sharding_types=(ShardingType.ROW_WISE,))
    found = planned(topology(4), operations=10_000, constraints=Constraints(tables={free.tables[0].name: bound}))

    def steps(of: Plan) -> set[float | None]:
        return {each.step_ms for each in of.baselines if each.total_ms is not None}

    assert found.step is not None
    assert min(each or 0.0 for each in steps(found)) > max(each or 0.0 for each in steps(free))
    assert all(each == pytest.approx(found.step.total_ms, rel=0.01) for each in steps(found))


def test_each_collection_and_sharding_family_exchanges_on_its_own() -> None:
    """Copies exchange nothing forward; a column-wise table makes a split of each table next to it."""
    members = (
        table("a", collection="x"),
        table("b", collection="x"),
        table("c", collection="y"),
        table("d", collection="y"),
    )
    kinds = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL, ShardingType.COLUMN_WISE)
    work = host_work(asked_for(*members), placed(members, *kinds))

    assert (work.collections, work.columns, work.rows, work.copies) == (2, 2, 1, 1)
    assert work.calls == 4
    assert work.column_tables == 1
    assert work.encoded == 0


def test_a_device_calls_a_lookup_module_for_each_type_of_weights() -> None:
    """Of the device with most; tables of one type share it, and so do several devices."""
    members = (table("a"), table("b", data_type=DataType.FP16), table("c"))
    kinds = (ShardingType.TABLE_WISE,) * 3

    assert host_work(asked_for(*members), placed(members, *kinds)).calls == 2
    assert host_work(asked_for(table("a"), table("c")), placed((table("a"), table("c")), *kinds[:2])).calls == 1


def test_codecs_are_passes_of_the_host_too() -> None:
    """One pair in each direction for each exchange of pooled embeddings."""
    members = (table("a"), table("b"))
    wire = WireTypes(forward=WireType.BF16, backward=WireType.BF16)
    kinds = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)

    assert host_work(asked_for(*members, wire=wire), placed(members, *kinds)).encoded == 2


def test_a_comparison_has_the_step_of_each_algorithm() -> None:
    """Next to the same dense part: they differ by their embedding part and their exchanges."""
    members = tables(4)
    asked = request(*members, topology=topology(4), search=LEAST)
    asked = asked.with_dense(profile_of(members, operations=10, moved_bytes=10**11), where="dense profile")
    wanted = (Algorithm.NEUROSHARD, Algorithm.DIM_GREEDY)
    outcomes = [
        each.outcome for each in compare(asked, bundle=ExactCosts(device=asked.topology.device), algorithms=wanted)
    ]

    steps = [each.step for each in outcomes if each is not None]
    assert len(steps) == 2
    assert steps[0].dense_ms == steps[1].dense_ms is not None
    assert [each.embedding_ms for each in steps] == [each.predicted.total_ms for each in outcomes if each is not None]


def test_a_host_bound_step_is_named_without_a_counted_dense_part() -> None:
    """Up to which dense part the host decides is known without it."""
    found = planned(topology(4), operations=None)
    step = found.step
    assert step is not None

    text = step_text(found) or ""

    assert step.is_host_bound
    assert f"less than {step.host.total_ms - step.device_ms:.2f} ms, a better plan changes nothing" in text
    assert "larger batches, or CUDA graphs" in text


def test_a_host_bound_plan_of_several_families_names_a_baseline_whose_step_is_shorter() -> None:
    """Fewer families would change it, and what restricts them is named."""
    found = planned(topology(4), operations=None)
    step = found.step
    assert step is not None
    copied, *others = found.tables
    devices = tuple(Shard(device=device, num_rows=10, num_columns=8) for device in range(4))
    copied = copied.model_copy(update={"sharding_type": ShardingType.DATA_PARALLEL, "shards": devices})
    longer = step.model_copy(
        update={
            "total_ms": 2 * step.total_ms,
            "host": step.host.model_copy(update={"tables_ms": 2 * step.host.tables_ms}),
        }
    )
    several = found.model_copy(update={"tables": (copied, *others), "step": longer})

    text = step_text(several) or ""

    assert "a better plan with as many families of sharding types changes nothing" in text
    assert f"takes at least {step.total_ms:.2f} ms; constraints.sharding_types restricts them" in text
