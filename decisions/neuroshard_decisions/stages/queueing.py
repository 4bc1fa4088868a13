"""Jobs that Kueue holds back: what people see of them, and how one gets into the queue that its owner asks for."""

from dataclasses import replace
from datetime import timedelta

from neuroshard_api.job.spec import LaunchPolicy
from neuroshard_api.job.status import Stage

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Change
from neuroshard_decisions.conditions import ConditionType, Reason, holds
from neuroshard_decisions.context import SLOW_START_S, Context, seconds_until
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.stages.result import StageResult, condition

MOST_NAME_CHARACTERS = 38
"""Of a job whose pods a JobSet names: the names of pods have at most 63, five of which are random."""
_TWO_JOBS = "a job with embedding servers is two Kubernetes Jobs, and Kueue may admit one of them alone"


def servers_not_queued(context: Context) -> str | None:
    """Return the reason that embedding servers cannot wait in the job's queue. None: they can, or there is none."""
    if not context.is_queued:
        return None
    if not context.rules.joins_servers:
        hint = (
            "hint: install JobSet and set jobSets of the operator's chart, which joins them; remove the label "
            f"{names.QUEUE_LABEL}; or leave embeddingServers out"
        )
        return f"experimental.embeddingServers: {_TWO_JOBS}; {hint}"
    if len(context.name) > MOST_NAME_CHARACTERS:
        return (
            f"metadata.name: has more than {MOST_NAME_CHARACTERS} characters (found {len(context.name)}), and the pods "
            "of a job with embedding servers in a queue have longer names than others; hint: shorten it"
        )
    return None


def queued(step: StageResult, message: str) -> StageResult:
    """Return the step of a stage whose Job Kueue holds back."""
    held = condition(ConditionType.SUSPENDED, Reason.QUEUED, message, holds=True)
    return replace(
        step, display_stage=Stage.SUSPENDED, reason=Reason.QUEUED, message=message, conditions=(*step.conditions, held)
    )


def held_message(context: Context, job: ChildJob) -> str:
    """Return the reason, for people, that a suspended Job waits."""
    name = job.meta.name
    queue = job.meta.labels.get(names.QUEUE_LABEL)
    what = f"Job {name}" if job.job_set is None else f"JobSet {job.job_set.name}"
    if queue is not None and context.num_servers and job.job_set is None:  # the default queue of its namespace
        hint = (
            f"hint: name a queue in the label {names.QUEUE_LABEL} of the DLRMTrainingJob, or leave embeddingServers out"
        )
        return f"{what} waits for Kueue to admit it in queue {queue}; {_TWO_JOBS}; {hint}"
    if queue is not None:
        return f"{what} waits for Kueue to admit it in queue {queue}"
    if context.is_queued:
        return f"{what} waits for Kueue to admit it"
    return (
        f"Job {name} is suspended by something other than this operator, such as Kueue with "
        f"manageJobsWithoutQueueName; hint: set the label {names.QUEUE_LABEL} on the DLRMTrainingJob"
    )


def is_in_queue(job: ChildJob) -> bool:
    """Return whether Kueue decides when a Job runs: it names a queue, or its namespace has a default one."""
    return names.QUEUE_LABEL in job.meta.labels


def put_into_queue(context: Context, job: ChildJob) -> tuple[Action, ...]:
    """Return the action that gives a suspended Job without a queue that of the DLRMTrainingJob.

    With manageJobsWithoutQueueName Kueue suspends the planner's Job too, and Jobs that are older than the label.
    """
    if not job.suspended or not context.is_queued or is_in_queue(job):
        return ()
    return (Change(kind="Job", name=job.meta.name, uid=job.meta.uid, labels=context.queue_labels),)


def accept_fewer(context: Context, workers: ChildJob) -> tuple[tuple[Action, ...], float | None]:
    """Return the action that lets Kueue admit fewer workers of an elastic job, and the seconds until it is due.

    For the first half minute all are asked for: the quota of an earlier start may be on its way back to the queue, and
    Kueue would admit what is free before it. The Workload keeps its place in the queue. Workers whose plans a person
    approves wait for all: those of fewer would hold devices until then.
    """
    least, approves = context.sizes[0], context.spec.launch_policy is LaunchPolicy.MANUAL
    if approves or workers.least_pods is not None or least >= workers.parallelism or not is_in_queue(workers):
        return (), None
    held = holds(context.status.conditions, ConditionType.SUSPENDED)
    moments = [
        workers.meta.created,
        held.last_transition_time if held and held.reason == Reason.QUEUED else context.now,
    ]
    due = max(each for each in moments if each is not None) + timedelta(seconds=SLOW_START_S)
    if context.now < due:
        return (), seconds_until(due, context.now)
    fewer = names.admitted_from(least)
    return (Change(kind="Job", name=workers.meta.name, uid=workers.meta.uid, annotations=fewer),), None
