"""The table of earlier fields: each is refused with its present place, in files and in stored jobs."""

from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.crd import fields_below, job_schema
from neuroshard_api.job.earlier_fields import EARLIER_FIELDS
from neuroshard_api.job.training_job import DLRMTrainingJob
from support import builders

PATHS = {path for path, _, _ in fields_below(job_schema()["properties"]["spec"], "spec")}
"""Of every field of a job."""


def job_with(path: str, value: object) -> dict[str, Any]:
    """Return a job with a value at a path."""
    data = builders.job_data()
    place = data
    *parts, last = path.split(".")
    for part in parts:
        place = place.setdefault(part, {"claimName": "shop"} if part == "persistentVolumeClaim" else {})
    place[last] = value
    return data


@pytest.mark.parametrize("path", EARLIER_FIELDS)
def test_an_earlier_field_is_refused_with_its_present_place(path: str) -> None:
    """The sentence names a field that exists, or the reason why there is none; other faults are named with it."""
    now = EARLIER_FIELDS[path]
    with pytest.raises(DocumentError) as caught:
        DLRMTrainingJob.from_data(job_with(path, 1) | {"unknown": 1}, where="job.yaml")
    [first, *others] = caught.value.problems

    assert path not in PATHS
    assert now.startswith(("gone: ", "spec.podTemplate.spec.")) or now in PATHS  # a pod's own fields are Kubernetes'
    assert first.startswith(f"{path}: ")
    assert now.removeprefix("gone: ") in first
    assert others == ["unknown: is not a known key; hint: check its spelling or remove it"]


def test_a_stored_job_with_an_earlier_field_is_refused_and_one_with_a_newer_field_is_not() -> None:
    """The operator serves what was started, and begins nothing that a user asked for in other words."""
    data = job_with("spec.planner.minShardWidth", 8)
    data["spec"]["planner"]["newer"] = 1

    stored = DLRMTrainingJob.from_stored_data(data)

    assert stored.unknown == ("spec.planner.newer",)
    [sentence] = stored.broken_rules
    assert sentence.startswith("spec.planner.minShardWidth: is gone")
