"""The page about Python, run in the kernel of a notebook."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import v4

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_cells(cells: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run cells one after the other in a kernel of IPython, and return the outputs of each, by their types."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call]
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=str(folder / "kernel.json"))
    NotebookClient(notebook, km=kernel, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return [dict(_outputs(cell)) for cell in notebook.cells]


def _outputs(cell: Any) -> Iterator[tuple[str, str]]:
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.name, output.text
        else:
            yield from output.data.items()


@pytest.mark.slow
def test_the_page_runs_in_a_notebook(tmp_path: Path) -> None:
    """Each block is a cell: results show, and nothing writes to stderr or needs torch."""
    cells = [*BLOCK.findall(PAGE.read_text(encoding="utf-8")), "import sys\n'torch' in sys.modules"]
    shown = run_cells(cells, tmp_path)
    report, numbers, comparison, estimate, rows, explanation, moved, error, torch = shown

    assert "<iframe" in report["text/html"]
    assert "Embedding part of a step" in report["text/html"]
    assert "simulated" in report["text/html"]
    assert report["text/plain"].startswith("Plan(tables=2, devices=4 x h100-80gb")
    assert numbers["text/plain"].endswith("'simulated:NVIDIA-H100-80GB-HBM3')")
    assert "dim_greedy" in comparison["text/html"]
    assert estimate["text/plain"].endswith("True)")
    assert rows["text/plain"] == "True"
    assert "item" in explanation["text/plain"]
    assert "moved_bytes" in moved["text/html"]
    assert "hint: " in error["stdout"]
    assert torch["text/plain"] == "False"
    assert not [each for each in shown if "stderr" in each]
