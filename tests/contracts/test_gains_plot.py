"""The plot of the page of benchmarks shows the newest result file, its losses included."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    """Return the program that draws the plot."""
    spec = importlib.util.spec_from_file_location("gains_plot", ROOT / "docs" / "gains_plot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


PLOT = script()


def test_the_committed_plot_is_that_of_the_newest_result() -> None:
    """`make pictures` draws it again after a new result of `search_quality`."""
    rows = PLOT.comparisons(PLOT.newest_result().read_text(encoding="utf-8"))

    assert PLOT.PICTURE.read_text(encoding="utf-8") == PLOT.plot(rows)


def test_every_loss_of_the_result_file_is_in_the_plot() -> None:
    """A row whose plan costs more is drawn as a loss, and the title counts it; README names the same counts."""
    head = "| workload | tables | devices | neuroshard | best greedy | which | gain | torchrec | random |\n"
    rows = "| a | 26 | 8 | 1.10 | - | none | - | 1.00 | - |\n| b | 26 | 8 | 1.00 | 2.00 | dim | 50% | 1.00 | - |\n"
    compared = PLOT.comparisons(head + rows + "| c | 26 | 8 | 1.00 | 2.00 | dim | 50% | . | - |\n")

    assert [(row.workload, row.kind) for row in compared] == [("b", "tie"), ("a", "loss")]
    assert "0 gains, 1 tie, 1 loss" in PLOT.plot(compared)
    counts = re.search(r"\d+ gains, .*", PLOT.PICTURE.read_text(encoding="utf-8"))
    assert counts is not None
    assert counts[0].partition("<")[0] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_file_without_plans_of_torchrec_is_refused() -> None:
    """An empty plot would look like a result."""
    with pytest.raises(ValueError, match="no row"):
        PLOT.comparisons("# Nothing\n")
