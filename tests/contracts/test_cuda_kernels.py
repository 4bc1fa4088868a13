"""The table of training kernels against what FBGEMM's builds hold."""

import itertools
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from neuroshard_api.sharding.kernels import FBGEMM_OPTIMIZERS, TRAINING_KERNELS, DataType, Optimizer

ROOT = Path(__file__).parents[2]
ELEMENTS = {
    "float": DataType.FP32,
    "c10::Half": DataType.FP16,
    "c10::BFloat16": DataType.BF16,
    "unsigned char": DataType.INT8,
}
"""C++ types; FBGEMM's 8-bit floats (c10::Float8_e4m3fn) are not types of ours."""
FORWARD = re.compile(r"split_embedding_codegen_forward_unweighted_kernel<([^,]+), [^,]+, ([^,]+),")
"""Weights, cache, output."""
BACKWARD = re.compile(r"split_embedding_backward_codegen_(\w+?)_unweighted_kernel_warp_per_row_1<([^,]+), ([^,]+),")
"""Optimizer, weights, gradient."""


@pytest.fixture(scope="module")
def symbols() -> str:
    """The demangled symbols of the CUDA wheel's training libraries."""
    try:
        path = ROOT / ".cache" / f"fbgemm-gpu-{version('fbgemm-gpu-cpu')}.symbols"
    except PackageNotFoundError:
        pytest.skip("FBGEMM is not installed")
    if not path.exists():
        pytest.skip("the CUDA wheel of FBGEMM was not read; `make kernels` downloads it (500 MB)")
    return path.read_text(encoding="utf-8")


def test_the_cuda_wheel_trains_what_the_table_says_and_nothing_else(symbols: str) -> None:
    """A combination needs a forward kernel, and a backward kernel with its optimizer."""
    forward = {(ELEMENTS.get(weights), ELEMENTS.get(output)) for weights, output in FORWARD.findall(symbols)}
    backward = {
        (optimizer, ELEMENTS.get(weights), ELEMENTS.get(gradient))
        for optimizer, weights, gradient in BACKWARD.findall(symbols)
    }
    kernels = TRAINING_KERNELS["cuda"]

    found = {
        (weights, output, optimizer)
        for weights, output, optimizer in itertools.product(DataType, DataType, Optimizer)
        if (weights, output) in forward and (optimizer.value, weights, output) in backward
    }

    assert found == set(itertools.product(kernels.weight_types, kernels.output_types, kernels.optimizers))


@pytest.mark.torchrec
@pytest.mark.filterwarnings("ignore")  # FBGEMM's own warnings are not ours to mend
def test_the_cpu_trains_what_the_table_says_and_nothing_else() -> None:
    """One step with each combination of the installed kernels."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("fbgemm_gpu")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    def trains(weights: DataType, output: DataType, optimizer: Optimizer) -> bool:
        try:
            tables = SplitTableBatchedEmbeddingBagsCodegen(
                [(4, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)],
                optimizer=EmbOptimType[FBGEMM_OPTIMIZERS[optimizer]],
                weights_precision=SparseType[weights.value],
                output_dtype=SparseType[output.value],
            )
            pooled = tables(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]))
            pooled.backward(torch.ones_like(pooled))
        except (NotImplementedError, AssertionError):
            return False
        return True

    kernels = TRAINING_KERNELS["cpu"]
    found = {combination for combination in itertools.product(DataType, DataType, Optimizer) if trains(*combination)}

    assert found == set(itertools.product(kernels.weight_types, kernels.output_types, kernels.optimizers))
