"""One of several ranks: plans models with both planners, trains them under each, and compares.

Exits with an error where the plan's shards, logits or updated weights differ from TorchRec's own, or where an error of
one rank is not the error of all.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neuroshard_torchrec import DropInError, NeuroShardPlanner
from support.dropin.dropin_models import Remapped, TwoTowers, batch, config
from support.trainer.rank_server import joined_ranks
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.test_utils.test_model import ModelInput, TestMixedEmbeddingSparseArch, TestSparseNN
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionModule
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

CPU = torch.device("cpu")
SAMPLES = 8  # of each rank
STEPS = 2
PLANNED_SAMPLES = 4096  # of each rank: with so many the search cuts a table
WORTH_A_CUT = 2000.0  # lookups
LENGTH = 3  # of sequences


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its input, and its loss."""

    module: Callable[[], nn.Module]
    arguments: Callable[[int], tuple[Any, ...]]
    """Of a step, for this rank."""
    outcome: Callable[[Any], tuple[torch.Tensor, torch.Tensor]]
    """Logits and loss of what the model returns."""
    tables: Sequence[str]
    limits: dict[str, ParameterConstraints] = field(default_factory=dict)
    their_types: list[str] = field(default_factory=lambda: ["table_wise", "column_wise"])
    """Of TorchRec's own planner, which would also cut tables by rows next to means."""


class AllTypesSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc] # torchrec has no types
    """Lets bags on a CPU be by rows too, as TorchRec trains them; its sharder offers that on GPUs alone."""

    def sharding_types(self, compute_device_type: str) -> list[str]:  # noqa: ARG002 - torchrec's
        """Return TorchRec's sharding types on a GPU."""
        types: list[str] = super().sharding_types("cuda")
        return types


def main() -> None:
    """Compare the plans, then the errors."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        rows = ParameterConstraints(sharding_types=["row_wise"])
        cut = ParameterConstraints(min_partition=16, pooling_factors=[WORTH_A_CUT])
        for case in (two_towers(cut), two_towers(rows), *torchrecs_own(), managed_collision()):
            compare(case)
        require_least_caps()
        require_named_setting()
        require_stored_plan_of_rank_0()
        require_plan_of_a_group()
        require_counted_managed_collision()
        require_refused_proofs()
        require_one_error()


def require_least_caps() -> None:
    """Caps that each rank reads differ by pages; the least of them counts on all."""
    own = Topology(world_size=dist.get_world_size(), compute_device="cuda", hbm_cap=2**36 + 4096 * dist.get_rank())
    planner = NeuroShardPlanner(own, PLANNED_SAMPLES, device_type="h100-80gb")
    planner.collective_plan(TwoTowers())
    assert planner.last_plan is not None
    assert planner.last_plan.request.constraints.max_memory_bytes_per_device == 2**36


def require_named_setting() -> None:
    """A setting that differs is named with the values of both ranks."""
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    planner = NeuroShardPlanner(topology, 64 + dist.get_rank(), device_type="h100-80gb")
    with pytest.raises(DropInError, match="rank 1 and rank 0 differ in batch_size, which is 65 there and 64 on rank 0"):
        planner.collective_plan(TwoTowers())


class NothingStored:
    """A plan loader without a plan."""

    def load(self) -> None:
        """Return no options."""

    def plan_context_hash(self) -> None:
        """Return no context."""


def require_stored_plan_of_rank_0() -> None:
    """A plan loader that rank 0 alone has is asked, as by TorchRec's planner; the others do not wait elsewhere."""
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    loader = NothingStored() if dist.get_rank() == 0 else None
    planner = NeuroShardPlanner(topology, 64, device_type="h100-80gb", plan_loader=loader)
    assert planner.collective_plan(TwoTowers()).plan.keys() == {"users", "items"}


def require_plan_of_a_group() -> None:
    """All processes plan for the topology of one group, as DMPCollection's users do."""
    planner = NeuroShardPlanner(Topology(world_size=1, compute_device="cpu"), 64, device_type="h100-80gb")
    plan = planner.collective_plan(TwoTowers(), pg=dist.group.WORLD)
    assert {rank for tables in plan.plan.values() for each in tables.values() for rank in each.ranks} == {0}


def compare(case: Case) -> None:
    """Train under both plans: logits of two steps and the weights after them are equal, and a table is cut."""
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    ours = NeuroShardPlanner(topology, PLANNED_SAMPLES, device_type="h100-80gb", constraints=case.limits)
    theirs = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=SAMPLES,
        constraints={
            name: ParameterConstraints(sharding_types=case.their_types, compute_kernels=["fused"])
            for name in case.tables
        },
    )
    got, expected = (trained(case, planner) for planner in (ours, theirs))
    assert got.keys() == expected.keys()
    for name, values in got.items():
        assert torch.allclose(values, expected[name], rtol=0, atol=1e-6), name
    assert ours.last_plan is not None
    assert sorted(table.name for table in ours.last_plan.tables) == sorted(case.tables)
    assert any(len(table.shards) > 1 for table in ours.last_plan.tables), case.limits
    plans = [""] * dist.get_world_size()
    dist.all_gather_object(plans, ours.last_plan.to_json())
    assert len(set(plans)) == 1


def trained(case: Case, planner: NeuroShardPlanner | EmbeddingShardingPlanner) -> dict[str, torch.Tensor]:
    """Return the logits of two steps of SGD under a planner's plan, and the whole weights after them."""
    model = sharded(case, planner)
    if isinstance(planner, NeuroShardPlanner):
        planner.prove(model)
    fill(model)
    dense = torch.optim.SGD(dict(in_backward_optimizer_filter(model.named_parameters())).values(), lr=0.5)
    found: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        logits, loss = case.outcome(model(*case.arguments(step)))
        found[f"logits of step {step}"] = logits.detach()
        dense.zero_grad()
        torch.autograd.backward(loss)
        dense.step()
    return {**found, **whole_weights(model)}


def sharded(
    case: Case,
    planner: NeuroShardPlanner | EmbeddingShardingPlanner,
    *,
    changed: Callable[[ShardingPlan], None] = lambda _: None,
) -> DistributedModelParallel:
    """Return the model of a case under a planner's plan, which may be changed before."""
    torch.manual_seed(0)
    plain = case.module()
    fused = {"learning_rate": 0.5}
    bags = AllTypesSharder(fused_params=fused)
    sharders = [
        bags,
        EmbeddingCollectionSharder(fused_params=fused),
        FeatureProcessedEmbeddingBagCollectionSharder(bags),
        ManagedCollisionEmbeddingBagCollectionSharder(bags),
        ManagedCollisionEmbeddingCollectionSharder(fused_params=fused),
    ]
    world = dist.group.WORLD
    assert world is not None
    plan: ShardingPlan = planner.collective_plan(plain, sharders, world)
    changed(plan)
    return DistributedModelParallel(
        plain, env=ShardingEnv.from_process_group(world), device=CPU, plan=plan, sharders=sharders
    )


def two_towers(tags: ParameterConstraints) -> Case:
    """Return two collections of bags with a table name in common, one with means and one with a limited table."""

    def arguments(step: int) -> tuple[Any, ...]:
        seed = 2 * (step * dist.get_world_size() + dist.get_rank())
        users = batch({"id_id": 2, "country_id": 3}, samples=SAMPLES, seed=seed)
        return users, batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=SAMPLES, seed=seed + 1)

    return Case(
        module=lambda: TwoTowers(CPU),
        arguments=arguments,
        outcome=lambda logits: (logits, logits.square().mean()),
        tables=["users/id", "country", "items/id", "tags"],
        limits={"tags": tags},
    )


def managed_collision() -> Case:
    """Return bags and sequences whose ids are mapped to rows while they train."""

    def arguments(step: int) -> tuple[Any, ...]:
        seed = 2 * (step * dist.get_world_size() + dist.get_rank())
        bags = batch({"ids_id": 2}, samples=SAMPLES, ids=10**6, seed=seed)
        return bags, batch({"words_id": LENGTH}, samples=SAMPLES, ids=10**6, seed=seed + 1)

    return Case(
        module=lambda: Remapped(LENGTH, CPU),
        arguments=arguments,
        outcome=lambda logits: (logits, logits.square().mean()),
        tables=["ids", "words"],
        their_types=["row_wise"],
    )


def torchrecs_own() -> list[Case]:
    """Return models that TorchRec ships for its own tests: weighted bags, feature processors, and sequences."""
    plain = [config(f"t{at}", rows=10 * (at + 2), columns=4 * (at + 2), features=(f"f{at}",)) for at in range(4)]
    weighted = [config(f"w{at}", rows=10 * (at + 2), columns=4 * (at + 2), features=(f"v{at}",)) for at in range(2)]
    rows = [
        EmbeddingConfig(name=f"s{at}", num_embeddings=30 + at, embedding_dim=16, feature_names=[f"h{at}"])
        for at in range(2)
    ]
    mixed = [config("bag", rows=40, columns=32, features=("b",)), *rows]
    columns = ["table_wise", "column_wise"]  # sums of parts of rows differ by more than these tests allow
    cut = ParameterConstraints(min_partition=4, pooling_factors=[WORTH_A_CUT], sharding_types=columns)
    by_rows = ParameterConstraints(sharding_types=["row_wise"])

    def case(
        module: Callable[[], nn.Module],
        tables: list[Any],
        weighted_tables: list[Any],
        **limits: ParameterConstraints,
    ) -> Case:
        def arguments(step: int) -> tuple[Any, ...]:
            _, local = ModelInput.generate(
                batch_size=SAMPLES,
                world_size=dist.get_world_size(),
                num_float_features=10,
                tables=tables,
                weighted_tables=weighted_tables,
                random_seed=step,
            )
            return (local[dist.get_rank()],)

        return Case(
            module=module,
            arguments=arguments,
            outcome=lambda found: (found[1], found[0]),
            tables=[each.name for each in (*tables, *weighted_tables)],
            limits={
                each.name: limits.get(each.name, ParameterConstraints(sharding_types=columns))
                for each in (*tables, *weighted_tables)
            },
        )

    return [
        case(lambda: TestSparseNN(plain, 10, weighted, dense_device=CPU, sparse_device=CPU), plain, weighted, w1=cut),
        case(
            lambda: TestSparseNN(
                plain, 10, weighted, dense_device=CPU, sparse_device=CPU, max_feature_lengths={"t1": 20, "t3": 20}
            ),
            plain,
            weighted,
            t3=cut,
        ),
        case(
            lambda: TestMixedEmbeddingSparseArch(mixed, 10, dense_device=CPU, device=CPU),
            mixed,
            [],
            bag=cut,
            s0=by_rows,
        ),
    ]


def fill(model: DistributedModelParallel) -> None:
    """Give every weight a value of its own, which depends on its row and column in the whole tensor alone."""
    for name, found in model.state_dict().items():
        if "_managed_collision" in name:
            continue  # the rows of ids, all free
        if isinstance(found, ShardedTensor):
            for shard in found.local_shards():
                fill_part(shard.tensor, tuple(shard.metadata.shard_offsets))
        else:
            fill_part(found, (0, 0))


def fill_part(part: torch.Tensor, first: tuple[int, ...]) -> None:
    """Fill a part of a tensor that begins at this row and column."""
    index = torch.meshgrid(*(torch.arange(size) for size in part.shape), indexing="ij")
    angle = torch.zeros_like(part)
    for axis, start, step in zip(index, first, (0.7, 1.3), strict=False):
        angle += (axis + start) * step
    part.copy_(torch.sin(angle))


def whole_weights(model: DistributedModelParallel) -> dict[str, torch.Tensor]:
    """Return every weight of the model, tables put together from the shards of all ranks."""
    whole: dict[str, torch.Tensor] = {}
    for name, found in model.state_dict().items():
        if not isinstance(found, ShardedTensor):
            whole[name] = found.detach().clone()
            continue
        own = [(tuple(each.metadata.shard_offsets), each.tensor.detach()) for each in found.local_shards()]
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        whole[name] = torch.full(found.size(), torch.nan, dtype=torch.float64)
        for first, part in (each for rank in parts for each in rank):
            place = tuple(slice(start, start + size) for start, size in zip(first, part.shape, strict=True))
            whole[name][place] = part.double()
    return whole


def require_counted_managed_collision() -> None:
    """Train a step: what the ranks' managed collision modules have together is what the ledgers count."""
    count = dist.get_world_size()
    lookups = {
        "ids": ParameterConstraints(pooling_factors=[2.0]),
        "words": ParameterConstraints(pooling_factors=[LENGTH]),
    }
    planner = NeuroShardPlanner(
        Topology(world_size=count, compute_device="cpu"), SAMPLES, device_type="h100-80gb", constraints=lookups
    )
    case = managed_collision()
    model = sharded(case, planner)
    model(*case.arguments(0))
    modules = [each for each in model.modules() if isinstance(each, ManagedCollisionModule)]
    tensors = [
        tensor for each in modules for tensor in (*dict(each.named_buffers()).values(), each._history_accumulator)
    ]
    found = torch.tensor(sum(each.numel() * each.element_size() for each in tensors))
    dist.all_reduce(found)
    assert planner.last_plan is not None
    counted = planner.last_plan.request.memory.managed_collision_bytes
    assert len(modules) == 2
    assert counted is not None
    # Every rank rounds the entries of its histories down, whose ids and last accesses have 8 bytes each.
    assert 0 <= count * counted - int(found) <= count * len(modules) * 2 * 8, (count * counted, int(found))


def require_refused_proofs() -> None:
    """Shard a table of the second collection by another plan, or have no plan on one rank: all ranks raise."""
    count, rank = dist.get_world_size(), dist.get_rank()
    case = two_towers(ParameterConstraints(min_partition=16, pooling_factors=[WORTH_A_CUT]))
    topology = Topology(world_size=count, compute_device="cpu")
    ours = NeuroShardPlanner(topology, PLANNED_SAMPLES, device_type="h100-80gb", constraints=case.limits)
    whole = {"tags": ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])}
    theirs = EmbeddingShardingPlanner(topology=topology, batch_size=SAMPLES, constraints=whole)
    of_tags = theirs.plan(case.module(), [AllTypesSharder()]).plan["items"]["tags"]
    proven = sharded(case, ours)
    ours.prove(proven)
    other = sharded(case, ours, changed=lambda plan: plan.plan["items"].update(tags=of_tags))
    idle = NeuroShardPlanner(topology, device_type="h100-80gb")
    for message, asked, model in (
        ("table 'tags' is not sharded as the plan says", ours, other),
        (f"rank {count - 1}: prove: this planner has made no plan yet", idle if rank == count - 1 else ours, proven),
    ):
        with pytest.raises(DropInError, match=re.escape(message)) as raised:
            asked.prove(model)
        sentences = [""] * count
        dist.all_gather_object(sentences, str(raised.value))
        assert len(set(sentences)) == 1, sentences


class NoTypeSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc] # torchrec has no types
    """Allows a sharding type that no planner here searches."""

    def sharding_types(self, compute_device_type: str) -> list[str]:  # noqa: ARG002 - torchrec's
        """Return the name of a type that TorchRec does not have."""
        return ["elsewhere"]


def broken_batches() -> Iterator[KeyedJaggedTensor]:
    """Yield a batch, and fail at the second."""
    yield batch({"t_id": 1}, samples=SAMPLES)
    raise OSError("no disk")


def require_one_error() -> None:
    """Give ranks different modules, sharders, or topologies, or one of them a bad one: all raise the same sentence."""
    count, rank = dist.get_world_size(), dist.get_rank()
    planner = NeuroShardPlanner(Topology(world_size=count, compute_device="cpu"), SAMPLES, device_type="h100-80gb")
    larger = NeuroShardPlanner(Topology(world_size=count + 1, compute_device="cpu"), device_type="h100-80gb")
    table = EmbeddingBagCollection(tables=[config("t")])
    cases: list[tuple[str, NeuroShardPlanner, nn.Module]] = [
        (
            "rank 1 and rank 0 differ in table 't'",
            planner,
            EmbeddingBagCollection(tables=[config("t", rows=10 + rank)]),
        ),
        (
            (
                "rank 1 and rank 0 differ in what sample_batches or pooling_factors say of table 't'"
                "; hint: give the same global"
            ),
            NeuroShardPlanner(
                Topology(world_size=count, compute_device="cpu"),
                SAMPLES,
                device_type="h100-80gb",
                sample_batches=batch({"t_id": 1 + rank}, samples=SAMPLES),
            ),
            table,
        ),
        (
            f"rank {count - 1}: sample_batches: reading them failed: OSError: no disk",
            NeuroShardPlanner(
                Topology(world_size=count, compute_device="cpu"),
                SAMPLES,
                device_type="h100-80gb",
                sample_batches=broken_batches() if rank == count - 1 else batch({"t_id": 1}, samples=SAMPLES),
            ),
            table,
        ),
        (f"rank {count - 1}: Linear has no", planner, nn.Linear(1, 1) if rank == count - 1 else table),
        ("rank 0: table 1.t is the same parameter as 0.t", planner, nn.Sequential(table, table)),
        (
            f"rank {count - 1}: table 1.t is the same parameter as 0.t",
            planner,
            nn.Sequential(table, table if rank == count - 1 else EmbeddingBagCollection(tables=[config("t")])),
        ),
        (
            f"rank {count - 1} and rank 0 differ in table 't'",
            planner,
            EmbeddingBagCollection(
                tables=[EmbeddingBagConfig(name="t", num_embeddings=1000, embedding_dim=16)]
                if rank == count - 1
                else [config("t")]
            ),
        ),
        (
            f"rank 0: topology: has {count + 1} devices, the process group has {count} processes",
            larger,
            table,
        ),
    ]
    if count > 1:
        topology = Topology(world_size=count, local_world_size=1, compute_device="cpu")
        spread = NeuroShardPlanner(topology, SAMPLES, device_type="h100-80gb")
        found = (
            f"rank 0: topology: has 1 devices on each node, the process group has {count} processes on each; hint: give"
        )
        cases.append((found, spread, table))
    for message, asked, module in cases:
        with pytest.raises(DropInError, match=re.escape(message)):
            asked.collective_plan(module)
    for message, sharder in (
        (f"rank {count - 1}: table 't' may only be elsewhere", NoTypeSharder()),
        (f"rank {count - 1}: EmbeddingBagCollection has no EmbeddingBagCollection or", EmbeddingCollectionSharder()),
    ):
        own = [sharder if rank == count - 1 else EmbeddingBagCollectionSharder()]
        with pytest.raises(DropInError, match=re.escape(message)):
            planner.collective_plan(table, own)
