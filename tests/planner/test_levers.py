"""What would help a plan: named where it pays, with the option and the field, and kept as promised."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.documents.topology import Link
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_planner.levers import PROMISE_ERROR, LeverRequest, Promises, questions, saved_share, with_levers
from neuroshard_planner.planning import searched_ms
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.terminal.plan import render_plan
from rich.console import Console
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

from benchmarks.tasks import roomy_request, task_tables


def levered(request: PlanRequest) -> Plan:
    """Return the plan of a request with its levers."""
    return with_levers(planned(request), costs=ExactCosts(request.topology.device))


def exchanging(**fields: Any) -> PlanRequest:
    """Return a request whose exchange between nodes takes most of the step."""
    defaults = {
        "topology": builders.topology(16, num_nodes=2),
        "batch_size_per_device": 8192,
        "search": SearchSettings(work_budget=2000),
        "constraints": Constraints(sharding_types=BY_COLUMNS),
    }
    return builders.request(*builders.tables(32, embedding_dim=128), **{**defaults, **fields})


def test_a_lever_that_pays_is_named_with_its_option_and_kept() -> None:
    """The plan with it costs what was promised, within 3 %."""
    plan = levered(exchanging())

    assert plan.levers is not None
    (wire,) = (each for each in plan.levers if each.name is LeverName.WIRE_TYPES)
    costs = ExactCosts(plan.request.topology.device)
    (question,) = (each for each in questions(plan, costs=costs) if each.name is LeverName.WIRE_TYPES)
    assert planned(question.request).predicted.total_ms == pytest.approx(wire.total_ms, rel=0.03)
    assert wire.total_ms < 0.9 * plan.predicted.total_ms
    assert wire.option == (
        "--set 'spec.training.communication.policy=Auto' "
        "--set 'spec.experimental.communication.embeddings={forward: [BF16], backward: [BF16]}'"
    )
    assert plan.levers == tuple(sorted(plan.levers, key=lambda each: -each.saved_share))
    assert Plan.from_json(plan.to_json()) == plan
    console = Console(width=500, record=True)
    console.print(render_plan(plan))
    assert f"; {wire.option}" in console.export_text()


@pytest.mark.parametrize(
    "fields",
    [
        {
            "topology": builders.topology(1),
            "constraints": Constraints(data_types=(DataType.FP32,)),
            "batch_size_per_device": 1_048_576,
        },
        {"algorithm": Algorithm.DIM_GREEDY},
    ],
    ids=["nothing travels, types are given, and batches are large", "baseline"],
)
def test_no_lever_is_named_where_none_helps(fields: dict[str, Any]) -> None:
    """The plan has no such field."""
    plan = levered(exchanging(**fields))

    assert plan.levers is None
    assert "levers" not in plan.to_json()


def test_what_is_permitted_already_is_no_lever() -> None:
    """Also where the plan decided against it, and where the job's trainer could not do it."""
    repeated = [
        table.model_copy(update={"duplication_group": "user", "duplication_factor": 1.01})
        for table in builders.tables(4)
    ]
    request = builders.request(tables=builders.table_set(*repeated, session_run=8), search=builders.QUICK)

    costs = ExactCosts(request.topology.device)
    assert LeverName.REPEATS in {each.name for each in questions(planned(request), costs=costs)}
    for groups in (("user",), ()):
        asked = planned(request.model_copy(update={"deduplicate": groups}))
        assert LeverName.REPEATS not in {each.name for each in questions(asked, costs=costs)}


def test_what_the_source_of_a_request_refuses_is_no_lever() -> None:
    """Neither asked about nor named."""
    request = exchanging(refused_levers=(LeverName.WIRE_TYPES, LeverName.NODES), search=builders.QUICK)
    plan = planned(request)

    asked = {each.name for each in questions(plan, costs=ExactCosts(request.topology.device))}

    assert asked == {LeverName.STORED_TYPES, LeverName.BATCH_SIZE}


def asked_for(**fields: Any) -> dict[LeverName, list[LeverRequest]]:
    """Return the levers that a plan of few small tables is asked about."""
    request = builders.request(
        *builders.tables(4, num_embeddings=20_000),
        **{
            "topology": builders.topology(8, num_nodes=2),
            "optimizer": Optimizer.SGD,
            "search": builders.QUICK,
            **fields,
        },
    )
    found: dict[LeverName, list[LeverRequest]] = {}
    for each in questions(planned(request), costs=ExactCosts(request.topology.device)):
        found.setdefault(each.name, []).append(each)
    return found


def test_other_batch_sizes_and_nodes_are_judged_by_the_time_per_sample() -> None:
    """Half and twice the batch, a node less and a node more; each with its option and field."""
    found = asked_for(batch_size_per_device=512)

    assert [each.num_samples for each in found[LeverName.BATCH_SIZE]] == [8 * 1024, 8 * 256]
    assert [each.option for each in found[LeverName.BATCH_SIZE]] == ["--batch-size 1024", "--batch-size 256"]
    assert [each.num_samples for each in found[LeverName.NODES]] == [12 * 512, 4 * 512]
    assert [each.field for each in found[LeverName.NODES]] == ["spec.trainer.numNodes: 3", "spec.trainer.numNodes: 1"]
    plan = planned(builders.request(search=builders.QUICK))
    twice = LeverRequest(LeverName.BATCH_SIZE, "", plan.request, "", "", 2 * plan.request.global_batch_size)
    assert saved_share(plan, twice, 1.5 * plan.predicted.total_ms) == pytest.approx(0.25)


def test_another_batch_is_promised_after_a_descent_from_the_plan() -> None:
    """Two whole tables leave two of four devices idle, until a descent cuts them."""
    request = builders.request(
        *builders.tables(2, embedding_dim=256, pooling_factor=200.0),
        topology=builders.topology(4),
        batch_size_per_device=8192,
        constraints=Constraints(sharding_types=(ShardingType.TABLE_WISE,)),
        search=SearchSettings(work_budget=4000),
    )
    free = request.model_copy(update={"constraints": Constraints(sharding_types=BY_COLUMNS)})
    plan, costs = planned(request).model_copy(update={"request": free}), ExactCosts(request.topology.device)
    twice, _ = (each for each in questions(plan, costs=costs) if each.name is LeverName.BATCH_SIZE)

    promised = Promises(plan, costs=costs).total_ms(twice)

    problem = Problem(twice.request, costs)
    assert promised == pytest.approx(planned(twice.request).predicted.total_ms, rel=0.03)
    assert 1.1 * (promised or 0.0) < float(problem.total_ms([placement_of(plan.tables, problem)])[0])


def test_other_nodes_of_devices_in_a_file_are_set_there() -> None:
    """`--devices 3x4` would take the usual links of the device type, which are not those of the plan."""
    usual = preset("h100-80gb").topology(num_nodes=2, devices_per_node=4)
    slow = usual.model_copy(update={"inter_node": Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)})

    options = [asked_for(topology=each)[LeverName.NODES][0].option for each in (usual, slow)]

    batch = f"--batch-size {asked_for(topology=usual)[LeverName.NODES][0].request.batch_size_per_device}"
    assert options == [f"--devices 3x4 {batch}", f"num_nodes: 3 in the file of --devices, with {batch}"]


@pytest.mark.parametrize(
    ("ask", "tolerance"),
    [(exchanging, 1e-9), (lambda: roomy_request(task_tables()[0], 16, devices_per_node=8), 0.03)],
    ids=["whole, where the request names as little work", "short"],
)
def test_other_nodes_of_few_tables_are_promised_by_a_search(ask: Callable[[], PlanRequest], tolerance: float) -> None:
    """A short one ends near a whole one."""
    asked = ask()
    plan, costs = planned(asked), ExactCosts(asked.topology.device)
    more, _ = (each for each in questions(plan, costs=costs) if each.name is LeverName.NODES)

    found = planned(more.request)

    assert Promises(plan, costs=costs).total_ms(more) == pytest.approx(found.predicted.total_ms, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "num_nodes", "gap"),
    [(LeverName.NODES, 1, 0.3), (LeverName.NODES, 2, 0.0), (LeverName.NODES, 1, 0.0), (LeverName.BATCH_SIZE, 2, 0.0)],
    ids=["a gap so wide that short searches scatter", "a third node", "a second node", "a longer step"],
)
def test_a_lever_is_promised_in_other_sharding_types_where_these_promise_less(
    name: LeverName, num_nodes: int, gap: float
) -> None:
    """A plan by columns, as on these devices, would exchange over the slow network what copies keep at home."""
    slow = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
    free = builders.request(
        *builders.tables(4, num_embeddings=1_000, embedding_dim=64, pooling_factor=40.0),
        topology=builders.topology(2 * num_nodes, num_nodes=num_nodes, inter_node=slow),
        batch_size_per_device=4096,
        search=SearchSettings(),
    )
    by_columns = planned(free.model_copy(update={"constraints": Constraints(sharding_types=BY_COLUMNS)}))
    plan, costs = by_columns.model_copy(update={"request": free, "gap": gap}), ExactCosts(free.topology.device)
    more = next(each for each in questions(plan, costs=costs) if each.name is name)

    promised = Promises(plan, costs=costs).total_ms(more)

    found = planned(more.request)
    assert not all(table.sharding_type.is_by_columns for table in found.tables)
    assert promised == pytest.approx(found.predicted.total_ms, rel=1e-9)


@pytest.mark.parametrize("name", [LeverName.WIRE_TYPES, LeverName.BATCH_SIZE])
def test_levers_of_plans_of_other_sharding_types_are_promised_by_the_search_that_finds_them(name: LeverName) -> None:
    """Fewer tables are worth copying where the others exchange less, or exchange more at once."""
    slow = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
    asked = builders.request(
        *builders.tables(6, num_embeddings=20_000, embedding_dim=64, pooling_factor=40.0),
        topology=builders.topology(4, num_nodes=2, inter_node=slow),
        batch_size_per_device=4096,
        search=SearchSettings(),
    )
    plan, costs = planned(asked), ExactCosts(asked.topology.device)
    lever = next(each for each in questions(plan, costs=costs) if each.name is name)
    problem = Problem(lever.request, costs)
    (stays_ms,) = problem.total_ms([placement_of(plan.tables, problem)])

    promised = Promises(plan, costs=costs).total_ms(lever)

    found_ms = planned(lever.request).predicted.total_ms
    assert not all(table.sharding_type.is_by_columns for table in plan.tables)
    assert promised == pytest.approx(found_ms, rel=1e-9)
    assert found_ms < stays_ms * 0.99


def test_other_nodes_that_the_bound_excludes_are_not_promised() -> None:
    """A second node adds exchanges over a slow network; a search finds no plan that saves as much as is named."""
    slow = Link(bandwidth_bytes_per_second=1e9, latency_seconds=20e-6)
    plan = planned(exchanging(topology=builders.topology(4, inter_node=slow)))
    costs = ExactCosts(plan.request.topology.device)
    (more,) = (each for each in questions(plan, costs=costs) if each.name is LeverName.NODES)

    assert Promises(plan, costs=costs).total_ms(more) is None
    assert saved_share(plan, more, planned(more.request).predicted.total_ms) <= PROMISE_ERROR


def repeating(num_nodes: int, width: int, pooling_factor: float) -> PlanRequest:
    """Return a request of twelve tables, the lists of every other one repeated four times."""
    tables = [
        table.model_copy(update={"duplication_group": "user", "duplication_factor": 4.0} if position % 2 else {})
        for position, table in enumerate(builders.tables(12, embedding_dim=width, pooling_factor=pooling_factor))
    ]
    return builders.request(
        tables=builders.table_set(*tables, session_run=8),
        topology=builders.topology(4, num_nodes=num_nodes),
        constraints=Constraints(sharding_types=BY_COLUMNS),
        search=SearchSettings(work_budget=4000),
    )


@pytest.mark.parametrize(
    ("num_nodes", "width", "pooling_factor"), [(1, 64, 40.0), (4, 256, 1.0)], ids=["long", "short"]
)
def test_repeats_of_few_tables_are_promised_by_what_a_search_finds(
    num_nodes: int, width: int, pooling_factor: float
) -> None:
    """What a descent from the uneven placement finds is not enough; of short lists the grouped form alone pays."""
    plan = planned(repeating(num_nodes, width, pooling_factor))
    costs = ExactCosts(plan.request.topology.device)
    (repeats,) = (each for each in questions(plan, costs=costs) if each.name is LeverName.REPEATS)

    promised = Promises(plan, costs=costs).total_ms(repeats)

    assert promised == pytest.approx(planned(repeats.request).predicted.total_ms, rel=0.03)
    assert saved_share(plan, repeats, promised or 0.0) > PROMISE_ERROR


@pytest.mark.parametrize(("width", "forms"), [(32, [True, False]), (256, [True])], ids=["near", "apart"])
def test_both_forms_of_repeats_are_searched_where_even_devices_do_not_tell(
    width: int, forms: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of narrow tables the form that is 2 % behind on even devices is the better one."""
    plan = planned(repeating(1, width, 12.0))
    costs = ExactCosts(plan.request.topology.device)
    (repeats,) = (each for each in questions(plan, costs=costs) if each.name is LeverName.REPEATS)
    found: dict[bool, float | None] = {}

    def noted(request: PlanRequest, *given: Any, **options: Any) -> float | None:
        found[bool(request.grouped)] = searched_ms(request, *given, **options)
        return found[bool(request.grouped)]

    monkeypatch.setattr("neuroshard_planner.levers.searched_ms", noted)
    promised = Promises(plan, costs=costs).total_ms(repeats)

    assert list(found) == forms
    assert promised == min(each for each in found.values() if each is not None)


def test_other_nodes_of_many_tables_are_promised_by_even_devices() -> None:
    """The promise is near the plan that a whole search finds; where the tables do not fit, there is none."""
    request = builders.request(
        *builders.tables(96, embedding_dim=128, num_embeddings=27_000_000),
        topology=builders.topology(24, num_nodes=3),
        search=SearchSettings(work_budget=6_000),
        constraints=Constraints(sharding_types=BY_COLUMNS),
    )
    plan, costs = planned(request), ExactCosts(request.topology.device)
    more, less = (each for each in questions(plan, costs=costs) if each.name is LeverName.NODES)

    found = planned(more.request).predicted.total_ms

    assert Promises(plan, costs=costs).total_ms(more) == pytest.approx(found, rel=0.03)
    assert Promises(plan, costs=costs).total_ms(less) is None


def test_narrow_types_of_tables_in_host_memory_are_promised_by_a_search() -> None:
    """Tables that fit on the devices as FP16 return to them: the plan's own placement would promise a fraction."""
    host = builders.topology(2, memory_bytes=4 * builders.GIB, host_memory=builders.host_memory(64 * builders.GIB))
    kernels = Constraints(compute_kernels=tuple(ComputeKernel), sharding_types=BY_COLUMNS)
    members = [builders.table(f"t{row}", num_embeddings=9_000_000, optimizer=Optimizer.SGD) for row in range(4)]
    plan = planned(builders.request(*members, topology=host, constraints=kernels, search=builders.QUICK))
    assert sum(each.host_bytes for each in plan.memory) > 0
    costs = ExactCosts(host.device)
    (lever,) = (each for each in questions(plan, costs=costs) if each.name is LeverName.STORED_TYPES)

    promised_ms = Promises(plan, costs=costs).total_ms(lever)

    found = planned(lever.request)
    assert not any(each.host_bytes for each in found.memory)
    assert promised_ms == pytest.approx(found.predicted.total_ms, rel=0.03)


def test_the_field_of_each_lever_is_one_of_a_job() -> None:
    """Written as `field: value`; where a lever has two fields, with `with` between them."""
    table = builders.tables(4)[0].model_copy(update={"duplication_group": "user", "duplication_factor": 2.0})
    repeated = builders.request(tables=builders.table_set(table, session_run=8), search=builders.QUICK)
    of_repeats = questions(planned(repeated), costs=ExactCosts(repeated.topology.device))
    levers = [*of_repeats, *(each for found in asked_for().values() for each in found)]
    wide = exchanging(search=builders.QUICK)
    levers += questions(planned(wide), costs=ExactCosts(wide.topology.device))

    assert {each.name for each in levers} == set(LeverName)
    for lever in levers:
        data = builders.job_data()
        for text in lever.field.split(", with "):
            path, _, value = text.partition(": ")
            *parts, last = path.split(".")
            place = data
            for part in parts:
                place = place.setdefault(part, {})
            place[last] = yaml.safe_load(value)
        DLRMTrainingJob.from_data(data)


def test_groups_are_asked_about_where_they_could_be_formed() -> None:
    """With the average of their copies; not where an optimizer's state, pinned devices, or host memory exclude them."""
    groups = asked_for()[LeverName.DEVICE_GROUPS]

    assert {each.option for each in groups} == {"--set 'spec.planner.shardingGroups={sizes: [4]}'"}
    assert all(each.added_ms > 0 and each.request.topology.num_devices == 4 for each in groups)
    for fields in (
        {"optimizer": Optimizer.ADAM},
        {"replication": ReplicationChoices()},
        {"constraints": Constraints(forbidden_devices=(0,))},
    ):
        assert LeverName.DEVICE_GROUPS not in asked_for(**fields)
    assert LeverName.NODES not in asked_for(constraints=Constraints(forbidden_devices=(0,)))


def test_what_does_not_fit_is_not_promised() -> None:
    """One node has too little memory for tables that two nodes hold."""
    wide = builders.tables(4, num_embeddings=45_000_000, embedding_dim=128, pooling_factor=0.1)
    plan = levered(builders.request(*wide, topology=builders.topology(2, num_nodes=2), search=builders.QUICK))

    assert all("1 node " not in each.text for each in plan.levers or ())


def test_groups_that_save_exchanges_over_a_slow_network_are_named() -> None:
    """And the plan with them costs what was promised, its averages included."""
    slow = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
    request = builders.request(
        *builders.tables(4, num_embeddings=20_000, embedding_dim=16, pooling_factor=5.0),
        topology=builders.topology(8, num_nodes=2, inter_node=slow),
        optimizer=Optimizer.SGD,
        constraints=Constraints(sharding_types=BY_COLUMNS),
        search=SearchSettings(work_budget=2000),
    )
    plan = levered(request)

    (lever,) = (each for each in plan.levers or () if each.name is LeverName.DEVICE_GROUPS)
    with_groups = planned(request.model_copy(update={"replication": ReplicationChoices(group_sizes=(4,))}))
    assert with_groups.replication is not None
    assert with_groups.predicted.total_ms == pytest.approx(lever.total_ms, rel=0.1)
    assert lever.num_samples is None
