from neuroshard_api.documents.presets import load_presets
from neuroshard_report.terminal.listings import render_devices, render_workloads
from rich.console import Console, RenderableType
from support.builders import table, table_set


def _shown(content: RenderableType) -> str:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


def test_a_workload_is_one_line_with_its_size() -> None:
    """Two tables of a million rows and 64 columns of FP32 are 488 MiB of weights."""
    text = _shown(render_workloads({"mine": table_set(table("a"), table("b"), description="A model.")}))

    assert len(text.splitlines()) == 2
    assert "488 MiB" in text
    assert "A model" in text


def test_devices_say_which_have_cost_models() -> None:
    """A device without a bundle needs one to be trained first."""
    presets = load_presets()
    lines = _shown(render_devices(presets, with_bundle={"h100-80gb"})).splitlines()
    bundled = {line.split()[0]: " yes " in line for line in lines[1:]}

    assert set(bundled) == set(presets)
    assert [name for name, has_bundle in bundled.items() if has_bundle] == ["h100-80gb"]
