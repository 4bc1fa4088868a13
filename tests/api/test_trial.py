"""When a plan is tried before the training, and for how long."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.job_file import read_job_file
from neuroshard_api.job.trial import trial_steps, wants_trial
from support import builders

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = {"data": {"format": "Synthetic", "numSamples": 400_000_000}}


@pytest.mark.parametrize("example", ["01-smallest", "02-movielens", "09-sessions"])
def test_plans_of_the_examples_are_tried(example: str) -> None:
    """Their trainings are of a hundred steps and more."""
    assert wants_trial(read_job_file(EXAMPLES / f"{example}.yaml").job.spec)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"training": {"maxSteps": 79}}, False),
        ({"trainer": {"command": ["train"]}}, False),
        ({"launchPolicy": "PlanOnly"}, False),
        ({"profiler": {"backend": "Simulated", "deviceType": "h100-80gb"}}, False),
    ],
    ids=["long", "few steps", "own trainer", "plan alone", "simulated"],
)
def test_what_a_trial_says_nothing_of_is_not_tried(spec: dict[str, Any], *, expected: bool) -> None:
    """Short trainings, other trainers, and devices that are not there."""
    assert wants_trial(builders.job(**(LONG | spec)).spec) is expected


@pytest.mark.parametrize(("step_ms", "steps"), [(None, 40), (1.0, 110), (125.0, 80), (5000.0, 40)])
def test_a_trial_takes_some_seconds_of_steps(step_ms: float | None, steps: int) -> None:
    """No more than a step report has, and no fewer than a median needs."""
    assert trial_steps(builders.job(data=LONG["data"]).spec, step_ms) == steps


@pytest.mark.parametrize(("most", "steps"), [(80, 40), (93, 46), (400, 110)])
def test_a_trial_takes_at_most_half_of_the_training(most: int, steps: int) -> None:
    """A training whose steps are fast is not taken twice."""
    spec = builders.job(data=LONG["data"], training={"maxSteps": most}).spec

    assert wants_trial(spec)
    assert trial_steps(spec, 1.0) == steps
