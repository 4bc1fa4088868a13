"""Which jobs and which changes of inputs get candidate plans, and which candidates are taken without approval."""

from neuroshard_api.documents.drift_report import named
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.job.replanning import Replanning, ReplanningMode
from neuroshard_api.job.spec import LaunchPolicy, Spec

CANDIDATE_UNSUPPORTED = "CandidateUnsupported"
"""Reason of a change that no candidate is made for."""


def replanning_policy(spec: Spec) -> Replanning:
    """Return the policy of a job. With launchPolicy Manual the user approves each plan, so mode Auto is Suggest."""
    policy = spec.replanning
    if spec.launch_policy is LaunchPolicy.MANUAL and policy.mode is ReplanningMode.AUTO:
        return policy.model_copy(update={"mode": ReplanningMode.SUGGEST})
    return policy


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


def unsupported_inputs(statistics: InputStatistics) -> str | None:
    """Return the reason that no candidate is made for changed inputs. None: at least one change can be planned for.

    Lookups and reuse of deduplicated features are counted on distinct lists. These counts do not separate another
    duplication factor from other lists, so a planner keeps the tables of these features as the request has them.
    """
    changed, left_out = statistics.changed_features, set(statistics.without_repeats or ())
    if not changed or not left_out.issuperset(changed):
        return None
    features = named([repr(name) for name in changed])
    return (
        f"only deduplicated features changed ({features}), and their batches show distinct lists alone; "
        "hint: measure the duplication factors of new samples with `neuroshard stats`, and plan again"
    )
