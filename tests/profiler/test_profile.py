"""Specification of the stage's parts that fail; test_main.py has whole runs."""

import os
from pathlib import Path
from typing import Any, Literal

import pytest
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_profiler.__main__ import main
from neuroshard_profiler.backends import select
from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.profile import (
    checked_backend,
    compute_command,
    measure_compute,
    num_measured_at_once,
    num_processes_of,
)
from neuroshard_profiler.settings import MeasuringProcess, ProfileSettings
from rich.progress import Progress
from support.builders import table, table_set
from support.profiler.profiler_builders import MadeUpBackend, SeenGpus


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("cuda", {}, 8),
        ("cuda", {"devices_per_node": 4}, 4),
        ("cuda", {"num_processes": 2, "devices_per_node": 8}, 2),
        ("cpu", {}, 2),
        ("cpu", {"devices_per_node": 4}, 4),
        ("simulated", {"devices_per_node": 8}, 8),
        ("simulated", {}, 1),
    ],
)
def test_all_gpus_of_the_node_measure_unless_fewer_are_asked_for(
    kind: Literal["cpu", "cuda", "simulated"], fields: dict[str, Any], expected: int
) -> None:
    """A node whose GPUs are all loaded clocks as it does in training."""
    assert num_processes_of(ProfileSettings(out=Path(), **fields), kind, SeenGpus(("H100",) * 8)) == expected


def test_more_processes_than_gpus_are_refused() -> None:
    """Two ranks of NCCL cannot share a GPU."""
    with pytest.raises(SettingsError, match=r"8 processes are to measure with one GPU each, but torch can use 4 here"):
        num_processes_of(ProfileSettings(out=Path(), devices_per_node=8), "cuda", SeenGpus(("H100",) * 4))


def test_each_gpu_gets_a_command_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command parses, asks for its GPU, and never falls back to the CPU of a machine without one."""
    settings = ProfileSettings(
        out=tmp_path, num_nodes=2, devices_per_node=8, num_processes=8, optimizer=Optimizer.SGD, max_records=80
    )
    command = compute_command(settings, "torch_native", MeasuringProcess(index=3, count=8), tmp_path, 60.0, kind="cuda")

    assert command[command.index("--part") + 1] == "3/8"
    assert command[command.index("--job-devices") + 1] == "16"
    assert command[command.index("--out") + 1] == str(tmp_path / "compute-3-of-8.jsonl")
    assert main(command[3:]) == ExitCode.INVALID_INPUT
    assert "there is no GPU that torch can use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "num_processes", "num_cores", "expected"),
    [("cuda", 8, 2, 8), ("cpu", 2, 4, 2), ("cpu", 4, 2, 2), ("simulated", 8, 2, 1)],
    ids=["a process per GPU", "a core per rank", "more ranks than cores", "nothing to load"],
)
def test_as_many_devices_measure_at_once_as_train_at_once(
    kind: Literal["cpu", "cuda", "simulated"],
    num_processes: int,
    num_cores: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cores that work side by side share caches and memory bandwidth, as the ranks of a training do."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))

    assert num_measured_at_once(kind, num_processes) == expected


def test_a_set_of_the_jobs_tables_is_limited_by_memory_alone(tmp_path: Path) -> None:
    """Cut tables would miss caches and page tables less often than those that are trained."""
    tables = tmp_path / "tables.json"
    tables.write_text(table_set(table("large", num_embeddings=2_000_000, embedding_dim=64)).to_json(), encoding="utf-8")
    sizes = {}
    for memory_bytes in (2**34, 2**30):
        backend = MadeUpBackend()
        backend.total_memory_bytes = memory_bytes
        settings = ProfileSettings(out=tmp_path, tables_file=tables, batch_size_per_device=256, max_records=20)
        measure_compute(settings, backend, tmp_path / f"{memory_bytes}.jsonl", 60.0, Progress(disable=True))
        whole = [each for sample in backend.measured for each in sample.tables if each.name == "large"]
        sizes[memory_bytes] = max(each.num_embeddings * each.embedding_dim * 4 for each in whole)

    assert sizes[2**34] == 2_000_000 * 64 * 4
    assert 2**27 < sizes[2**30] <= 2**28


def test_a_job_whose_tables_no_kernel_trains_is_refused_before_measuring(tmp_path: Path) -> None:
    """Adam's kernel refuses FP16 on GPUs; the job's table is named."""
    file = tmp_path / "tables.json"
    file.write_text(table_set(table("item", data_type=DataType.FP16)).to_json())
    settings = ProfileSettings(
        out=Path(), backend="simulated", device_type="h100-80gb", tables_file=file, optimizer=Optimizer.ADAM
    )

    with pytest.raises(SettingsError, match=r"table 'item': .* with adam refuses weights of type FP16 .* use FP32"):
        checked_backend(settings)


def test_an_optimizer_without_a_kernel_is_refused_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that there are."""
    settings = ProfileSettings(
        out=Path(), backend="torch_native", device_kind="cpu", optimizer=Optimizer.ROWWISE_ADAGRAD
    )

    with pytest.raises(SettingsError, match=r"rowwise_adagrad has no kernel .* choose one of sgd, adagrad, adam"):
        checked_backend(settings)
    monkeypatch.setattr(select, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="backend torch_native: needs the package torch"):
        checked_backend(settings)
