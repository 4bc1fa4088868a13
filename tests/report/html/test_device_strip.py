import re

import pytest
from neuroshard_report.html.device_strip import HEIGHT, Series, stacked_columns


def test_columns_stack_up_to_the_scale() -> None:
    """A device whose terms sum to the scale reaches the upper edge."""
    chart = stacked_columns(
        [Series(css_class="a", values=(1.0, 3.0)), Series(css_class="b", values=(1.0, 1.0))],
        scale=4.0,
        devices_per_node=2,
        label="two devices",
    )

    tops = [float(y) for y in re.findall(r"M\S+ ([\d.]+)h", chart)]
    assert tops == [HEIGHT * 3 / 4, HEIGHT * 1 / 4, HEIGHT * 2 / 4, 0.0]


def test_the_label_is_escaped() -> None:
    """What it shows is text, never markup."""
    series = [Series(css_class="a", values=(1.0,))]

    assert "<b>" not in stacked_columns(series, scale=1.0, devices_per_node=1, label='"<b>')


@pytest.mark.parametrize(("num_devices", "lines"), [(8, 0), (16, 1), (512, 63), (1024, 0)])
def test_lines_divide_nodes_unless_they_are_too_many(num_devices: int, lines: int) -> None:
    """Lines between 128 nodes would hide the columns."""
    series = [Series(css_class="a", values=(1.0,) * num_devices)]
    chart = stacked_columns(series, scale=1.0, devices_per_node=8, label="devices")

    assert chart.count(f"v{HEIGHT}") - chart.count(f"v{HEIGHT}.0") == lines
