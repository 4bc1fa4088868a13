"""Conditions and warnings of a job's status: every reason with its meaning, and pure functions over lists of them.

Conditions are the course of a job, and the same ten for each. Warnings are what deserves attention while the job goes
on, each by its reason; one that no longer holds is gone. Calls no API.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from neuroshard_api.documents.drift_report import SlowdownCause
from neuroshard_api.job.policies import ConditionStatus
from neuroshard_api.job.status import Condition, JobWarning
from neuroshard_api.replanning import record as replanning_record
from neuroshard_api.replanning import support as replanning_support
from neuroshard_api.replanning.decision import ReplanVerdict

MESSAGE_CHARACTERS = 4096  # the API takes 32,768; people read one screen


class ConditionType(StrEnum):
    """What can hold of a job."""

    PROFILED = "Profiled"
    """Cost models of the hardware are there."""
    PLANNED = "Planned"
    """The plan is there."""
    APPROVED = "Approved"
    """The plan may be launched."""
    PODS_READY = "PodsReady"
    """All workers' pods are ready."""
    RUNNING = "Running"
    """All workers train."""
    STEADY = "Steady"
    """Steps take as long as at the start under the plan."""
    PLAN_CURRENT = "PlanCurrent"
    """No better plan is known for the present inputs."""
    SUSPENDED = "Suspended"
    """The job is suspended, by its user or by Kueue."""
    SUCCEEDED = "Succeeded"
    """The job succeeded."""
    FAILED = "Failed"
    """The job failed."""


class Reason(StrEnum):
    """Why a condition has its status, or what a warning is about, and what to do; `make tables` documents them."""

    # While it goes well
    CACHE_HIT = "CacheHit"
    """Cost models are there, from an earlier job on the same hardware."""
    MODELS_GIVEN = "CostModelsGiven"
    """Cost models are named in `spec.profiler`."""
    PROFILER_RUNNING = "ProfilerRunning"
    """The hardware has no profile in this namespace; a Kubernetes Job measures it."""
    OTHER_PROFILES = "WaitingForProfile"
    """Another job measures the same hardware; its profile will be shared."""
    PROFILE_WRITTEN = "ProfileWritten"
    """Cost models are there, from this job's profiler."""
    PLANNER_RUNNING = "PlannerRunning"
    """A Kubernetes Job searches the plan."""
    FALLBACK_RUNNING = "FallbackPlannerRunning"
    """The algorithm failed, ran out of time, or found no plan; `spec.planner.fallbackAlgorithm` plans. The message has
    the cause. Exit codes 2, 4, 5, 6, and 8 do not depend on the algorithm and end the job.
    """
    PLAN_WRITTEN = "PlanWritten"
    """The plan of the planner is in its ConfigMap."""
    PLAN_GIVEN = "PlanGiven"
    """The plan is that of `spec.planRef`."""
    APPROVED = "PlanApproved"
    """The workers may start."""
    WAITING_FOR_APPROVAL = "WaitingForApproval"
    """`spec.launchPolicy` is Manual, and the plan is not approved.

    Run the command in the message.
    """
    SIZE_DECIDED = "SizeDecided"
    """The number of nodes of an elastic job was decided; `status.elastic` has the cause."""
    WORKERS_STARTING = "WorkersStarting"
    """The workers' pods start, meet each other, and set up the model; they do not all train yet."""
    WAITING_FOR_OLD_PODS = "WaitingForOldPods"
    """Pods of an earlier start still end. They have `terminationGracePeriodSeconds` (300 by default) for a checkpoint.

    If the pods train on, the label `app.kubernetes.io/managed-by` or `training.neuroshard.dev/job-name` was removed
    from their Kubernetes Job, and the operator does not see it: `kubectl label job <job>-worker-<attempt>
    app.kubernetes.io/managed-by=dlrm-operator training.neuroshard.dev/job-name=<job>`.
    """
    RESTARTING = "Restarting"
    """The workers failed and restart; the message has the cause and the count."""
    WAITING_TO_RESTART = "WaitingToRestart"
    """The workers failed and will restart after a pause; the message has the cause and the count."""
    WORKERS_READY = "AllWorkersReady"
    """All workers train, except those that have succeeded."""
    WORKERS_LOST = "WorkersNotReady"
    """Workers that ran are not ready at present.

    Look for a lost node: `kubectl get nodes`.
    """
    TRAINED = "TrainingCompleted"
    """Training succeeded."""
    PLAN_ONLY = "PlanOnly"
    """The plan is there, and `spec.launchPolicy` asks for no more."""
    SUSPENDED = "SuspendedByUser"
    """`spec.suspend` is true.

    Set it to false to continue.
    """
    QUEUED = "WaitingForAdmission"
    """Kueue holds the Kubernetes Job.

    See `kubectl get workloads`.
    """
    RESUMED = "Resumed"
    """The job was suspended and has resumed."""
    WITHIN_REFERENCE = "WithinReference"
    """Of `Steady`: steps take as long as in the first 200 steps under the plan."""

    # Warnings, while the job goes on
    NO_CHECKPOINT_VOLUME = "NoCheckpointVolume"
    """Checkpoints die with the pods: any failure, drain, or preemption starts the training over.

    Set `spec.checkpoint.persistentVolumeClaim`.
    """
    ONE_NODE = "OneNodeOfKind"
    """The network between nodes was not measured: no two nodes of the GPU's kind take the job's pods, so the plan has
    the usual network of the device type.

    Add or uncordon a node, then suspend and resume the job.
    """
    NODES_DID_NOT_MEET = "NodesDidNotMeet"
    """The network between nodes was not measured: the second profiler's pod found no node, did not start, or could not
    reach the first one, in any attempt. One node was profiled instead.

    See that two nodes are free and that their pods reach each other, then suspend and resume the job.
    """
    LIMITED_BY_NODES = "LimitedByNodes"
    """Nodes offer less memory than `spec.planner.hostMemoryPerNode`, and the plan keeps to what they offer."""
    NODES_TOO_SMALL = "NodesTooSmall"
    """The plan's tables take more memory than nodes offer in addition to the workers' requests, so that no node takes
    the workers.

    Suspend the job and lower `spec.planner.hostMemoryPerNode`, or add larger nodes.
    """
    NODES_CLOSED = "NoNodeOfKind"
    """The workers are kept to the kind of GPU that was profiled, have waited for a node for two minutes, and all nodes
    of that kind are cordoned, tainted, or gone.

    Open one, or suspend and resume the job: the kind is chosen again, profiled if needed, and planned for.
    """
    OTHER_DEVICE = "OtherDevice"
    """The workers run on another device than the plan was made for, so predicted costs do not hold, and
    `status.cost.errorPercent` is left out. Always so where cost models are simulated or bundled and the device is not
    theirs.

    Keep the pods to one product by `spec.podTemplate.spec.nodeSelector`, or plan with cost models of that device.
    """
    ACCURACY_CHANGED = "AccuracyChanged"
    """Three checks in a row or more changed the held-out loss by more than the maximum, and `guard.action: Report`
    keeps the plan's narrow types.

    Take wider types, or policy `Exact`.
    """
    COMPRESSION_SUSPENDED = "CompressionSuspended"
    """Three checks in a row changed the held-out loss by more than
    `spec.experimental.communication.guard.maxEntropyIncreasePercent`, and exchange is exact; or three received
    gradients differed from exact ones by more than 1 %, and gradients travel whole. Training continues.

    Take wider types, or policy `Exact` ([narrow collectives](../guides/narrow-collectives.md#the-guard)).
    """
    DATA_ANOMALY = "DataAnomaly"
    """The loss rose, or the data differ from those at the start: labels that are all equal or of another rate, missing
    values, ids outside their table, other distributions. Training continues.

    The message has column and range of samples ([what is watched](../concepts/drift.md#loss-and-data)).
    """
    NEWER_DEFINITION = "NewerDefinition"
    """The installed definition has fields that this operator does not know. It runs the job without them.

    Upgrade the operator.
    """

    # When steps became slower
    INPUTS_DRIFTED = SlowdownCause.INPUTS_DRIFTED.value
    """Of `Steady`, which is False: lookups changed.

    `PlanCurrent` has the state of a candidate plan.
    """
    DEVICE_SLOW = SlowdownCause.DEVICE_SLOW.value
    """Of `Steady`, which is False: some devices of a node compute slower than their peers.

    With `spec.replanning.mode: Auto` the workers leave a slow node where that pays; otherwise cordon it and delete its
    pod.
    """
    NODE_SLOW = SlowdownCause.NODE_SLOW.value
    """Of `Steady`, which is False: all devices of a node compute slower than their peers.

    As for `DeviceSlow`.
    """
    COMMUNICATION_SLOW = SlowdownCause.COMMUNICATION_SLOW.value
    """Of `Steady`, which is False: collectives take longer on all ranks.

    Look for another tenant of the network, or a link that fell back to a lower speed.
    """
    EVERYTHING_SLOW = SlowdownCause.EVERYTHING_SLOW.value
    """Of `Steady`, which is False: all parts of all ranks take longer.

    Look for another program on the nodes, or lower clocks.
    """
    DENSE_SLOW = SlowdownCause.DENSE_SLOW.value
    """Of `Steady`, which is False: the dense part takes longer; no plan of embedding tables helps.

    Look for lower clocks, or a change of the model.
    """
    DATA_LATE = SlowdownCause.DATA_LATE.value
    """Of `Steady`, which is False: training waits for its batches.

    Use more reader processes, or a faster volume.
    """
    UNEXPLAINED = SlowdownCause.UNEXPLAINED.value
    """Of `Steady`, which is False: none of the other causes.

    `drift-report.json` in the ConfigMap `<job>-report` has the numbers.
    """
    REPORT_UNUSABLE = ReplanVerdict.UNUSABLE_REPORT.value
    """Of `Steady`, which is Unknown: the drift report cannot be read, or its times are not above 0, and nothing is
    decided from them.

    See that the trainer is of the operator's release.
    """

    # About another plan for changed inputs
    CANDIDATE_PLANNING = "PlanningCandidate"
    """Of `PlanCurrent`: a planner runs next to the workers."""
    CANDIDATE_FAILED = replanning_record.CANDIDATE_FAILED
    """Of `PlanCurrent`: no plan was made, and training continues; the message has the cause. Another candidate is made
    after twice the cooldown, or for the next change.
    """
    CANDIDATE_UNSUPPORTED = replanning_support.CANDIDATE_UNSUPPORTED
    """Of `PlanCurrent`: inputs drifted, and no plan is made for them: `spec.planRef` gives the plan, or
    `spec.planner.shardingGroups` permits groups of devices, or only features drifted whose repeats are left out.
    """
    INPUTS_RETURNED = "InputsReturned"
    """Of `PlanCurrent`: the inputs are again those that the plan in force was made for."""
    NO_BETTER_PLAN = ReplanVerdict.NO_BETTER_PLAN.value
    """Of `PlanCurrent`: the plan in force is predicted to cost no more."""
    GAIN_TOO_SMALL = ReplanVerdict.GAIN_TOO_SMALL.value
    """Of `PlanCurrent`: the expected gain is below 5 % of a step, or below twice the price of a restart. While a
    change continues it is planned for again, at growing intervals.
    """
    BETTER_PLAN_FOUND = ReplanVerdict.BETTER_PLAN_FOUND.value
    """Of `PlanCurrent`, which is False: the candidate pays.

    With mode Suggest, or launchPolicy Manual, run the command in the message.
    """
    COOLING_DOWN = ReplanVerdict.COOLING_DOWN.value
    """Of `PlanCurrent`, which is False: the candidate pays, and the last restart is too recent, or its plan was not
    measured yet.
    """
    BUDGET_SPENT = ReplanVerdict.BUDGET_SPENT.value
    """Of `PlanCurrent`, which is False: the candidate pays, and `maxReplans` restarts were made, or the last two plans
    brought less than half of their promise.

    Raise `spec.replanning.maxReplans`, or approve the candidate by hand.
    """
    NEAR_END = ReplanVerdict.NEAR_END.value
    """Of `PlanCurrent`, which is False: the candidate pays, and less than a tenth of the steps remain."""
    PRICE_UNKNOWN = ReplanVerdict.PRICE_UNKNOWN.value
    """Of `PlanCurrent`, which is False: the candidate may pay, and the price of a restart is unknown: no checkpoint was
    measured yet, or checkpoints are on no volume.

    Set `spec.checkpoint.persistentVolumeClaim`.
    """
    PLAN_REPLACED = "PlanReplaced"
    """Of `PlanCurrent`: the candidate was taken; the workers restart under it."""

    # While it waits for someone
    PODS_PENDING = "PodsPending"
    """A pod does not start; the message quotes the scheduler or the kubelet.

    See [pods that wait](../guides/troubleshooting.md#pods-that-wait).
    """
    CHILD_REFUSED = "ChildRefused"
    """The API server rejects a child of the job; the message quotes it. The request is repeated every 30 s.

    Look for a quota, a policy, or a namespace that is being deleted.
    """
    INPUT_MISSING = "InputMissing"
    """A ConfigMap that the job names is not in its namespace, or lacks the key. It is looked for every 15 s.

    Create the ConfigMap, or correct its name in the job.
    """

    # When it has failed
    INVALID_SPEC = "InvalidSpec"
    """The operator cannot read a value of the resource, or a newer release rejects the combination of its values. Only
    a job that was never started fails for this reason; one that was started keeps its pods, has this warning, and waits
    with this reason once it needs another plan.

    Change the spec as the message says. If the definition and the operator are of different releases, upgrade both:
    `helm upgrade`, or apply `crds/dlrmtrainingjobs.yaml`.
    """
    INVALID_INPUT = "InvalidInput"
    """A value or a file contradicts itself. The message begins with the field or the file.

    Correct it and create the job again.
    """
    INVALID_TEMPLATE = "InvalidPodTemplate"
    """Kubernetes rejects the Kubernetes Job that `spec.podTemplate` and `spec.trainer` lead to.

    Try it with `kubectl apply --dry-run=server`.
    """
    INPUT_TOO_LARGE = "InputTooLarge"
    """Tables, request, or plan do not fit into a ConfigMap (1 MiB), even compressed.

    Use fewer, larger tables, or leave out reuse histograms.
    """
    NAME_CONFLICT = "NameConflict"
    """An object has the name of a child and does not belong to the job.

    Rename the job, or delete the object.
    """
    WORLD_SIZE_MISMATCH = "WorldSizeMismatch"
    """The plan is for another number of devices than `numNodes` x `numProcPerNode`, or other embedding servers.

    Plan again with `neuroshard plan`, or leave out `spec.planRef`.
    """
    MODEL_MISMATCH = "ModelMismatch"
    """The plan is for other tables than the job's.

    Plan again with `neuroshard plan`, or leave out `spec.planRef`.
    """
    PROFILING_FAILED = "ProfilingFailed"
    """The profiler failed; the message has its last line.

    Read `kubectl logs job/<job>-profile-<key>`.
    """
    PROFILING_TIMED_OUT = "ProfilingTimedOut"
    """The profiler took longer than `spec.experimental.profiler.timeoutSeconds` since a node took its pod, pulling the
    image included.

    Raise it, or lower `spec.profiler.budgetSeconds`.
    """
    PROFILE_UNUSABLE = "ProfileUnusable"
    """What the profiler published, or `spec.profiler.costModelRef` names, is not a bundle of cost models. The message
    names the file.

    Put the files of a bundle directory, as `neuroshard pretrain` writes it, into the ConfigMap or volume again.
    """
    PLANNING_FAILED = "PlanningFailed"
    """The planner failed; the message has its last line.

    Read `kubectl logs job/<job>-planner-<hash>`.
    """
    PLANNING_TIMED_OUT = "PlanningTimedOut"
    """The planner took longer than `spec.experimental.planner.timeoutSeconds`.

    Raise it, set `spec.experimental.planner.workBudget`, or name a `spec.planner.fallbackAlgorithm`.
    """
    INFEASIBLE = "Infeasible"
    """No plan fits the devices. The message names the table or the device that binds, and the smallest change that
    would fit.

    More nodes, a smaller data type, or a higher `maxMemoryPerDevice`. If the message names the dense part: it is
    counted from the model, so a smaller batch or smaller layers help.
    See [tables that do not fit](../guides/tables-do-not-fit.md).
    """
    PLAN_UNUSABLE = "PlanUnusable"
    """The plan cannot be read, or is not for this job.

    With `spec.planRef`: check the key.
    """
    WORKERS_FAILED = "WorkersFailed"
    """A failure rule, or exit code 2 (wrong input), ended the job. The message and `status.lastFailure` have the cause.

    Fix the cause and create the job again.
    """
    TOO_MANY_RESTARTS = "MaxRestartsExceeded"
    """The workers failed after the last restart of `spec.failurePolicy.maxRestarts`; `status.lastFailure` has the last
    cause.

    For exit code 137 with the reason `OOMKilled`: raise the memory limit, or let a rule `ReplanAndRestart`.
    """
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """`spec.runPolicy.activeDeadlineSeconds` passed. The message has what the job waited for.

    Raise it.
    """
    NOT_RUNNING_IN_TIME = "PreRunningDeadlineExceeded"
    """`spec.runPolicy.preRunningDeadlineSeconds` passed. The message has what the job waited for.

    Raise it, or remove the cause of the wait.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class ConditionUpdate:
    """What a pass finds about one condition."""

    type: ConditionType
    holds: bool | None
    """None: it is not known."""
    reason: Reason
    message: str


_STATUS = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}


def merged(
    recorded: Sequence[Condition], found: Iterable[ConditionUpdate], *, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions after a pass: those of other types as they were, the others with what was found.

    ``lastTransitionTime`` moves only when the status flips; a condition that says the same again is left as it is,
    ``observedGeneration`` included unless the generation moved.
    """
    by_type = {condition.type: condition for condition in recorded}
    for update in found:
        before = by_type.get(update.type)
        status = _STATUS[update.holds]
        flipped = before is None or before.status is not status
        by_type[update.type] = Condition(
            type=update.type,
            status=status,
            reason=update.reason,
            message=update.message[:MESSAGE_CHARACTERS],
            observed_generation=generation,
            last_transition_time=now if before is None or flipped else before.last_transition_time,
        )
    order = [kind.value for kind in ConditionType]
    return tuple(by_type[kind] for kind in order if kind in by_type)


def is_false(recorded: Sequence[Condition], kind: ConditionType) -> bool:
    """Return whether the condition of a type is False; one that was never found is not."""
    return any(each.type == kind and each.status is ConditionStatus.FALSE for each in recorded)


def holds(recorded: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of a type if it is True."""
    return next(
        (each for each in recorded if each.type == kind and each.status is ConditionStatus.TRUE),
        None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WarningUpdate:
    """What a pass finds about one warning."""

    reason: Reason
    message: str
    """Empty: it does not hold, or no longer."""


def warnings_among(reasons: Iterable[Reason], found: Mapping[Reason, str]) -> tuple[WarningUpdate, ...]:
    """Return the updates of all warnings that a caller decides on: those found, by message, and the others as gone."""
    return tuple(WarningUpdate(reason=reason, message=found.get(reason, "")) for reason in reasons)


def merged_warnings(
    recorded: Sequence[JobWarning], found: Iterable[WarningUpdate], *, now: datetime
) -> tuple[JobWarning, ...]:
    """Return the warnings after a pass: those that it decided nothing about as they were."""
    by_reason = {each.reason: each for each in recorded}
    for update in found:
        before = by_reason.pop(update.reason, None)
        if update.message:
            since = now if before is None else before.time
            message = update.message[:MESSAGE_CHARACTERS]
            by_reason[update.reason] = JobWarning(reason=update.reason, message=message, time=since)
    order = [reason.value for reason in Reason]
    return tuple(by_reason[reason] for reason in order if reason in by_reason)


def warning_of(recorded: Sequence[JobWarning], reason: Reason) -> JobWarning | None:
    """Return the warning of a reason. None: it does not hold."""
    return next((each for each in recorded if each.reason == reason), None)
