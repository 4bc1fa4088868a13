"""The state of training as tensors: tables, dense part, and both optimizers; also under another plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper

from neuroshard_trainer.communication.gradient_codec import GradientCodec
from neuroshard_trainer.model.averaged_model import AveragedModel
from neuroshard_trainer.model.cross_network import saved_name
from neuroshard_trainer.model.grouped_model import common_name
from neuroshard_trainer.servers.model import ServerModel
from neuroshard_trainer.sharding.live_sharding import Sharding
from neuroshard_trainer.state.checkpoint import CheckpointFolder, State

TableWidths = Mapping[str, tuple[int, ...]]
"""Columns of each table's blocks of columns, in their order: one block where a table is not cut by columns."""


def widths_of(sharding: Sharding) -> dict[str, tuple[int, ...]]:
    """Return the columns of each table's blocks of columns."""
    blocks = {name: {shard.column_offset: shard.num_columns for shard in shards} for name, shards in sharding.items()}
    return {name: tuple(widths[offset] for offset in sorted(widths)) for name, widths in blocks.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """What a checkpoint holds. Its tensors are the live ones: loading into them is enough."""

    model: DistributedModelParallel | ServerModel
    dense_optimizer: KeyedOptimizer
    """That of an embedding server has no parameters."""
    replicated_optimizer: KeyedOptimizerWrapper | None
    """Of data_parallel tables. None: there are none."""
    widths: TableWidths
    gradients: GradientCodec | None = None
    """Of the dense part. If unset: its gradients travel as they are."""

    def agree(self) -> None:
        """Average the copies that groups of ranks hold, if they differ: what is saved or evaluated is one model."""
        if isinstance(self.model, AveragedModel):
            self.model.agree()

    def tensors(self) -> State:
        """Return the state as torch.distributed.checkpoint takes it. Tables are whole tensors of many shards.

        Sums of squared gradients of data_parallel tables have the names and shapes that the fused kernels give theirs.
        Names are those of a model with one collection.
        """
        tables_state = {**self.model.fused_optimizer.state_dict()["state"], **self._replicated_state()}
        dense_state = self.dense_optimizer.state_dict()["state"]
        state = {
            "model": {common_name(name): tensor for name, tensor in self.model.state_dict().items()},
            # An empty mapping, as of SGD or of a rank without tables, would count as a value of its own.
            "tables_optimizer": {common_name(name): tensors for name, tensors in tables_state.items() if tensors},
            "dense_optimizer": {saved_name(name): tensors for name, tensors in dense_state.items() if tensors},
            "carried_gradients": self._carried_gradients(),
        }
        return {part: tensors for part, tensors in state.items() if tensors}

    @property
    def carries_gradients(self) -> bool:
        """Whether what is left over of a step's gradients is part of the state."""
        return self.gradients is not None and self.gradients.exchange.type.carries

    def _carried_gradients(self) -> Mapping[str, torch.Tensor]:
        if self.gradients is None or not self.carries_gradients:
            return {}
        return self.gradients.mean_carried(self._dense_names())

    def _dense_names(self) -> dict[torch.Tensor, str]:
        """Return the saved name of each parameter of the dense part."""
        return {weight: saved_name(name) for name, weight in self.dense_optimizer.params.items()}

    def _replicated_state(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        optimizer = self.replicated_optimizer
        if optimizer is None:
            return {}
        sums = {key: optimizer.state[weight].get("sum") for key, weight in optimizer.params.items()}
        return {
            key: {f"{_table_of(key)}.momentum1": total.view(-1) if total.shape[1] == 1 else total}
            for key, total in sums.items()
            if total is not None
        }

    @property
    def moment_scale(self) -> int:
        """The tables' sums of squared gradients over those of one model on all ranks' samples."""
        return self.model.moment_scale if isinstance(self.model, AveragedModel) else 1

    def load(
        self,
        checkpoints: CheckpointFolder,
        folder: Path,
        old_widths: TableWidths,
        *,
        has_carried: bool = False,
        old_moment_scale: int = 1,
    ) -> None:
        """Take over a checkpoint. All ranks must call this.

        Tables, element-wise optimizer state and the dense part are exactly those that were saved, however the tables
        were cut. Row-wise state is one number per row and block of columns, a mean over the block's columns: where the
        blocks are others than before, a new one gets the mean of the old ones' numbers, each weighted by the columns
        that they share. Sums of squared gradients become those of this number of groups.

        Args:
            checkpoints: reads it.
            folder: a checkpoint.
            old_widths: how the tables were cut when it was saved.
            has_carried: whether it has what was left over of gradients.
            old_moment_scale: the moment_scale when it was saved.
        """
        self.dense_optimizer.init_state()  # makes the tensors to load into; their values are replaced
        self.dense_optimizer.zero_grad()
        state = dict(self.tensors())
        carried = state.pop("carried_gradients", {}) if has_carried else {}
        if carried:  # of the units that were replicated then: a unit that was sharded carried nothing
            saved = checkpoints.saved_names(folder, "carried_gradients")
            carried = {name: tensor for name, tensor in carried.items() if name in saved}
        state.pop("carried_gradients", None)
        if carried:
            state["carried_gradients"] = carried
        per_row: list[_Recut] = []
        tables_state = {}
        for key, tensors in state.get("tables_optimizer", {}).items():
            name = _table_of(key)
            tables_state[key] = dict(tensors)
            for part, tensor in tensors.items():
                is_per_row = len(tensor.metadata().size if isinstance(tensor, ShardedTensor) else tensor.shape) == 1
                if is_per_row and old_widths[name] != self.widths[name]:
                    recut = _Recut.of(tensor, old_widths[name], self.widths[name])
                    tables_state[key][part] = recut.old
                    per_row.append(recut)
        if tables_state:
            state["tables_optimizer"] = tables_state
        checkpoints.load(folder, state)
        if self.gradients is not None:
            self.gradients.begin_with(carried, self._dense_names())
        for recut in per_row:
            recut.apply()
        self._scale_moments(self.moment_scale / old_moment_scale)

    def _scale_moments(self, factor: float) -> None:
        """Multiply the tables' sums of squared gradients."""
        if factor == 1.0:
            return
        tensors = (each for state in self.tensors().get("tables_optimizer", {}).values() for each in state.values())
        for tensor in tensors:
            is_sharded = isinstance(tensor, ShardedTensor)
            for part in [local.tensor for local in tensor.local_shards()] if is_sharded else [tensor]:
                part.mul_(factor)


def _table_of(key: str) -> str:
    """Return the table of a parameter's name."""
    return key.rsplit("embedding_bags.", 1)[1].removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class _Recut:
    """One number per row and block of columns, for a table with other blocks than when it was saved."""

    parts: tuple[tuple[int, torch.Tensor], ...]
    """What this rank holds of the new state, each with its place in it. The numbers of a block are one for each row."""
    old: torch.Tensor
    """The same for the old blocks, all of them."""
    rows: int
    old_widths: tuple[int, ...]
    new_widths: tuple[int, ...]

    @classmethod
    def of(
        cls, new: ShardedTensor | torch.Tensor, old_widths: tuple[int, ...], new_widths: tuple[int, ...]
    ) -> "_Recut":
        if isinstance(new, ShardedTensor):
            parts = tuple((local.metadata.shard_offsets[0], local.tensor) for local in new.local_shards())
            size = new.metadata().size[0]
        else:
            parts, size = ((0, new),), len(new)
        rows = size // len(new_widths)
        old = torch.empty(rows * len(old_widths), dtype=parts[0][1].dtype, device=parts[0][1].device)
        return cls(parts, old, rows, old_widths, new_widths)

    def apply(self) -> None:
        """Write the weighted means into the live tensors."""
        for place, tensor in self.parts:
            block, first_row = divmod(place, self.rows)
            begin = sum(self.new_widths[:block])
            end = begin + self.new_widths[block]
            tensor.zero_()
            old_begin = 0
            for index, width in enumerate(self.old_widths):
                shared = min(end, old_begin + width) - max(begin, old_begin)
                if shared > 0:
                    first = index * self.rows + first_row
                    numbers = self.old[first : first + tensor.numel()]
                    tensor.add_(numbers.view_as(tensor), alpha=shared / (end - begin))
                old_begin += width
