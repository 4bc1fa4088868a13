"""How copies to repeated lists are measured, on a real core."""

from pathlib import Path

import pytest
from neuroshard_api.documents.records import ExpansionSample
from neuroshard_costs.fitting.expansions import fitted_expansion
from neuroshard_profiler.backends.torch_native import TorchNativeBackend
from neuroshard_profiler.benches.expansion import collect_expansions, expansion_samples, has_repeats
from neuroshard_profiler.devices.cpu import CpuDevice
from neuroshard_profiler.errors import KernelError
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times
from support import builders
from support.profiler.profiler_builders import QUICK

pytestmark = pytest.mark.torch


class OneCore(TorchNativeBackend):
    """A core that refuses samples with that many columns."""

    def __init__(self, *, refused: int = 0) -> None:
        super().__init__(CpuDevice(core=0, repeats=QUICK))
        self._refused = refused

    def measure_expansion(self, sample: ExpansionSample, *, repeats: Repeats) -> Times:
        """Time the sample's copies."""
        if sample.embedding_dim == self._refused:
            raise KernelError("too wide")
        return super().measure_expansion(sample, repeats=repeats)


def test_a_stopped_collection_resumes_and_its_records_give_a_price(tmp_path: Path) -> None:
    """Nothing is measured twice; what a device refused keeps its reason, and larger copies have longer times."""
    samples = list(expansion_samples())
    path = tmp_path / "expansion.jsonl"
    with RecordsFile(path, source=OneCore().source) as file:
        collect_expansions(OneCore(refused=samples[0].embedding_dim), file)
    *lines, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    with RecordsFile(path, source=OneCore().source) as file:
        collect_expansions(OneCore(), file)

    records = file.records
    assert [record.expansion for record in records] == samples
    refused = [record for record in records if record.failure == "too wide"]
    assert {record.expansion.embedding_dim for record in refused if record.expansion} == {samples[0].embedding_dim}
    smallest, largest = [record for record in records if record.is_usable][:: len(records) - len(refused) - 1]
    assert (smallest.forward_ms or 0) + (smallest.backward_ms or 0) < (largest.forward_ms or 0)
    found = fitted_expansion(records)
    assert found is not None
    assert sum(found.feature_ms) + sum(found.group_row_ms) + sum(found.byte_ms) > 0


def test_jobs_without_repeats_measure_no_copies() -> None:
    """Their profiles are as they were."""
    assert not has_repeats(None)
    assert not has_repeats(builders.table_set(builders.table("item")))
    repeating = builders.table("user", duplication_group="user", duplication_factor=4.0)
    assert has_repeats(builders.table_set(repeating, session_run=8))
