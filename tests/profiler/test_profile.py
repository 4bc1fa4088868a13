"""Specification of the stage's parts that fail; test_main.py has whole runs."""

from pathlib import Path
from typing import Any, Literal

import pytest
from neuroshard_api.exit_codes import ExitCode
from neuroshard_api.tables import Optimizer
from neuroshard_profiler.__main__ import main
from neuroshard_profiler.backends import select
from neuroshard_profiler.errors import MissingPackageError, SettingsError
from neuroshard_profiler.profile import checked_backend, compute_command, num_processes_of
from neuroshard_profiler.settings import Part, ProfileSettings
from profiler_builders import SeenGpus


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
    command = compute_command(settings, "torch_native", Part(index=3, count=8), tmp_path, 60.0)

    assert command[command.index("--part") + 1] == "3/8"
    assert command[command.index("--job-devices") + 1] == "16"
    assert command[command.index("--out") + 1] == str(tmp_path / "compute-3-of-8.jsonl")
    assert main(command[3:]) == ExitCode.INVALID_INPUT
    assert "there is no GPU that torch can use" in capsys.readouterr().err


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
