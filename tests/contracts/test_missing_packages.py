"""Commands of pods in an environment that lacks a package: one sentence with what to install, and its exit code."""

import subprocess
import sys

import pytest
from neuroshard_api.process.exit_codes import ExitCode

WITHOUT = """
import runpy, sys
from importlib.machinery import PathFinder

_, missing, module, *arguments = sys.argv

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == missing else super().find_spec(name, path, target)

sys.meta_path = [Finder if each is PathFinder else each for each in sys.meta_path]
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module as ``python -m`` does, where one package is not installed."""
PLAN = ("neuroshard_planner", "--request", "r.json", "--bundle", "h100-80gb", "--out", "p.json")
PROFILE = ("neuroshard_profiler", "profile", "--out", "x", "--backend", "simulated", "--device-type", "h100-80gb")
TRAIN = ("neuroshard_trainer", "job.yaml", "--plan", "p.json", "--run-dir", "x")
LAUNCH = ("neuroshard_trainer.launch", "--standalone", "-m", *TRAIN)


def test_a_profile_needs_no_torchrec() -> None:
    """Without it codecs are not measured, and everything else is."""
    code = "from neuroshard_profiler.backends import fbgemm; import sys; assert 'torchrec' not in sys.modules"

    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("numpy", PLAN, "planner"),
        ("pydantic", PLAN, "planner"),
        ("numpy", PROFILE, "profiler"),
        ("rich", PROFILE, "profiler"),
        ("typer", PROFILE, "profiler"),
        ("torch", (*PROFILE[:4], "--backend", "torch_native"), "torch"),
        ("fbgemm_gpu", (*PROFILE[:4], "--backend", "fbgemm"), "fbgemm-gpu"),
        ("torch", TRAIN, "trainer"),
        ("torch", LAUNCH, "trainer"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_package_is_named_with_what_installs_it(missing: str, command: tuple[str, ...], extra: str) -> None:
    """An image that lacks it ends with 5, which no retry would change."""
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, *command], check=False, capture_output=True, text=True
    )

    assert result.returncode == ExitCode.MISSING_PACKAGE, result.stderr
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("error: ")
    assert missing in sentence
    assert extra in sentence
