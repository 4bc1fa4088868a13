"""FBGEMM's training kernels against formulas in FP64: forward, and each optimizer's update."""

from functools import partial
from typing import Any

import torch

from benchmarks.gpu.rows import CPU, attempt, device, emit


def tables(shapes: list[tuple[int, int]], optimizer: str, weights: str, output: str, **more: Any) -> Any:
    """Return one fused module of tables [rows, columns], on the measured device unless a location is given."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    location = more.pop("location", None) or ("HOST" if CPU else "DEVICE")
    compute = ComputeDevice.CPU if CPU else ComputeDevice.CUDA
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation[location], compute) for rows, width in shapes],
        optimizer=EmbOptimType[optimizer],
        weights_precision=SparseType[weights],
        output_dtype=SparseType[output],
        learning_rate=0.05,
        eps=1e-8,
        device=device(),
        **more,
    )


def correct() -> None:
    """FBGEMM's training kernels against formulas in FP64: forward, and each optimizer's update."""
    torch.manual_seed(0)
    cases = [
        ("EXACT_SGD", "FP32", "FP32"),
        ("EXACT_ROWWISE_ADAGRAD", "FP32", "FP32"),
        ("EXACT_ADAGRAD", "FP32", "FP32"),
        ("EXACT_SGD", "FP16", "FP32"),
        ("EXACT_ROWWISE_ADAGRAD", "FP16", "FP32"),
    ]
    if not CPU:
        cases += [
            ("ADAM", "FP32", "FP32"),
            ("EXACT_ROWWISE_ADAGRAD", "FP32", "BF16"),
            ("EXACT_ROWWISE_ADAGRAD", "FP32", "FP16"),
        ]
    for optimizer, weights, output in cases:
        attempt(f"{optimizer} {weights} {output}", partial(_one_case, optimizer, weights, output))


def _one_case(optimizer: str, weights: str, output: str) -> None:
    shapes, batch = [(5000, 64), (300, 128), (7, 32)], 512
    module = tables(shapes, optimizer, weights, output)
    for weight in module.split_embedding_weights():
        weight.copy_(torch.randn_like(weight, dtype=torch.float32) * 0.1)
    before = [weight.double().cpu().clone() for weight in module.split_embedding_weights()]
    lengths = torch.randint(0, 9, (len(shapes), batch))
    rows = [torch.randint(0, size, (int(own.sum()),)) for (size, _), own in zip(shapes, lengths, strict=True)]
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.flatten().cumsum(0)))
    pooled = module(torch.cat(rows).to(device()), offsets.to(device()))
    expected = []
    for weight, own, looked in zip(before, lengths, rows, strict=True):
        bags = torch.repeat_interleave(torch.arange(batch), own)
        expected.append(torch.zeros(batch, weight.shape[1], dtype=torch.float64).index_add_(0, bags, weight[looked]))
    wanted = torch.cat(expected, dim=1)
    forward_error = float((pooled.double().cpu() - wanted).norm() / wanted.norm())
    gradient = torch.randn(pooled.shape, dtype=pooled.dtype, device=pooled.device)
    pooled.backward(gradient)
    whole = gradient.double().cpu()
    at, errors = 0, []
    for weight, own, looked, after in zip(before, lengths, rows, module.split_embedding_weights(), strict=True):
        width = weight.shape[1]
        bags = torch.repeat_interleave(torch.arange(batch), own)
        summed = torch.zeros_like(weight).index_add_(0, looked, whole[bags, at : at + width])
        at += width
        touched = torch.bincount(looked, minlength=len(weight)) > 0
        step = {
            "EXACT_SGD": lambda g: 0.05 * g,
            "EXACT_ROWWISE_ADAGRAD": lambda g: 0.05 * g / (g.square().mean(1, keepdim=True).sqrt() + 1e-8),
            "EXACT_ADAGRAD": lambda g: 0.05 * g / (g.abs() + 1e-8),
            "ADAM": lambda g: 0.05 * g / (g.abs() + 1e-8),
        }[optimizer](summed)
        step[~touched] = 0
        moved = weight - after.double().cpu()
        errors.append(float((moved - step).norm() / step.norm().clamp(min=1e-12)))
    emit(case=f"{optimizer} weights {weights} output {output}", forward_error=forward_error, update_errors=errors)
