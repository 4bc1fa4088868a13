"""Which jobs get candidate plans for changed inputs."""

from neuroshard_api.training_job import Spec


def unsupported(spec: Spec) -> str | None:
    """Return the reason that no candidate is made for a job, with the remedy. None: candidates are made."""
    if spec.plan_ref is not None:
        return (
            "spec.planRef gives the plan; hint: make another one with `neuroshard plan --statistics`, or unset planRef"
        )
    if spec.planner.sharding_groups is not None:
        return (
            "spec.planner.shardingGroups permits groups of devices, and no plan is made near one with groups; "
            "hint: unset shardingGroups"
        )
    return None
