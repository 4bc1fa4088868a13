"""The device type of a job that names none: that of the nodes to which its pods go."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.devices import find_preset
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import request_of
from support.builders import job_data

LABEL, H100 = "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"


def with_terms(*terms: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    """Return a pod's spec that requires one of these terms of expressions."""
    expressions = [
        {"matchExpressions": [{"key": key, "operator": operator, "values": values} for key, operator, values in term]}
        for term in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": expressions}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("pod_spec", "found"),
    [
        ({"nodeSelector": {LABEL: H100}}, "h100-80gb"),
        (with_terms([(LABEL, "In", [H100])]), "h100-80gb"),
        (with_terms([("zone", "In", ["a"]), (LABEL, "In", [H100])], [(LABEL, "In", [H100])]), "h100-80gb"),
        (with_terms([(LABEL, "In", [H100, "NVIDIA-H200"])]), None),
        (with_terms([(LABEL, "In", [H100])], [("zone", "In", ["a"])]), None),
        (with_terms([(LABEL, "NotIn", [H100])]), None),
        ({"nodeSelector": {LABEL: "unheard-of"}}, None),
        ({"affinity": {"nodeAffinity": None}}, None),
        ({}, None),
    ],
)
def test_a_job_is_planned_for_the_device_that_its_pods_require(pod_spec: dict[str, Any], found: str | None) -> None:
    """By their node selector or their affinity, if that leaves one product."""
    document = job_data(podTemplate={"spec": pod_spec})
    file = JobFile(path=Path("job.yaml"), job=DLRMTrainingJob.from_data(document), document=document)
    options = RequestOptions(tables="job.yaml")

    if found is None:
        with pytest.raises(CommandError, match="--device-type: is missing"):
            request_of(file, options, algorithm=None)
        return
    assert request_of(file, options, algorithm=None).topology.device == find_preset(found).device
