"""The step counter in the tables' kernels. Adam has no kernel for the CPU; another optimizer that counts stands in."""

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from neuroshard_trainer.sharding.optimizer_step import set_optimizer_step
from torch import nn, tensor, zeros_like
from torch.autograd import backward


def model_with(optimizer: EmbOptimType) -> nn.Module:
    """Return a module with one kernel."""
    specs = [(10, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    return nn.ModuleList([SplitTableBatchedEmbeddingBagsCodegen(specs, optimizer=optimizer)])


def look_up(model: nn.Module, count: int, *, trains: bool) -> None:
    """Run the kernel's forward pass some times, and the backward pass where it trains."""
    for _ in range(count):
        for kernel in model.children():
            pooled = kernel(zeros_like(tensor([0, 1])), tensor([0, 1, 2]))
            if trains:
                backward(pooled.sum())


def counts(model: nn.Module) -> list[tuple[int, int]]:
    """Return each kernel's count on the host and on the device."""
    return [(int(kernel.iter_cpu.item()), int(kernel.iter.item())) for kernel in model.children()]  # type: ignore[operator]


def test_an_evaluations_lookups_are_not_counted() -> None:
    """FBGEMM counts every forward pass; an evaluation's are taken out again."""
    model = model_with(EmbOptimType.ROWWISE_RMSPROP_AR)
    look_up(model, 2, trains=True)
    look_up(model, 5, trains=False)
    assert counts(model) == [(7, 7)]

    set_optimizer_step(model, 2)
    look_up(model, 1, trains=True)

    assert counts(model) == [(3, 3)]


def test_a_resumed_run_counts_from_its_checkpoint() -> None:
    """A new process's kernels begin at 0: Adam would take steps of a third of the right size."""
    model = model_with(EmbOptimType.ROWWISE_RMSPROP_AR)

    set_optimizer_step(model, 1000)
    look_up(model, 1, trains=True)

    assert counts(model) == [(1001, 1001)]


def test_an_optimizer_without_a_count_is_left_alone() -> None:
    """SGD needs none."""
    model = model_with(EmbOptimType.EXACT_SGD)

    set_optimizer_step(model, 7)

    look_up(model, 1, trains=True)
