"""How long a job's device is measured."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.job_file import read_job_file
from neuroshard_api.job.profile_time import profile_seconds
from support import builders

EXAMPLES = Path(__file__).parents[2] / "examples"
SYNTHETIC = {"format": "Synthetic", "numSamples": 400_000_000}
FILES = {"format": "CSV", "path": "clicks.csv"}


@pytest.mark.parametrize("example", ["01-smallest", "02-movielens", "09-sessions"])
def test_trainings_of_seconds_are_measured_for_a_minute(example: str) -> None:
    """The examples for one machine train for 5 to 15 seconds."""
    assert profile_seconds(read_job_file(EXAMPLES / f"{example}.yaml").job.spec) == 60


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"data": SYNTHETIC}, 300),
        ({"data": SYNTHETIC, "training": {"maxSteps": 100}}, 60),
        ({"data": FILES}, 300),
        ({"data": FILES, "training": {"maxSteps": 100}}, 60),
        ({"data": FILES, "training": {"maxSteps": 3_000}}, 120),
        ({"data": SYNTHETIC, "training": {"maxSteps": 100}, "profiler": {"budgetSeconds": 400}}, 400),
        ({"data": SYNTHETIC, "profiler": {"budgetSeconds": 5}}, 5),
        ({"data": SYNTHETIC, "experimental": {"profiler": {"timeoutSeconds": 100}}}, 50),
    ],
    ids=["long", "few steps", "unknown", "few steps of files", "minutes", "asked for more", "for less", "timeout"],
)
def test_the_measurements_take_no_longer_than_the_training(spec: dict[str, Any], expected: int) -> None:
    """From 1 to 5 minutes; a job that names seconds has these."""
    assert profile_seconds(builders.job(**spec).spec) == expected
