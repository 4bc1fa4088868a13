"""Values that the shell completes, asked for as a shell asks."""

import os
import subprocess
import sys

import pytest


def completed(words: str) -> list[str]:
    """Return the words that bash is offered after these."""
    asks = {"_NEUROSHARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    program = "import sys; sys.argv[0] = 'neuroshard'; from neuroshard_cli.main import app; app(prog_name='neuroshard')"
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asks}, capture_output=True, text=True, check=True
    )
    return found.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("neuroshard plan --device-type h1", {"h100-80gb"}),
        ("neuroshard plan criteo-k", {"criteo-kaggle"}),
        ("neuroshard score plan.json mlperf", {"mlperf-dlrm-dcnv2", "mlperf-dlrm-v1"}),
        ("neuroshard estimate t.csv --device-type h100-80gb,h2", {"h100-80gb,h200-141gb"}),
        ("neuroshard profile --set spec.profiler.d", {"spec.profiler.deviceType="}),
        ("neuroshard plan t.csv --bundle h2", {"h200-141gb"}),
        ("neuroshard plan --set spec.planner.max", {"spec.planner.maxMemoryPerDevice="}),
        ("neuroshard doctor pret", {"pretrain"}),
    ],
    ids=["device", "workload", "second argument", "list", "profile", "cost models", "field", "command"],
)
def test_names_are_completed(words: str, offered: set[str]) -> None:
    """Devices, workloads, and cost models with built-in data, fields of a job, and commands."""
    assert set(completed(words)) == offered
