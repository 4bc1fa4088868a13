"""JobSet's controller on a cluster in memory: of its release 0.10 what this project uses."""

from collections.abc import Callable
from typing import Any, Protocol

from neuroshard_decisions import names

Json = dict[str, Any]
PART = "jobset.sigs.k8s.io/replicatedjob-name"


class Objects(Protocol):
    """What the controller asks of a cluster."""

    def of_kind(self, kind: str) -> list[Json]:
        """Return the objects of a kind."""

    def put(self, manifest: Json) -> Json:
        """Store a new object."""

    def remove(self, kind: str, name: str, *, foreground: bool = False) -> None:
        """Delete an object."""

    def touch(self, body: Json) -> None:
        """Give an object a new version."""


class JobSetController:
    """Makes the Jobs of a JobSet, holds them as it is held, and ends them with it."""

    def __init__(self, objects: Objects, *, end: Callable[[Json, str, str], None]) -> None:
        """Work on a cluster; `end` gives an object a condition and a reason."""
        self._objects = objects
        self._end = end

    def run(self, job_set: Json) -> None:
        """Bring a JobSet and its Jobs on by one step."""
        if "deletionTimestamp" in job_set["metadata"]:
            return
        uid = job_set["metadata"]["uid"]
        jobs = [job for job in self._objects.of_kind("Job") if uid in _owners(job)]
        active = [job for job in jobs if not _is(job, "Failed") and not _is(job, "Complete")]
        succeeded = {job["metadata"]["labels"].get(PART) for job in jobs if _is(job, "Complete")}
        job_set.setdefault("status", {})
        if _is(job_set, "Failed") or _is(job_set, "Completed"):
            self._stop(active)
        elif any(_is(job, "Failed") for job in jobs):
            self._end(job_set, "Failed", "FailedJobs")
        elif succeeded.issuperset(job_set["spec"]["successPolicy"]["targetReplicatedJobs"]):
            self._end(job_set, "Completed", "AllJobsCompleted")
        else:
            self._make(job_set, {job["metadata"]["name"] for job in self._objects.of_kind("Job")})
            self._hold(active, is_held=bool(job_set["spec"].get("suspend")))

    def _stop(self, jobs: list[Json]) -> None:
        for job in jobs:
            if "deletionTimestamp" not in job["metadata"]:
                self._objects.remove("Job", job["metadata"]["name"], foreground=True)

    def _make(self, job_set: Json, taken: set[str]) -> None:
        """Make the Jobs that are missing, also one that somebody deleted."""
        name, uid = job_set["metadata"]["name"], job_set["metadata"]["uid"]
        for part in job_set["spec"]["replicatedJobs"]:
            metadata = {
                "name": f"{name}-{part['name']}-0",
                "labels": {**part["template"]["metadata"]["labels"], PART: part["name"]},
                "ownerReferences": [{"kind": names.JOB_SET, "name": name, "uid": uid, "controller": True}],
            }
            spec = {**part["template"]["spec"], "suspend": job_set["spec"].get("suspend")}
            if metadata["name"] not in taken:
                self._objects.put({"kind": "Job", "metadata": metadata, "spec": spec})

    def _hold(self, jobs: list[Json], *, is_held: bool) -> None:
        for job in jobs:
            if bool(job["spec"].get("suspend")) != is_held:
                job["spec"]["suspend"] = is_held
                self._objects.touch(job)


def _owners(job: Json) -> list[str]:
    return [owner["uid"] for owner in job["metadata"].get("ownerReferences") or ()]


def _is(body: Json, kind: str) -> bool:
    return any(each["type"] == kind for each in body.get("status", {}).get("conditions", []))
