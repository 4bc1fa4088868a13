"""Specification of what decides plans: nothing in it depends on the processor (docs/design/0015)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARITHMETIC = "costs/neuroshard_costs/arithmetic.py"
NOT_DECIDING = (
    "costs/neuroshard_costs/pretrain/",  # makes bundles
    "costs/neuroshard_costs/fitting/",
    "costs/neuroshard_costs/simulator/device.py",  # draws the noise of simulated records
    "planner/neuroshard_planner/baselines/torchrec.py",  # runs another planner
    "planner/neuroshard_planner/memory/exact_packing.py",  # HiGHS is compiled once for all processors
)
_LIBM = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "power", "float_power", "cbrt", "hypot"}
_LIBM |= {"sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arctan2", "erf", "erfc", "lgamma"}
_LIBM |= {"geomspace", "logspace", "logaddexp", "gamma", "lognormal", "normal", "standard_normal", "exponential"}
_BLAS = {"dot", "vdot", "inner", "matmul", "tensordot", "einsum", "linalg", "convolve", "correlate", "polyfit", "cov"}
_UNSTABLE = {"argsort", "argpartition"}


def _faults(source: str) -> Iterator[str]:
    """Yield the operations of a module that depend on the processor, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                yield f"line {node.lineno}: @ adds in the order of BLAS; use ExactMatrix or weighted_sum"
            case ast.BinOp(left=ast.Constant(), op=ast.Pow()):
                continue  # of two or ten, to an integer
            case ast.BinOp(op=ast.Pow()) | ast.AugAssign(op=ast.Pow()):
                yield f"line {node.lineno}: ** is libm's; use arithmetic.power, or products and np.sqrt"
            case ast.Attribute(attr=name) if name in _BLAS:
                yield f"line {node.lineno}: {name} adds in the order of BLAS; use ExactMatrix or weighted_sum"
            case ast.Attribute(value=ast.Name(id="np" | "math" | "generator") | ast.Attribute(), attr=name) if (
                name in _LIBM
            ):
                yield f"line {node.lineno}: {name} has other last digits on other processors; use arithmetic.py"
            case ast.Call(func=ast.Attribute(attr=name), keywords=keywords) if name in _UNSTABLE:
                if not any(each.arg == "kind" for each in keywords):
                    yield f"line {node.lineno}: {name} orders equal keys by the processor; give kind='stable'"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "scipy":
                yield f"line {node.lineno}: scipy computes with BLAS and libm"


def _deciding() -> list[str]:
    found = [
        str(path.relative_to(ROOT))
        for room in ("costs/neuroshard_costs", "dense/neuroshard_dense", "planner/neuroshard_planner")
        for path in sorted((ROOT / room).rglob("*.py"))
    ]
    return [path for path in found if path != ARITHMETIC and not path.startswith(NOT_DECIDING)]


def test_what_decides_plans_depends_on_no_processor() -> None:
    """Matrix products, transcendental functions, and unstable sorts are those of arithmetic.py, or none."""
    faults = [f"{path}: {fault}" for path in _deciding() for fault in _faults((ROOT / path).read_text("utf-8"))]

    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "line",
    [
        "a @ b",
        "np.log2(x)",
        "math.exp(x)",
        "x ** 1.5",
        "x **= n",
        "rows.dot(x)",
        "np.linalg.norm(x)",
        "np.argsort(x)",
        "x.argsort()",
        "self._generator.lognormal(1.0)",
        "from scipy.optimize import milp",
    ],
)
def test_what_depends_on_the_processor_is_refused(line: str) -> None:
    """Each kind of it is seen."""
    assert list(_faults(line))


@pytest.mark.parametrize(
    "line", ["2**20 * x", "np.sqrt(x)", "math.isqrt(4)", "np.argsort(x, kind='stable')", "log2(x)"]
)
def test_what_does_not_is_allowed(line: str) -> None:
    """IEEE 754 fixes these, or arithmetic.py does."""
    assert not list(_faults(line))
