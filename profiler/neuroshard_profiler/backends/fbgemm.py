"""FBGEMM's table-batched embeddings, as TorchRec calls them: one fused call per data type, on a CPU core or a GPU."""

from collections.abc import Sequence

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from neuroshard_api.documents.records import CodecSample, ComputeSample
from neuroshard_api.sharding.kernels import FBGEMM_OPTIMIZERS, TRAINING_KERNELS
from torch import Tensor

from neuroshard_profiler.backends.lookups import Batches, TableLookups
from neuroshard_profiler.backends.torch_backend import TorchBackend
from neuroshard_profiler.devices.base import TimedDevice, first_line
from neuroshard_profiler.errors import KernelError, UnusableSampleError
from neuroshard_profiler.times import Repeats, Times

_LEARNING_RATE = 1e-3


class FbgemmBackend(TorchBackend):
    """Times SplitTableBatchedEmbeddingBagsCodegen with its fused optimizer, one call per data type of a sample."""

    def __init__(self, device: TimedDevice) -> None:
        super().__init__(device, ("fbgemm-gpu", "fbgemm-gpu-cpu"))
        kernels = TRAINING_KERNELS[device.kind]
        self.optimizers = kernels.optimizers
        self.data_types = kernels.weight_types

    def calls(self, sample: ComputeSample, *, seed: int) -> "FusedCalls":
        """Make the sample's tables and batches."""
        return FusedCalls(sample, self.draw(sample, seed=seed), device=self.device.torch)

    def measure_codec(self, sample: CodecSample, *, repeats: Repeats) -> Times:
        """Time a codec on values that were computed just before: caches are warm. Needs TorchRec.

        Raises UnusableSampleError, also where the codec cannot be compiled: FBGEMM has that of MX4 in Triton.
        """
        from neuroshard_profiler.backends.codec_call import CodecCall  # noqa: PLC0415 - TorchRec

        try:
            return self.device.measure(
                sample, lambda: CodecCall(sample, device=self.device.torch), repeats, is_cold=False
            )
        except UnusableSampleError:
            raise
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            reason = first_line(error)
        raise KernelError(reason)  # not within the except clause: an error's frames hold the values on the device


class FusedCalls:
    """One kernel call per data type; a sample of one type is one call."""

    def __init__(self, sample: ComputeSample, batches: Batches, *, device: torch.device) -> None:
        by_type = {
            data_type: [index for index, table in enumerate(sample.tables) if table.data_type == data_type]
            for data_type in dict.fromkeys(table.data_type for table in sample.tables)
        }
        location, compute = (
            (EmbeddingLocation.HOST, ComputeDevice.CPU)
            if device.type == "cpu"
            else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        )
        self._modules = []
        for data_type, members in by_type.items():
            module = SplitTableBatchedEmbeddingBagsCodegen(
                [
                    (sample.tables[index].num_embeddings, sample.tables[index].embedding_dim, location, compute)
                    for index in members
                ],
                optimizer=EmbOptimType[FBGEMM_OPTIMIZERS[sample.optimizer]],
                weights_precision=SparseType[data_type.value],
                output_dtype=SparseType.FP32,
                learning_rate=_LEARNING_RATE,
                device=device,
            )
            self._modules.append(module)
        self._inputs = [
            [_inputs([batch[index] for index in members], device) for members in by_type.values()] for batch in batches
        ]

    def weights(self) -> list[Tensor]:
        """Return the tables, type by type."""
        return [weight for module in self._modules for weight in module.split_embedding_weights()]

    def forward(self, number: int) -> Tensor:
        """Return the pooled embeddings of all tables side by side."""
        inputs = self._inputs[number % len(self._inputs)]
        pooled = [module(*each) for module, each in zip(self._modules, inputs, strict=True)]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:
        """Update the tables."""
        pooled.backward(gradient)  # type: ignore[no-untyped-call]


def _inputs(lookups: Sequence[TableLookups], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the rows of one table after the other, and where each bag begins."""
    rows = np.concatenate([each.rows for each in lookups])
    offsets = np.concatenate(([0], np.cumsum(np.concatenate([each.lengths for each in lookups]))))
    return torch.from_numpy(rows).to(device), torch.from_numpy(offsets).to(device)
