"""Workloads that come with the package."""

from pathlib import Path

import pytest
from neuroshard_planner.errors import RequestError
from neuroshard_planner.workload_store import read_workload, workload_names

README = Path(__file__).parents[2] / "examples" / "workloads" / "README.md"
NUM_TABLES = {
    "criteo-1tb-uncapped": 26,
    "criteo-kaggle": 26,
    "hugectr-embark-180-table-70b": 177,
    "hugectr-embark-7-table-470b": 7,
    "mlperf-dlrm-dcnv2": 26,
    "mlperf-dlrm-v1": 26,
    "nvidia-synthetic-criteo": 26,
    "nvidia-synthetic-large": 612,
    "nvidia-synthetic-medium": 311,
    "nvidia-synthetic-small": 107,
    "nvidia-synthetic-tiny": 55,
}
TOTAL_ROWS = {"criteo-1tb-uncapped": 882_774_559, "criteo-kaggle": 33_762_577}


def test_the_bundled_workloads_are_these() -> None:
    """Adding one adds it here and to the README."""
    assert workload_names() == tuple(NUM_TABLES)


@pytest.mark.parametrize("name", NUM_TABLES)
def test_a_workload_is_whole(name: str) -> None:
    """Every workload has all its tables, bears its own name, and says where it comes from and under which terms."""
    workload = read_workload(name)

    assert len(workload.tables) == NUM_TABLES[name]
    assert workload.name == name
    assert workload.description
    assert workload.source
    assert workload.licence


@pytest.mark.parametrize(("name", "rows"), TOTAL_ROWS.items())
def test_rows_add_up_to_the_published_sum(name: str, rows: int) -> None:
    """The sums are in the source, so that a lost digit is found."""
    assert sum(table.num_embeddings for table in read_workload(name).tables) == rows


def test_an_unknown_name_gets_the_closest() -> None:
    """A slip of the finger is fixed from the message alone."""
    with pytest.raises(RequestError, match=r"named 'mlperf-dcnv2'; hint: did you mean mlperf-dlrm-dcnv2"):
        read_workload("mlperf-dcnv2")


@pytest.mark.parametrize("name", ["", "zzz", "../pyproject", "workloads/criteo-kaggle.yaml"])
def test_a_name_like_none_gets_the_list(name: str) -> None:
    """Names are looked up in the list; a path is not followed."""
    with pytest.raises(RequestError, match="no bundled workload is named"):
        read_workload(name)


def test_the_readme_lists_every_workload() -> None:
    """The list for people is complete."""
    text = README.read_text(encoding="utf-8")

    assert all(f"{name}.yaml" in text for name in workload_names())
