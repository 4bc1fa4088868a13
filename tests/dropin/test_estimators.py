"""Cost models in each other's places, on the planners of both sides."""

from collections.abc import Sequence

import numpy as np
import pytest
from neuroshard_api.documents.topology import Topology as OwnTopology
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import pooled_exchange
from neuroshard_costs.own_costs import OwnCosts
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_torchrec import DropInError, NeuroShardPlanner, TorchRecCosts
from neuroshard_torchrec.estimators import NeuroShardEstimator
from support.dropin.dropin_models import META, TwoTowers, config
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ParameterConstraints, ShardEstimator, ShardingOption, Topology
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

SAMPLES = 4096
SHARDERS = [EmbeddingBagCollectionSharder()]
TOPOLOGY = Topology(world_size=4, compute_device="cuda", local_world_size=4, hbm_cap=80 * 2**30)


def ours() -> NeuroShardPlanner:
    """Return a planner for four simulated H100."""
    return NeuroShardPlanner(TOPOLOGY, SAMPLES, device_type="h100-80gb")


def options_of(
    module: nn.Module, estimator: ShardEstimator, limits: dict[str, ParameterConstraints] | None = None
) -> Sequence[ShardingOption]:
    """Return TorchRec's options of all tables with their prices."""
    estimators = [estimator, EmbeddingStorageEstimator(topology=TOPOLOGY, constraints=limits)]
    found: Sequence[ShardingOption] = EmbeddingEnumerator(
        topology=TOPOLOGY, batch_size=SAMPLES, constraints=limits, estimator=estimators
    ).enumerate(module, SHARDERS)
    return found


def test_torchrecs_planner_plans_by_our_cost_models() -> None:
    """All tables of all collections get a place, among kernels that have a price."""
    module = TwoTowers()
    estimator = ours().estimator(module, SHARDERS)
    enumerator = EmbeddingEnumerator(
        topology=TOPOLOGY,
        batch_size=SAMPLES,
        estimator=[estimator, EmbeddingStorageEstimator(topology=TOPOLOGY)],
    )
    planner = EmbeddingShardingPlanner(topology=TOPOLOGY, batch_size=SAMPLES, enumerator=enumerator)
    found = planner.plan(module, SHARDERS).plan

    assert {path: sorted(tables) for path, tables in found.items()} == {
        "users": ["country", "id"],
        "items": ["id", "tags"],
    }
    assert {each.compute_kernel for tables in found.values() for each in tables.values()} <= {"fused", "dense"}


def test_shards_of_all_whole_tables_cost_what_the_devices_do_together() -> None:
    """To a tenth, where launches are little: prices of shards may be added up."""
    names = [f"t{index}" for index in range(64)]
    module = EmbeddingBagCollection(tables=[config(name, rows=10**6, columns=64) for name in names], device=META)
    whole = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"], pooling_factors=[50.0])
    limits = dict.fromkeys(names, whole)
    planner = NeuroShardPlanner(TOPOLOGY, SAMPLES, device_type="h100-80gb", constraints=limits)
    perfs = [option.shards[0].perf for option in options_of(module, planner.estimator(module), limits)]
    planner.plan(module)
    plan = planner.last_plan
    assert plan is not None

    devices = plan.predicted.devices
    for field, total_ms in (
        ("fwd_compute", sum(each.forward_compute_ms for each in devices)),
        ("bwd_compute", sum(each.backward_compute_ms for each in devices)),
        ("fwd_comms", 4 * devices[0].forward_communication_ms),
        ("bwd_comms", 4 * devices[0].backward_communication_ms),
    ):
        assert sum(getattr(each, field) for each in perfs) == pytest.approx(total_ms, rel=0.1), field


def test_more_lookups_and_more_columns_cost_more() -> None:
    """Each of the times that they take part in."""
    tables = [config("plain"), config("wide", columns=64), config("hot")]
    module = EmbeddingBagCollection(tables=tables, device=META)
    hot = ParameterConstraints(pooling_factors=[200.0])
    planner = NeuroShardPlanner(TOPOLOGY, SAMPLES, device_type="h100-80gb", constraints={"hot": hot})
    whole = {
        option.name: option.shards[0].perf
        for option in options_of(module, planner.estimator(module))
        if (option.sharding_type, option.compute_kernel) == ("table_wise", "fused")
    }

    assert whole["wide"].fwd_comms > whole["plain"].fwd_comms
    assert whole["wide"].bwd_compute > whole["plain"].bwd_compute
    assert whole["hot"].fwd_compute > whole["plain"].fwd_compute
    assert whole["hot"].input_dist_comms > whole["plain"].input_dist_comms
    assert whole["hot"].fwd_comms == whole["plain"].fwd_comms


def test_kernels_without_a_price_cost_infinitely_much() -> None:
    """Tables in host memory, for example: TorchRec takes them where nothing else is left."""
    module = EmbeddingBagCollection(tables=[config("a")], device=META)
    by_kernel = {
        (option.sharding_type, option.compute_kernel): option.total_perf
        for option in options_of(module, ours().estimator(module))
    }

    assert np.isinf(by_kernel["table_wise", "fused_uvm"])
    assert 0 < by_kernel["table_wise", "fused"] < np.inf
    assert 0 < by_kernel["data_parallel", "dense"] < np.inf
    assert by_kernel["row_wise", "fused"] < np.inf


def test_an_estimator_of_another_module_is_named() -> None:
    """With the table and its path."""
    estimator = ours().estimator(EmbeddingBagCollection(tables=[config("a")], device=META))

    with pytest.raises(DropInError, match="table 'id' at 'items' is not in the module that the estimator was made for"):
        options_of(TwoTowers(), estimator)


def test_torchrecs_estimator_is_a_cost_model_of_three_methods() -> None:
    """Demands are what it gives each table, and exchanges what it gives its columns."""
    tables = [
        config("a", rows=10**6, columns=64),
        config("b", rows=10**4, columns=16, features=("x", "y")),
        config("c", data_type=DataType.FP16),
    ]
    module = EmbeddingBagCollection(tables=tables, device=META)
    limits = {
        name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"], pooling_factors=factors)
        for name, factors in (("a", [20.0]), ("b", [3.0, 3.0]), ("c", [1.0]))
    }
    planner = NeuroShardPlanner(TOPOLOGY, SAMPLES, device_type="h100-80gb", constraints=limits)
    planner.plan(module)
    assert planner.last_plan is not None
    request = planner.last_plan.request
    costs = TorchRecCosts(TOPOLOGY)

    shards = shard_arrays(request.tables, global_batch_size=request.global_batch_size, optimizer=request.optimizer)
    theirs = options_of(module, EmbeddingPerfEstimator(topology=TOPOLOGY, constraints=limits), limits)
    perfs = {option.name: option.shards[0].perf for option in theirs}
    wanted = [(perfs[name].fwd_compute, perfs[name].bwd_compute) for name in "abc"]
    assert costs.demands(shards) == pytest.approx(np.array(wanted))
    exchange = pooled_exchange(request)
    both = costs.transfer_ms(np.array([64.0, 128.0]), exchange)
    assert both[0] == pytest.approx([perfs["a"].fwd_comms, perfs["a"].bwd_comms])
    assert both[1] == pytest.approx(2 * both[0])


def test_our_planner_plans_by_torchrecs_estimator() -> None:
    """The plan is sound, names the model, and costs what TorchRec's numbers add up to."""
    base = bundled_bundle("h100-80gb")
    own = OwnCosts(
        TorchRecCosts(TOPOLOGY),
        base=base,
        name="torchrec",
        version="1",
        compute_mape=0.5,
        communication_mape=0.5,
    )
    planner = NeuroShardPlanner(TOPOLOGY, SAMPLES, bundle=own)
    planner.plan(TwoTowers())
    plan = planner.last_plan

    assert plan is not None
    assert plan_problems(plan) == []
    assert plan.bundle.name == "torchrec"
    assert isinstance(plan.request.topology, OwnTopology)
    assert plan.lower_bound_ms <= plan.predicted.total_ms
    assert isinstance(planner.estimator(TwoTowers()), NeuroShardEstimator)
