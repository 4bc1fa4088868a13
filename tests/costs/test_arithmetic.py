"""Specification of arithmetic that gives equal bits on every processor."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_costs import arithmetic
from neuroshard_costs.arithmetic import ExactMatrix, FloatArray
from support.depth import depth
from support.processes import printed_on_processors

ACCURACY = 2e-14
positive = st.floats(1e-280, 1e280)


@given(values=st.lists(positive, min_size=1, max_size=40))
def test_logarithms_are_those_of_libm(values: list[float]) -> None:
    """To a few last digits, of every magnitude."""
    assert arithmetic.log2(values).tolist() == pytest.approx(list(map(math.log2, values)), rel=ACCURACY, abs=1e-15)
    assert arithmetic.log(values).tolist() == pytest.approx(list(map(math.log, values)), rel=ACCURACY, abs=1e-15)


def test_logarithms_of_powers_of_two_are_exact() -> None:
    """Widths and numbers of devices are such powers."""
    exponents = np.arange(-60, 61)

    assert arithmetic.log2(2.0**exponents).tolist() == exponents.tolist()


@given(values=st.lists(st.floats(-600, 600), min_size=1, max_size=40))
def test_exponentials_are_those_of_libm(values: list[float]) -> None:
    """The relative error grows with the exponent, as that of any product does."""
    accuracy = 1e-15 * (1 + max(map(abs, values)))

    assert arithmetic.exp(values).tolist() == pytest.approx(list(map(math.exp, values)), rel=accuracy)
    assert arithmetic.exp2(values).tolist() == pytest.approx([2.0**each for each in values], rel=accuracy)
    assert arithmetic.expm1(values).tolist() == pytest.approx(list(map(math.expm1, values)), rel=accuracy, abs=0)


@given(sizes=st.lists(st.floats(-280, 2), min_size=1, max_size=40), sign=st.sampled_from((1.0, -1.0)))
def test_functions_at_zero_keep_small_numbers(sizes: list[float], sign: float) -> None:
    """e^x - 1 and ln(1 + x) are near x: chances of rows that are seldom touched."""
    small = [sign * 10.0 ** min(size, -0.01) for size in sizes]

    assert arithmetic.expm1(small).tolist() == pytest.approx(list(map(math.expm1, small)), rel=ACCURACY, abs=0)
    assert arithmetic.log1p(small).tolist() == pytest.approx(list(map(math.log1p, small)), rel=ACCURACY, abs=0)


@given(bases=st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20), exponent=st.floats(-2, 2))
def test_powers_are_those_of_libm(bases: list[float], exponent: float) -> None:
    """Of calibrations and of Zipf's law; 0 stays 0."""
    found = arithmetic.power([0.0, *bases], exponent)

    assert found[0] == 0
    assert found[1:].tolist() == pytest.approx([base**exponent for base in bases], rel=ACCURACY)


@pytest.mark.parametrize("order", [3, 4])
@given(values=st.lists(st.tuples(*[st.floats(0, 1e9)] * 3), min_size=1, max_size=20))
def test_norms_are_those_by_powers(order: int, values: list[tuple[float, ...]]) -> None:
    """Nothing overlaps with nothing: three zeros give 0."""
    found = arithmetic.power_norm(np.array(values).T, order)

    assert found.tolist() == pytest.approx([sum(x**order for x in row) ** (1 / order) for row in values], rel=1e-12)


def test_the_normal_distribution_is_that_of_libm() -> None:
    """Both tails included."""
    values = np.linspace(-12, 12, 241)

    assert arithmetic.normal_cumulative(values) == pytest.approx(
        [0.5 * math.erfc(-value / math.sqrt(2)) for value in values], abs=1e-14
    )


def test_a_geometric_grid_has_exact_ends() -> None:
    """Traffic at either end of a curve is on it."""
    grid = arithmetic.geometric(3.0, 7e9, 25)

    assert (grid[0], grid[-1]) == (3.0, 7e9)
    assert grid == pytest.approx(np.geomspace(3.0, 7e9, 25), rel=1e-13)


def _numbers(seed: int, *shape: int) -> FloatArray:
    random = np.random.default_rng(seed)
    return random.normal(size=shape) * 2.0 ** random.integers(-8, 8, shape)


@given(seed=st.integers(0, 50), inner=st.integers(1, 140))
def test_exact_products_are_the_same_in_any_order(seed: int, inner: int) -> None:
    """Rows and columns in another order give the same bits: nothing was rounded on the way."""
    matrix, vectors = _numbers(seed, inner, 5), _numbers(seed + 1, inner, 3)
    order = np.random.default_rng(seed).permutation(inner)
    found = ExactMatrix(matrix).product(vectors)

    assert np.array_equal(found, ExactMatrix(matrix[order]).product(vectors[order]))
    assert np.array_equal(found[:, 0], ExactMatrix(matrix).product(vectors[:, :1])[:, 0])


@given(seed=st.integers(0, 50), inner=st.integers(1, 140))
def test_exact_products_are_as_good_as_single_precision(seed: int, inner: int) -> None:
    """The error is small next to the product of the largest elements."""
    matrix, vectors = _numbers(seed, inner, 5), _numbers(seed + 1, inner, 3)
    error = np.abs(ExactMatrix(matrix).product(vectors) - matrix.T @ vectors)

    assert (error <= inner * 2.0**-21 * np.abs(matrix).max() * np.abs(vectors).max(axis=0)).all()


@pytest.mark.deep
@pytest.mark.processes
def test_processors_change_no_bit() -> None:
    """Demands, times, and exchanges of a bundle, and a simulated device, are the same on all kinds of processors."""
    code = """
import hashlib
import numpy as np
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import Reduction, pooled_exchange
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.simulator.compute import set_seconds
from support.builders import request, table, tables, topology

bundle = bundled_bundle("h100-80gb")
asked = request(
    *tables(40),
    table("hot", zipf_exponent=1.3),
    table("measured", reuse_histogram=(0.5, 0.3, *[0.0] * 13, 0.2, 0.0)),
    topology=topology(16, num_nodes=2, device=bundle.manifest.device),
)
shards = shard_arrays(asked.tables, global_batch_size=asked.global_batch_size, optimizer=asked.optimizer)
exchange = pooled_exchange(asked)
many = bundle.compute.demands(np.random.default_rng(0).normal(0, 2, (9001, 62)))
parts = [
    bundle.represent(shards),
    bundle.compute.times_ms(many, 1.0),
    bundle.transfer_ms(exchange.mean_dim_sum * np.linspace(1, 9, 99), exchange),
    bundle.reduction_ms(np.linspace(1, 1e9, 99), Reduction(topology=asked.topology, family=Family.NODE_ROWS)),
    set_seconds(bundle.manifest.device, shards, np.arange(42), 42, pipeline=Pipeline.NONE),
]
print(*(hashlib.sha256(part.tobytes()).hexdigest() for part in parts))
"""
    (found,) = printed_on_processors(code, kinds=depth(3, 5))

    assert len(found.split()) == 5


@pytest.mark.parametrize("count", [1, 5, 8, 10, 11, 34])
def test_a_row_has_the_same_sum_among_few_rows_and_among_many(count: int) -> None:
    """Many short rows are added up column by column, few row by row."""
    rows = np.random.default_rng(count).lognormal(0.0, 9.0, (5_000, count))
    weights = np.random.default_rng(0).random(count)

    of_many = arithmetic.weighted_sum(rows, weights)

    assert of_many.tolist() == [float(arithmetic.weighted_sum(row, weights)) for row in rows]
    assert arithmetic.weighted_sum(rows.reshape(2, -1, count), weights).ravel().tolist() == of_many.tolist()
