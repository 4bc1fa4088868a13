"""The state of training as tensors: tables, dense part, and both optimizers; also under another plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizerWrapper

from neuroshard_trainer.checkpoint import CheckpointFolder, State
from neuroshard_trainer.live_sharding import Sharding

TableWidths = Mapping[str, tuple[int, ...]]
"""Columns of each table's shards, by columns."""


def widths_of(sharding: Sharding) -> dict[str, tuple[int, ...]]:
    """Return the columns of each table's shards."""
    return {name: tuple(shard.num_columns for shard in shards) for name, shards in sharding.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """What a checkpoint holds. Its tensors are the live ones: loading into them is enough."""

    model: DistributedModelParallel
    dense_optimizer: KeyedOptimizerWrapper
    widths: TableWidths

    def tensors(self) -> State:
        """Return the state as torch.distributed.checkpoint takes it. Tables are whole tensors of many shards."""
        tables_state = self.model.fused_optimizer.state_dict()["state"]
        dense_state = self.dense_optimizer.state_dict()["state"]
        state = {
            "model": self.model.state_dict(),
            # An empty mapping, as of SGD or of a rank without tables, would count as a value of its own.
            "tables_optimizer": {name: tensors for name, tensors in tables_state.items() if tensors},
            "dense_optimizer": {name: tensors for name, tensors in dense_state.items() if tensors},
        }
        return {part: tensors for part, tensors in state.items() if tensors}

    def load(self, checkpoints: CheckpointFolder, folder: Path, old_widths: TableWidths) -> None:
        """Take over a checkpoint. All ranks must call this.

        Tables, element-wise optimizer state and the dense part are exactly those that were saved, however the tables
        were cut. Row-wise state is one number per row and shard, a mean over the shard's columns: where a table is cut
        otherwise than before, a new shard gets the mean of the old ones' numbers, each weighted by the columns that
        they share.

        Args:
            checkpoints: reads it.
            folder: a checkpoint.
            old_widths: how the tables were cut when it was saved.
        """
        self.dense_optimizer.init_state()  # makes the tensors to load into; their values are replaced
        self.dense_optimizer.zero_grad()
        state = dict(self.tensors())
        per_row: list[_Recut] = []
        tables_state = {}
        for key, tensors in state.get("tables_optimizer", {}).items():
            name = key.rsplit("embedding_bags.", 1)[1].removesuffix(".weight")
            tables_state[key] = dict(tensors)
            for part, tensor in tensors.items():
                is_per_row = isinstance(tensor, ShardedTensor) and len(tensor.metadata().size) == 1
                if is_per_row and old_widths[name] != self.widths[name]:
                    recut = _Recut.of(tensor, old_widths[name], self.widths[name])
                    tables_state[key][part] = recut.old
                    per_row.append(recut)
        if tables_state:
            state["tables_optimizer"] = tables_state
        checkpoints.load(folder, state)
        for recut in per_row:
            recut.apply()


@dataclass(frozen=True, slots=True)
class _Recut:
    """One number per row and shard, for a table that is cut otherwise than when it was saved."""

    new: ShardedTensor
    """Shard by shard behind one another, ``rows`` numbers of each; this rank holds some of them."""
    old: torch.Tensor
    """The same for the old shards, all of them."""
    old_widths: tuple[int, ...]
    new_widths: tuple[int, ...]

    @classmethod
    def of(cls, new: ShardedTensor, old_widths: tuple[int, ...], new_widths: tuple[int, ...]) -> "_Recut":
        rows = new.metadata().size[0] // len(new_widths)
        local = new.local_shards()[0].tensor
        old = torch.empty(rows * len(old_widths), dtype=local.dtype, device=local.device)
        return cls(new, old, old_widths, new_widths)

    def apply(self) -> None:
        """Write the weighted means into the live tensors."""
        rows = self.new.metadata().size[0] // len(self.new_widths)
        for shard in self.new.local_shards():
            position = shard.metadata.shard_offsets[0] // rows
            begin = sum(self.new_widths[:position])
            end = begin + self.new_widths[position]
            shard.tensor.zero_()
            old_begin = 0
            for index, width in enumerate(self.old_widths):
                shared = min(end, old_begin + width) - max(begin, old_begin)
                if shared > 0:
                    part = self.old[index * rows : (index + 1) * rows]
                    shard.tensor.add_(part.view_as(shard.tensor), alpha=shared / (end - begin))
                old_begin += width
