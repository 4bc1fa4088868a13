"""JobSets as the watch brings them, and the Jobs of an attempt that one joins. Pure functions; calls no API.

For decisions an attempt is its Jobs, whether a JobSet joins them or not. So each Job is shown once its JobSet is
there, as that describes it, and later with what its own object says. It fails with its partner, and is deleted with its
JobSet alone: where JobSet's controller deletes one since the other has failed, nobody has meddled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuroshard_decisions import names
from neuroshard_decisions.observed.objects import ChildJob, JobEnd, JobSetName, Meta

from neuroshard_operator.observed import parsing

COMPLETED = "Completed"
"""Condition of a JobSet whose success policy is met; that of a Job is named Complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildJobSet:
    """A JobSet, and the Jobs that its controller makes."""

    whole: ChildJob
    """The JobSet itself, read as a Job."""
    parts: tuple[ChildJob, ...]
    """As the JobSet describes them."""

    @property
    def meta(self) -> Meta:
        """Its metadata."""
        return self.whole.meta


def job_set(body: Mapping[str, Any]) -> ChildJobSet:
    """Return a JobSet, with the labels that it was made with: those of its pods."""
    spec, metadata = body["spec"], body["metadata"]
    described = spec["replicatedJobs"]
    status = {"conditions": [_as_of_job(each) for each in body.get("status", {}).get("conditions") or ()]}
    suspension = {"suspend": spec.get("suspend")}
    first = described[0]["template"]["spec"]
    found = ChildJobSet(
        whole=parsing.job({"metadata": metadata, "spec": {**first, **suspension}, "status": status}),
        parts=tuple(
            parsing.job(
                {
                    "metadata": {
                        **metadata,
                        "name": names.job_of_set(each["name"], metadata["name"]),
                        "uid": f"{metadata['uid']}/{each['name']}",
                        "labels": each["template"].get("metadata", {}).get("labels"),
                    },
                    "spec": {**each["template"]["spec"], **suspension},
                }
            )
            for each in described
        ),
    )
    name = JobSetName(name=found.meta.name, uid=found.meta.uid)
    return replace(found, parts=tuple(replace(part, job_set=name, is_made=False) for part in found.parts))


def joined(jobs: Sequence[ChildJob], job_sets: Sequence[ChildJobSet]) -> list[ChildJob]:
    """Return a training job's Jobs, those of its JobSets as they are shown to decisions."""
    of_sets = {each.meta.uid for each in job_sets}
    made = {(job.meta.owner_uid, job.role): job for job in jobs if job.meta.owner_uid in of_sets}
    alone = [job for job in jobs if job.meta.owner_uid not in of_sets]
    return alone + [part for each in job_sets for part in _parts(each, made)]


def _parts(job_set: ChildJobSet, made: Mapping[tuple[str, str], ChildJob]) -> list[ChildJob]:
    found = [(part, made.get((job_set.meta.uid, part.role))) for part in job_set.parts]
    outcomes = [job.outcome for _, job in found if job is not None and job.outcome is not None]
    failed = next((each for each in outcomes if not each.succeeded), None)
    shared = None if failed is None else JobEnd(succeeded=False, reason="", message="", time=failed.time)
    return [_shown(job_set, part, job, shared or job_set.whole.outcome) for part, job in found]


def _shown(job_set: ChildJobSet, part: ChildJob, job: ChildJob | None, outcome: JobEnd | None) -> ChildJob:
    """Return a Job of a JobSet as decisions see it.

    Args:
        job_set: that it belongs to.
        part: as the JobSet describes it.
        job: as it is. None: it is not there.
        outcome: of the JobSet, which its Jobs share.
    """
    found, whole = job or part, job_set.whole
    kueue = {key: value for key, value in whole.meta.labels.items() if key.startswith(names.KUEUE_LABEL_PREFIX)}
    return replace(
        found,
        meta=replace(
            found.meta,
            owner_uid=whole.meta.owner_uid,
            deleted=whole.meta.deleted,
            labels={**found.meta.labels, **kueue},
        ),
        suspended=found.suspended or whole.suspended,
        outcome=found.outcome or outcome,
        job_set=part.job_set,
        is_made=job is not None,
    )


def _as_of_job(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**condition, "type": "Complete"} if condition["type"] == COMPLETED else condition
