"""Specification of the table of training kernels."""

import pytest
from neuroshard_api.sharding.kernels import (
    FBGEMM_OPTIMIZERS,
    TRAINING_KERNELS,
    DataType,
    DeviceKind,
    Optimizer,
    kernel_problem,
)


def test_every_optimizer_has_a_name_in_fbgemm() -> None:
    """Trainer and profiler give FBGEMM the same one."""
    assert set(FBGEMM_OPTIMIZERS) == set(Optimizer)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_offered_combination_has_no_problem(kind: DeviceKind) -> None:
    """The table and its sentences agree."""
    kernels = TRAINING_KERNELS[kind]

    assert {
        kernel_problem(kind, weight_types={"t": weights}, output_type=output, optimizer=optimizer)
        for weights in kernels.weight_types
        for output in kernels.output_types
        for optimizer in kernels.optimizers
    } == {None}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"weight_types": {"a": DataType.FP16, "b": DataType.BF16}},
            "table 'b': FBGEMM has no training kernel with BF16 for weights on CPUs; hint: use FP32 or FP16",
        ),
        (
            {"output_type": DataType.BF16},
            (
                "output_data_type: FBGEMM has no training kernel with BF16 for pooled embeddings on CPUs"
                "; hint: use FP32 or FP16"
            ),
        ),
        (
            {"optimizer": Optimizer.ADAM},
            (
                "optimizer: FBGEMM has no training kernel with adam for tables on CPUs; hint: "
                "use rowwise_adagrad, sgd or adagrad"
            ),
        ),
    ],
    ids=["weights", "outputs", "optimizer"],
)
def test_a_missing_kernel_is_named_with_what_there_is(fields: dict[str, object], expected: str) -> None:
    """What is missing, on which devices, and what to take instead."""
    assert kernel_problem("cpu", **fields) == expected  # type: ignore[arg-type] # the cases' own
