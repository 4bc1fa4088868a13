"""What the price of a plan leaves out, as sentences for its reader."""

from collections.abc import Iterator, Sequence

from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.kinds import ComputeKernel, Family

from neuroshard_costs.simulator.host_memory import HOST_BOUND_LOOKUPS


def unmeasured_collectives(tables: Sequence[TablePlacement], manifest: BundleManifest) -> Iterator[str]:
    """Yield a sentence where a plan has collectives that no measurement of a bundle is of."""
    kinds = {table.sharding_type for table in tables if Family.of(table.sharding_type) not in manifest.families}
    types = sorted(kind.value for kind in kinds)
    if types:
        yield (
            f"predicted: the collectives of {', '.join(types)} tables are those of the device simulator, none was "
            f"measured for {manifest.name}; the plan's order among others is less certain than their error says"
        )


def short_cached_calls(tables: Sequence[TablePlacement], request: PlanRequest) -> Iterator[str]:
    """Yield a warning where a device's cached tables are looked up so seldom that their call waits for the host."""
    by_name = {table.name: table for table in request.tables.tables}
    lookups = dict.fromkeys(range(request.topology.num_devices), 0.0)
    cached = [placed for placed in tables if placed.compute_kernel is ComputeKernel.FUSED_UVM_CACHING]
    for placed in cached:
        table = by_name[placed.name]
        for shard in placed.shards:
            share = shard.num_rows / table.num_embeddings
            lookups[shard.device] += request.global_batch_size * table.pooling_factor * share
    short = [each for each in lookups.values() if 0 < each < HOST_BOUND_LOOKUPS]
    if short and not request.topology.device.is_cpu:
        yield (
            f"tables cached from host memory: a device looks up {min(short):,.0f} of their rows in a step; below some "
            f"{HOST_BOUND_LOOKUPS:,} it waits for the host that launches the cache's kernels, which has no price "
            "(published calls took up to 2.7 times theirs)"
        )
