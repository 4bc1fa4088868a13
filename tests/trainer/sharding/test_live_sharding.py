"""What the proof of the live sharding compares next to the shards."""

from collections.abc import Sequence

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer, Pooling, Table
from neuroshard_api.job.model import Model
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.sharding.live_sharding import live_kernel, planned_sharding, prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from support import builders
from support.planner.placements import by_columns, by_rows, given_plan
from support.trainer.trainer_builders import TABLES, job_data
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

CPU = torch.device("cpu")


def with_pooling(pooling: Pooling | None) -> Sequence[Table]:
    """Return the tables with a declared pooling, or none."""
    return [table.model_copy(update={"pooling": pooling}) for table in TABLES]


def plan_with(pooling: Pooling | None, kind: ShardingType) -> GivenPlan:
    """Return a plan of all tables on one device."""
    topology = builders.topology(1)
    tables = with_pooling(pooling)
    is_whole = kind is ShardingType.TABLE_WISE
    placements = [
        by_columns(table, (0, table.embedding_dim)) if is_whole else by_rows(table, topology) for table in tables
    ]
    request = PlanRequest(tables=builders.table_set(*tables), topology=topology, optimizer=Optimizer.SGD)
    return given_plan(request, *placements)


def model_of_means(plan: GivenPlan, group: torch.distributed.ProcessGroup) -> DistributedModelParallel:
    """Return a model under the plan whose tables have mean pooling, whatever the plan declares."""
    return DistributedModelParallel(
        RecommendationModel(
            validated(Model, job_data()["spec"]["model"], where="spec.model"), with_pooling(Pooling.MEAN)
        ),
        env=ShardingEnv.from_process_group(group),
        device=CPU,
        plan=sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(Optimizer.SGD, learning_rate=0.1, device=CPU)],
    )


def test_a_model_of_means_runs_a_plan_by_columns_that_declares_no_pooling(
    group: torch.distributed.ProcessGroup,
) -> None:
    """Whole tables and tables by columns compute the same under either pooling; job files cannot declare it."""
    plan = plan_with(None, ShardingType.TABLE_WISE)

    assert prove_sharding(model_of_means(plan, group), plan, group) == planned_sharding(plan)


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [(Pooling.SUM, ShardingType.TABLE_WISE), (None, ShardingType.ROW_WISE)],
    ids=["declared", "by rows"],
)
def test_a_model_of_means_is_refused_where_the_plan_has_sums(
    pooling: Pooling | None, kind: ShardingType, group: torch.distributed.ProcessGroup
) -> None:
    """Where pooling is declared, and where a table by rows would be divided otherwise than the plan was checked."""
    plan = plan_with(pooling, kind)
    model = model_of_means(plan, group)

    with pytest.raises(InputError, match=r"table 'user' is not computed as the plan says: .* pooling SUM, .*MEAN"):
        prove_sharding(model, plan, group)


@pytest.mark.parametrize(
    ("place", "kernel"),
    [
        (EmbeddingLocation.DEVICE, ComputeKernel.FUSED),
        (EmbeddingLocation.MANAGED, ComputeKernel.FUSED_UVM),
        (EmbeddingLocation.MANAGED_CACHING, ComputeKernel.FUSED_UVM_CACHING),
    ],
)
def test_the_kernel_of_a_gpu_is_read_from_where_its_weights_are(
    place: EmbeddingLocation, kernel: ComputeKernel
) -> None:
    """Whatever TorchRec was asked for."""
    assert live_kernel(ComputeKernel.FUSED, place, configured="fused") is kernel


def test_the_kernel_of_a_cpu_is_what_torchrec_was_asked_for() -> None:
    """All its weights are in host memory, and FBGEMM says no more."""
    assert live_kernel(ComputeKernel.FUSED, EmbeddingLocation.HOST, configured="fused_uvm") is ComputeKernel.FUSED_UVM
    assert live_kernel(ComputeKernel.DENSE, None, configured="dense") is ComputeKernel.DENSE
