"""Arithmetic that gives equal bits on every processor: what plans are decided by is computed with it.

IEEE 754 fixes the bits of +, -, *, /, square roots, rounding, comparisons, and of scaling by powers of two; NumPy's
loops keep to it, and NumPy adds the numbers of an axis in an order that depends on the array's shape alone. Two things
depend on the processor. Logarithms, exponentials, and powers have other last digits under AVX-512, under AVX2, and in
each libm: here they are tables and polynomials in the operations above, accurate to 1e-15. BLAS chooses a kernel by
the processor, which decides the order of a product's sums and whether they are fused: `ExactMatrix` rounds both
factors to integers so small that every partial sum is exact, whatever the order.

docs/design/0015-equal-plans-on-every-processor.md says where it must be used; tests/contracts checks it.
"""

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_MANTISSA_BITS = 53
_FEW_COLUMNS = 4  # of a matrix, for which it is quicker to add up each
_SHORT_ROW = 10  # most numbers of rows that are added up by columns, which is quicker where there are many rows
_ROWS_PER_COLUMN = 40  # fewest of these
_ADDED_TOGETHER = 8  # numbers of a row, by NumPy
_CHUNK = 1 << 16  # numbers: temporaries stay in the processor's cache
_STEPS = 2048  # of the tables: the polynomials need few terms between them


def _atanh_series(ratio: FloatArray, num_terms: int) -> FloatArray:
    """Return 2 atanh(ratio) / ratio, by its Taylor series."""
    square = ratio * ratio
    result = np.full_like(square, 2.0 / (2 * num_terms - 1))
    for term in range(num_terms - 1, 0, -1):
        result *= square
        result += 2.0 / (2 * term - 1)
    return result


def _scalar_ln(value: Fraction) -> float:
    """Return the natural logarithm, correct to the last digit but one, of a number near 1."""
    ratio = (value - 1) / (value + 1)
    total, power = Fraction(0), ratio
    for term in range(1, 80, 2):
        total += power / term
        power *= ratio * ratio
    return float(2 * total)


LN2: Final = _scalar_ln(Fraction(2))

_CUTS: FloatArray = (np.arange(_STEPS) + _STEPS) / (2 * _STEPS)
"""[_STEPS] from 1/2 to 1, where the pieces of the logarithm begin."""
_INVERSE: FloatArray = 1.0 / _CUTS
_LOG2_CUTS: FloatArray = (
    (1.0 - _INVERSE) / (_INVERSE + 1.0) * _atanh_series((_INVERSE - 1.0) / (_INVERSE + 1.0), 18) / LN2
)
_LOG2_CUTS[0] = -1.0
"""[_STEPS] logarithms to base 2 of 1 / _INVERSE."""
_LOG2_TERMS: Final = tuple((-1) ** (term - 1) / term / LN2 for term in (4, 3, 2, 1))
"""Of the logarithm to base 2 of 1 + r, highest first; r is below 1 / _STEPS."""
_EXP_TERMS: Final = (1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0)
"""Of (e^r - 1) / r, highest first; r is within LN2 / (2 _STEPS)."""


def _exp_series(exponents: FloatArray, num_terms: int) -> FloatArray:
    """Return (e^x - 1) / x, by its Taylor series."""
    result: FloatArray = np.ones_like(exponents)
    for term in range(num_terms, 1, -1):
        result = result * (exponents / term) + 1.0
    return result


_STEP_LOGS: FloatArray = np.arange(_STEPS, dtype=np.float64) * (LN2 / _STEPS)
_EXP2_STEPS: FloatArray = 1.0 + _STEP_LOGS * _exp_series(_STEP_LOGS, 20)
"""[_STEPS] powers of two from 1 to below 2."""


_NORMAL_DENSITY: Final = 0.3989422804014327  # 1 / sqrt(2 pi)


def log2(values: ArrayLike) -> FloatArray:
    """Return the logarithms to base 2 of positive numbers [...]; exact for powers of two."""
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    place = (mantissa * (2 * _STEPS)).astype(np.intp)
    place -= _STEPS
    rest = mantissa * _INVERSE.take(place, mode="clip")
    rest -= 1.0
    result = rest * _LOG2_TERMS[0]
    for term in _LOG2_TERMS[1:]:
        result += term
        result *= rest
    result += _LOG2_CUTS.take(place, mode="clip")
    result += exponent
    return np.asarray(result)


def exp2(exponents: ArrayLike) -> FloatArray:
    """Return two to the power of numbers [...] within +-1000."""
    steps = np.asarray(exponents, dtype=np.float64) * _STEPS
    whole = np.rint(steps)
    rest = (steps - whole) * (LN2 / _STEPS)
    result = rest * _EXP_TERMS[0]
    for term in _EXP_TERMS[1:]:
        result += term
        result *= rest
    step = whole.astype(np.int64)
    result += 1.0
    result *= _EXP2_STEPS.take(step & (_STEPS - 1))
    return np.asarray(np.ldexp(result, (step >> 11).astype(np.int32)))


def log(values: ArrayLike) -> FloatArray:
    """Return the natural logarithms of positive numbers [...]."""
    return log2(values) * LN2


def exp(exponents: ArrayLike) -> FloatArray:
    """Return e to the power of numbers [...] within +-690; the relative error is 1e-16 times the exponent."""
    return exp2(np.asarray(exponents, dtype=np.float64) * (1.0 / LN2))


def expm1(exponents: ArrayLike) -> FloatArray:
    """Return e to the power of numbers [...], less 1, accurate near 0; -1 for exponents below -690."""
    values = np.asarray(exponents, dtype=np.float64)
    small = np.clip(values, -0.5, 0.5)
    return np.where(small == values, small * _exp_series(small, 15), exp(np.maximum(values, -690.0)) - 1.0)


def log1p(values: ArrayLike) -> FloatArray:
    """Return the natural logarithms of 1 plus numbers [...] above -1, accurate near 0."""
    each = np.asarray(values, dtype=np.float64)
    small = np.clip(each, -0.25, 0.25)
    ratio = small / (2.0 + small)
    return np.where(small == each, ratio * _atanh_series(ratio, 12), log(1.0 + each))


def power(bases: ArrayLike, exponents: ArrayLike) -> FloatArray:
    """Return bases [...] to the power of exponents [...]; 0 for bases of 0, and none is negative."""
    known = np.asarray(bases, dtype=np.float64)
    return np.where(known > 0, exp2(log2(known) * np.asarray(exponents)), 0.0)


def geometric(first: float, last: float, count: int) -> FloatArray:
    """Return [count] numbers from ``first`` to ``last`` that grow by one factor; both ends are exact."""
    ends = log2([first, last])
    result = exp2(ends[0] + (ends[1] - ends[0]) * (np.arange(count) / (count - 1)))
    result[0], result[-1] = first, last
    return result


def power_norm(values: FloatArray, order: float) -> FloatArray:
    """Return the norm of order 3 or 4 of non-negative numbers, of at most 8, along the first axis."""
    assert order in (3, 4), "other roots are not written"
    largest = values.max(axis=0)
    shares = values / np.maximum(largest, np.finfo(np.float64).tiny)
    squares = shares * shares
    total = (squares * (shares if order == 3 else squares)).sum(axis=0)  # noqa: PLR2004 - cubes
    return np.asarray((_cube_root(total) if order == 3 else np.sqrt(np.sqrt(total))) * largest)  # noqa: PLR2004


def _cube_root(values: FloatArray) -> FloatArray:
    """Return the cube roots of numbers from 1 to 8: a rational start, and two steps of Halley's method."""
    root = (0.5 + values * (2.5 / 3.0)) / (1.0 + values / 3.0)
    doubled = values + values
    for _ in range(2):
        cube = root * root * root
        root = root * ((cube + doubled) / (cube + cube + values))
    return root


def normal_cumulative(values: ArrayLike) -> FloatArray:
    """Return [...] the chance that a normal number of mean 0 and deviation 1 is at most these."""
    inside = np.clip(np.asarray(values, dtype=np.float64), -9.0, 9.0)
    square = inside * inside
    total = np.zeros_like(inside)
    term = inside * (exp(-0.5 * square) * _NORMAL_DENSITY)
    for odd in range(3, 303, 2):  # all terms have one sign, so that nothing cancels
        total += term
        term *= square / odd
    return np.clip(0.5 + total, 0.0, 1.0)


def weighted_sum(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return [...] the sums of rows [..., k] times weights [k] or [n, k] of the last rows, added in one order."""
    count = rows.shape[-1]
    is_in_rows = rows.flags.c_contiguous
    if is_in_rows and rows.ndim == 2 and weights.ndim == 1 and rows.size > 2 * _CHUNK:  # noqa: PLR2004 - rows in one list
        step = _CHUNK // count
        return np.concatenate([weighted_sum(rows[at : at + step], weights) for at in range(0, len(rows), step)])
    if count > _SHORT_ROW or rows.size < _ROWS_PER_COLUMN * count * count or not is_in_rows:
        total: FloatArray = np.add.reduce(rows * weights, axis=-1)
        return total
    return _sum_of_columns([rows[..., place] * weights[..., place] for place in range(count)])


def _sum_of_columns(columns: list[FloatArray]) -> FloatArray:
    """Return [...] the sum of k columns [...], which it uses up, in the order in which NumPy adds up a row of k."""
    if len(columns) < _ADDED_TOGETHER:
        first, *rest = columns
    else:
        eight, rest = columns[:_ADDED_TOGETHER], columns[_ADDED_TOGETHER:]
        first = ((eight[0] + eight[1]) + (eight[2] + eight[3])) + ((eight[4] + eight[5]) + (eight[6] + eight[7]))
    for each in rest:
        first += each
    return first


def ordered_product(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return [..., n] the product of rows [..., k] and a matrix [k, n], its sums added in an order that k and n decide.

    For factors whose magnitudes differ so much that `ExactMatrix` would round small ones away.
    """
    if matrix.shape[1] <= _FEW_COLUMNS:
        return np.stack([weighted_sum(rows, column) for column in matrix.T], axis=-1)
    total: FloatArray = rows[..., :1] * matrix[0]
    for inner in range(1, len(matrix)):
        total += rows[..., inner, None] * matrix[inner]
    return total


class ExactMatrix:
    """A matrix whose products with vectors are the same bits for any order of their sums.

    The matrix is rounded to integers times one power of two, and each vector to integers times another, of so few bits
    that the sum of all products is below 2^53. BLAS then rounds nothing. Both roundings are relative to the largest
    element: for 24 inner elements to 2^-25 and 2^-24, as in single precision.
    """

    def __init__(self, weights: NDArray[np.floating]) -> None:
        """Take [k, n] weights."""
        bits = _MANTISSA_BITS - (len(weights) - 1).bit_length()
        vector_bits = bits // 2
        _, exponent = np.frexp(np.abs(weights).max(initial=0.0))
        weight_bits = bits - vector_bits - int(exponent)
        self._units: FloatArray = np.rint(np.ldexp(np.ascontiguousarray(weights.T, dtype=np.float64), weight_bits))
        self._to_units = 2.0**vector_bits
        self._from_units = 2.0 ** -(vector_bits + weight_bits)
        self.rounded: FloatArray = np.ldexp(self._units, -weight_bits)
        """[n, k] the weights that products are of."""

    def product(self, vectors: FloatArray) -> FloatArray:
        """Return [n, m] the products of the matrix and m vectors, the columns of an array [k, m].

        The sign of a zero is up to the kernel.
        """
        _, exponent = np.frexp(np.maximum.reduce(np.abs(vectors), axis=0))
        units = vectors * np.ldexp(self._to_units, -exponent)
        np.rint(units, out=units)
        result: FloatArray = self._units @ units
        result *= np.ldexp(self._from_units, exponent)
        return result
