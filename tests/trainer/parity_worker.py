"""One process of a torchrun: shards a module under each exported plan and holds it against the unsharded module.

Arguments: files of exported plans. Every table is looked up by one feature of its own name. Exits with an error where
outputs differ before or after one SGD step.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.torchrec_plan import TorchRecParameter, TorchRecPlan
from neuroshard_trainer.plan_adapter import load_sharding_plan
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

LEARNING_RATE = 0.1
SAMPLES = 16  # of each rank
LOOKUPS = 3  # of each sample and feature


def main(files: list[str]) -> None:
    """Check every file's plan."""
    dist.init_process_group("gloo")
    for file in files:
        check(TorchRecPlan.read(Path(file)))
    dist.destroy_process_group()


def check(exported: TorchRecPlan) -> None:
    """Compare lookups, and lookups after one step, of the sharded and the unsharded module."""
    (shapes,) = (
        {name: shape_of(parameter) for name, parameter in tables.items()} for tables in exported.modules.values()
    )
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) for name, shape in shapes.items()}
    batches = [batch(shapes, seed) for seed in range(dist.get_world_size())]
    plain = module(shapes)
    plain.load_state_dict({f"embedding_bags.{name}.weight": weight for name, weight in weights.items()})
    sharded = DistributedModelParallel(
        module(shapes),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=load_sharding_plan(exported),
        sharders=[
            EmbeddingBagCollectionSharder(
                fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
            )
        ],
    )
    copy_weights(sharded, weights)
    own = batches[dist.get_rank()]
    before = sharded(own).to_dict()
    compare(before, plain(own).to_dict())
    sum(output.square().sum() for output in before.values()).backward()
    # The fused optimizer has stepped; TorchRec averages gradients over the ranks.
    loss = sum(output.square().sum() for each in batches for output in plain(each).to_dict().values())
    (loss / dist.get_world_size()).backward()
    with torch.no_grad():
        for weight in plain.parameters():
            weight.sub_(LEARNING_RATE * weight.grad)
    compare(sharded(own).to_dict(), plain(own).to_dict())


def shape_of(parameter: TorchRecParameter) -> tuple[int, int]:
    """Return rows and columns of a table from its shards."""
    last = parameter.shards[-1]
    return last.shard_sizes[0], last.shard_offsets[1] + last.shard_sizes[1]


def module(shapes: dict[str, tuple[int, int]]) -> EmbeddingBagCollection:
    """Return the tables as one module."""
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=columns, feature_names=[name])
            for name, (rows, columns) in shapes.items()
        ]
    )


def batch(shapes: dict[str, tuple[int, int]], seed: int) -> KeyedJaggedTensor:
    """Return random lookups of one rank."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randint(rows, (SAMPLES * LOOKUPS,), generator=generator) for rows, _ in shapes.values()]
    return KeyedJaggedTensor(
        keys=list(shapes), values=torch.cat(values), lengths=torch.full((len(shapes) * SAMPLES,), LOOKUPS)
    )


def copy_weights(sharded: DistributedModelParallel, weights: dict[str, torch.Tensor]) -> None:
    """Write each rank's slices of the weights into its shards."""
    for key, tensor in sharded.state_dict().items():
        name = key.removeprefix("embedding_bags.").removesuffix(".weight")
        for shard in tensor.local_shards():
            row, column = shard.metadata.shard_offsets
            rows, columns = shard.metadata.shard_sizes
            shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])


def compare(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Raise AssertionError where outputs differ."""
    for name, output in wanted.items():
        torch.testing.assert_close(found[name], output, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main(sys.argv[1:])
