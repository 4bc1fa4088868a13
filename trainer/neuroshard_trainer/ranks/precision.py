"""The arithmetic of the dense part. Weights, gradients, and optimizer state stay FP32."""

import torch
from neuroshard_api.job.training import Precision


def set_matmul_precision(precision: Precision) -> None:
    """Allow or forbid TF32 in this process's matrix products on GPUs, which without a word compute in full FP32."""
    torch.backends.cuda.matmul.allow_tf32 = precision is not Precision.FP32


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass. Lookups have their own types, whatever it is."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision is Precision.BF16)
