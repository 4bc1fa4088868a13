"""Which collectives of weights and gradients a profile measures, and their times over gloo."""

import json
from pathlib import Path

import pytest
from neuroshard_api.documents.topology import Link
from neuroshard_costs.fitting.records import read_records
from neuroshard_costs.fitting.reductions import fitted_reductions
from neuroshard_profiler.benches.reduction import SIZES, reduction_samples
from support.trainer.rank_server import RankServer

WORKER = Path(__file__).with_name("reduction_worker.py")
LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)
KINDS = ("all_gather", "reduce_scatter", "all_reduce")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("num_nodes", "per_node", "shapes"),
    [
        (1, 4, [(1, 4)]),
        (2, 1, [(2, 1)]),
        (2, 4, [(2, 4), (1, 4), (2, 1)]),
        (1, 1, []),
    ],
)
def test_each_level_is_measured_alone(num_nodes: int, per_node: int, shapes: list[tuple[int, int]]) -> None:
    """All devices, those of a node, and those of one place in the nodes; the least bytes first."""
    samples = list(reduction_samples(num_nodes, per_node, (LINK, LINK), max_bytes=SIZES[1]))

    assert [(each.kind, each.num_nodes, each.devices_per_node) for each in samples] == [
        (kind, *shape) for _ in range(2) for shape in shapes for kind in KINDS
    ]
    assert [each.num_bytes for each in samples] == sorted(each.num_bytes for each in samples)


def test_every_device_has_an_equal_part() -> None:
    """Of whole values, whatever the number of devices."""
    samples = list(reduction_samples(1, 3, (LINK, None), max_bytes=2**20))

    assert {each.num_bytes % (4 * 3) for each in samples} == {0}
    assert samples[0].num_bytes == pytest.approx(SIZES[0], rel=0.01)


@pytest.mark.processes
def test_ranks_measure_the_collectives_of_two_nodes(tmp_path: Path, ranks: RankServer) -> None:
    """A stopped profile resumes, nothing is measured twice, and what was measured has times for the price."""
    ranks.succeed(f"{WORKER}:main", tmp_path, folder=tmp_path, count=4, per_node=2)

    records = read_records(tmp_path / "reductions.jsonl")
    samples = list(reduction_samples(2, 2, (LINK, LINK), max_bytes=SIZES[3]))
    assert [record.reduction for record in records] == samples
    assert [len(record.device_ms) for record in records[:9]] == [4] * 3 + [2] * 6
    assert all(min(record.device_ms) > 0 for record in records)
    found = fitted_reductions(records)
    assert {(each.kind, each.num_nodes, each.devices_per_node) for each in found} == {
        (kind, *shape) for kind in KINDS for shape in ((2, 2), (1, 2), (2, 1))
    }
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "all_gather": [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0],
        "reduce_scatter": [4.0, 4.0],
        "all_reduce": [1.0] * 8,
    }
