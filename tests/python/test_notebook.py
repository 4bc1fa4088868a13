"""The page about Python, run in the kernel of a notebook."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[BlockingKernelClient]:
    """Start a kernel of IPython, as a notebook does, and end it with its sockets."""
    manager = KernelManager(transport="ipc", connection_file=str(tmp_path / "kernel.json"))
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def outputs(kernel: BlockingKernelClient, cell: str) -> dict[str, str]:
    """Run a cell, and return what it shows, by type or stream."""
    shown: dict[str, str] = {}

    def take(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            shown[content["name"]] = shown.get(content["name"], "") + content["text"]
        elif message["msg_type"] in {"execute_result", "display_data"}:
            shown.update(content["data"])

    reply = kernel.execute_interactive(cell, output_hook=take, timeout=120)
    assert reply["content"]["status"] == "ok", reply["content"]
    return shown


@pytest.mark.slow
@pytest.mark.processes
def test_the_page_runs_in_a_notebook(kernel: BlockingKernelClient) -> None:
    """Each block is a cell: results show, and nothing writes to stderr or needs torch."""
    cells = [*BLOCK.findall(PAGE.read_text(encoding="utf-8")), "import sys\n'torch' in sys.modules"]
    shown = [outputs(kernel, cell) for cell in cells]
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
