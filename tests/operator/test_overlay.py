"""A pod template of the user's over the operator's own, as kubectl would merge it."""

from typing import Any

import pytest
from neuroshard_operator.children.overlay import merged

BASE: dict[str, Any] = {
    "terminationGracePeriodSeconds": 300,
    "nodeSelector": {"product": "H200"},
    "tolerations": [{"key": "a"}],
    "containers": [{"name": "trainer", "image": "ours", "env": [{"name": "A", "value": "1"}]}],
}


@pytest.mark.parametrize(
    ("overlay", "path", "expected"),
    [
        pytest.param({"terminationGracePeriodSeconds": 60}, ["terminationGracePeriodSeconds"], 60, id="a value"),
        pytest.param({"nodeSelector": {"pool": "b"}}, ["nodeSelector"], {"product": "H200", "pool": "b"}, id="a map"),
        pytest.param({"nodeSelector": {"product": None}}, ["nodeSelector"], {}, id="null removes"),
        pytest.param({"tolerations": [{"key": "b"}]}, ["tolerations"], [{"key": "b"}], id="a list without key"),
        pytest.param(
            {"containers": [{"name": "trainer", "env": [{"name": "B", "value": "2"}]}]},
            ["containers", 0, "env"],
            [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            id="a list by its key",
        ),
        pytest.param({"containers": [{"name": "logs"}]}, ["containers", 1], {"name": "logs"}, id="a new entry"),
    ],
)
def test_an_overlay_changes_what_it_names(overlay: dict[str, Any], path: list[Any], expected: object) -> None:
    """And nothing else."""
    result: Any = merged(BASE, overlay)
    for key in path:
        result = result[key]

    assert result == expected
    assert BASE["nodeSelector"] == {"product": "H200"}


def test_entries_without_their_key_replace_the_list() -> None:
    """The API server says what is wrong with them."""
    assert merged(BASE, {"containers": [{"image": "x"}]})["containers"] == [{"image": "x"}]
