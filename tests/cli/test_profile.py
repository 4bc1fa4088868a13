"""Specification of ``neuroshard profile``; tests/profiler has that of what it does."""

from pathlib import Path
from typing import Any

from neuroshard_costs.bundle import load_bundle

SIMULATED = (
    *("--set", "spec.profiler.backend=Simulated", "--set", "spec.profiler.deviceType=a100-80gb"),
    *("--max-records", 20),
)


def test_a_profile_is_told_on_the_screen(neuroshard: Any, tmp_path: Path) -> None:
    """Where the numbers come from, how they were fitted, and with which error."""
    out = tmp_path / "profile"
    result = neuroshard("profile", *SIMULATED, "--out", out)

    assert result.code == 0
    assert "simulated:NVIDIA-A100-SXM4-80GB" in result.out
    assert "cost models by calibration" in result.err
    assert result.err.endswith(f"bundle written to {out / 'bundle'}\n")
    assert load_bundle(out / "bundle").manifest.calibration is not None


def test_a_mistake_is_a_sentence_with_a_code(neuroshard: Any, tmp_path: Path) -> None:
    """The profiler's errors end as those of every command."""
    result = neuroshard("profile", *SIMULATED[:2], "--out", tmp_path)

    assert (result.code, result.out) == (2, "")
    assert "backend Simulated needs the deviceType that it simulates" in result.err
