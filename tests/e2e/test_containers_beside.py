"""Containers next to the trainer's that run on, in a namespace whose quota asks every container for limits."""

import pytest
from e2e import jobs
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]

LIMITS = {"cpu": "500m", "memory": "256Mi", "nvidia.com/gpu": 1}
FAILS_ONCE = 'case "$PET_RDZV_ID" in *-0) echo no luck >&2; exit 1 ;; esac'


def test_the_trainer_decides_and_every_container_has_limits(namespace: Namespace) -> None:
    """A failure next to a log shipper restarts; success ends the job and frees the devices; a quota refuses no pod."""
    kubectl = namespace.kubectl
    kubectl.apply(jobs.QUOTA)
    # The shipper is the first process of its container, and hears no SIGTERM.
    template = {"spec": {"terminationGracePeriodSeconds": 2, "containers": [jobs.LOG_SHIPPER]}}
    job = jobs.script_job("shop", FAILS_ONCE, nodes=2, profiler=jobs.SIMULATED, podTemplate=template)
    job["spec"]["trainer"]["resourcesPerNode"] = {"limits": LIMITS}
    kubectl.apply(job)
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded")
    eventually("the pods of the workers are gone", lambda: not jobs.children(kubectl, "shop", "pods", "worker"))

    assert (seen["restarts"], seen["restartsCountTowardsMax"]) == (1, 1)
    assert (seen["lastFailure"]["containerName"], seen["lastFailure"]["exitCode"]) == ("trainer", 1)
    assert "no luck" in seen["lastFailure"]["message"]
    assert "log-shipper" in seen["message"]
    assert "hint: make it an initContainer with restartPolicy Always" in seen["message"]
