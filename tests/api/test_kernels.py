"""Specification of the table of training kernels."""

import pytest
from neuroshard_api.sharding.kernels import (
    FBGEMM_OPTIMIZERS,
    TRAINING_KERNELS,
    DataType,
    DeviceKind,
    Optimizer,
    kernel_problem,
    release_of,
    width_problem,
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
        if (optimizer, weights) not in kernels.refused
    } == {None}


def test_a_kernel_that_refuses_weights_of_a_type_is_named_with_what_to_take() -> None:
    """Adam's with FP16 on CUDA devices; the table of the pair is named, and not that of another type."""
    tables = {"a": DataType.FP32, "b": DataType.FP16}

    assert kernel_problem("cuda", weight_types=tables, optimizer=Optimizer.ADAM) == (
        "table 'b': FBGEMM's kernel with adam refuses weights of type FP16 on CUDA devices; hint: use FP32, or "
        "rowwise_adagrad, sgd or adagrad"
    )
    assert kernel_problem("cuda", weight_types={"a": DataType.FP32}, optimizer=Optimizer.ADAM) is None
    assert kernel_problem("cuda", weight_types=tables, optimizer=Optimizer.SGD) is None


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


@pytest.mark.parametrize(
    ("kind", "width", "has_pooling", "release", "words"),
    [
        ("cuda", 2048, True, None, None),
        ("cuda", 2048, True, (1, 7), None),
        ("cuda", 2048, False, (1, 6), None),
        ("cuda", 1028, True, (1, 6), "FBGEMM 1.6 returns zeros where it pools more than 1,024"),
        ("cuda", 2052, False, (1, 9), "at most 2,048; hint: cut it by columns"),
        ("cuda", 30, False, None, "must be a multiple of 4, found 30"),
        ("cpu", 8192, True, (1, 6), None),
    ],
)
def test_widths_are_those_of_the_release_s_kernels(
    kind: DeviceKind,
    width: int,
    has_pooling: bool,  # noqa: FBT001 - a case's own
    release: tuple[int, int] | None,
    words: str | None,
) -> None:
    """Refused above the limit, computed wrongly above half of it by releases before the repair."""
    problem = width_problem(kind, width, has_pooling=has_pooling, release=release)

    assert problem is None if words is None else words in str(problem)


def test_a_release_is_read_from_a_version() -> None:
    """Local parts and release candidates too; a version of another form names none."""
    assert [release_of(each) for each in ("1.9.0+cu130", "1.10.0rc1", "nightly")] == [(1, 9), (1, 10), None]
