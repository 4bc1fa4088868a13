"""One reconcile pass over a job, with the resource read into its model: what every stage is given. Changes nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.sizes import sized, sizes_of
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.status import Servers, StageName, StageState, StageStatus, Status, Workers
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import with_variants

from neuroshard_decisions import names
from neuroshard_decisions.actions import GivenModels
from neuroshard_decisions.conditions import ConditionType, Reason, holds
from neuroshard_decisions.observed.objects import ChildConfigMap, ChildJob, ChildPod, Fetched, Observed

SLOW_START_S = 30.0
"""Time that a Job needs for its pods, and a pod for its volumes, before events are asked what is wrong."""
PATIENCE = timedelta(minutes=2)
"""How long a pod waits for a node before its kind of GPU is doubted, or the number of nodes of an elastic job."""
LOST_AFTER = timedelta(seconds=60)
"""A pod that is this long past the end of its grace period sits on a node that is gone; it holds nobody up."""
ENDS_WITHIN = timedelta(seconds=30)
"""How long embedding servers run on after their workers: they notice it within 15 s, and end by themselves."""
AVOIDED_FOR = timedelta(days=1)
"""How long a slow node is avoided: what made it slow may be gone then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the one who runs jobs has set for all of them, as far as decisions need it."""

    profiler_image: str = ""
    """Image of profilers whose job names none; the hardware's fingerprint has it."""
    gpu_product_labels: tuple[str, ...] = ()
    """Labels of nodes that name the kind of GPU; the first that a node has counts."""
    measured_seconds: float = 0.0
    """Minimum interval between two writes of measured costs into a status."""
    log_tails: bool = True
    """Whether a status shows the end of a failed container's log."""
    in_config_maps: bool = True
    """Whether files are kept in ConfigMaps, which bounds their size."""
    keeps_checkpoints: bool = False
    """Whether checkpoints outlive the workers wherever these write them, as on one machine."""
    may_stop_workers: bool = True
    """Whether what runs workers also stops them, by suspension or preemption: exit code 143 is then no failure."""
    starts_servers: bool = False
    """Whether the workers' run starts embedding servers too, as on one machine. If unset: they have their own pods."""
    joins_servers: bool = False
    """Whether there are JobSets, which join workers and embedding servers of a job that Kueue queues."""
    approval: str = ""
    """What the user does to approve the plan of the name {plan} for the job of the name {job}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtHand:
    """What a pass need not look up."""

    tables: TableSet
    """As they are planned: of all variants."""
    models: GivenModels | None = None
    """If unset: they are profiled."""
    digest: str = ""
    """Of what a plan depends on and neither the job nor its hardware tells. If unset: there is no such thing."""
    profile: str | None = None
    """Name of the profile with these cost models, which the job's steps correct. None: they correct nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What a stage decides from."""

    observed: Observed
    job: DLRMTrainingJob
    status: Status
    """What earlier passes recorded: times, counters, conditions. `status.stage` is for people and is not read."""
    rules: Rules
    now: datetime
    asked: DLRMTrainingJob | None = None
    """The job as its user has it, of which `job` is the one of fewer nodes. None: `job` is."""
    at_hand: AtHand | None = None
    """What the adapter has itself. None: tables and cost models are looked up as the job says."""
    ignored: tuple[str, ...] = ()
    """Fields of the resource that this release does not know, by path."""
    broken_rules: tuple[str, ...] = ()
    """Messages of the rules between fields that this release has and a job of another release breaks."""

    @property
    def own_tables(self) -> TableSet | None:
        """Tables at hand, or in the resource itself, of all variants. None: they are in a ConfigMap of the user's."""
        if self.at_hand is not None:
            return self.at_hand.tables
        own = self.spec.model.inline_tables(self.name)
        return None if own is None else with_variants(own, self.spec.variants)

    def approval_of(self, plan: str) -> str:
        """Return the user's way to approve a plan of that name."""
        return self.rules.approval.format(job=self.name, plan=plan)

    @property
    def spec(self) -> Spec:
        """What is wanted."""
        return self.job.spec

    @property
    def as_asked(self) -> "Context":
        """The same of the job as its user has it, on its maximum of nodes."""
        return self if self.asked is None else replace(self, job=self.asked, asked=None)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes that the job may train on, in ascending order, without those that have no plan."""
        recorded, found = self.status.elastic, sizes_of(self.as_asked.spec)
        least = (recorded.least_nodes if recorded else None) or 0
        return tuple(each for each in found if each >= least) or found[-1:]

    def of_size(self, num_nodes: int) -> "Context":
        """Return the same of the job on that many nodes."""
        asked = self.as_asked.job
        return replace(self, job=sized(asked, num_nodes), asked=asked)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.observed.job.meta.name

    @property
    def uid(self) -> str:
        """The job's uid, which distinguishes its children from others of the same names."""
        return self.observed.job.meta.uid

    @property
    def attempt(self) -> int:
        """The number of the workers' present start, from 0 on.

        A Job of a later attempt than the status knows would mean that a status was lost; the Job is believed.
        """
        attempts = [job.attempt for job in self.owned_jobs(names.WORKER)]
        return max([self.status.restarts or 0, *attempts])

    @property
    def current_workers(self) -> ChildJob | None:
        """The Job of the present attempt, whatever plan it was started under; None where there is none."""
        found = self.workers
        return found if found is not None and found.meta.deleted is None else None

    @property
    def workers(self) -> ChildJob | None:
        """The same, also while it is being deleted."""
        return self.job_of(names.WORKER, self.attempt)

    @property
    def is_resumed(self) -> bool:
        """Whether the user has resumed the job since the status was written."""
        held = holds(self.status.conditions, ConditionType.SUSPENDED)
        return held is not None and held.reason == Reason.SUSPENDED and not self.spec.suspend

    @property
    def ready_since(self) -> datetime | None:
        """When all workers of the present attempt were first ready; None where they never were."""
        launching = self.stage_status(StageName.LAUNCHING)
        return launching.completion_time if launching.state is StageState.SUCCEEDED else None

    def start_check_s(self, job: ChildJob) -> float | None:
        """Return the seconds until the next check of a Job's pods that do not run; None: they all run."""
        running = sum(pod.phase != "Pending" for pod in self.pods_with_servers(job))
        return None if running >= self.num_pods(job) else SLOW_START_S

    def trouble_of(self, job: ChildJob) -> str:
        """Return the cause, for people, that a Job's pods are not created or do not start; empty: none is known."""
        pods = [pod for pod in self.pods_with_servers(job) if pod.live]
        uids = [*(each.meta.uid for each in self.with_servers(job)), *(pod.meta.uid for pod in pods)]
        warnings = [self.observed.warnings.get(uid, "") for uid in uids]
        unmade = (
            f"JobSet {each.job_set.name} has no Job {each.meta.name} yet; hint: see the log of JobSet's controller"
            for each in self.with_servers(job)
            if each.job_set is not None and not each.is_made
        )
        stuck = sorted({each for each in (*(pod.waiting for pod in pods), *warnings, *unmade) if each})
        return "; ".join(stuck[:3])

    def outlived_by(self, job: ChildJob) -> str:
        """Return the containers that outlive a Job's own, as the end of a message; empty where there are none."""
        outlived = (pod for pod in self.pods_with_servers(job) if pod.is_outlived)
        names_beside = sorted({name for pod in outlived for name in pod.beside})
        if not names_beside:
            return ""
        hint = "hint: make it an initContainer with restartPolicy Always, or keep it out of these pods"
        return f"; container {', '.join(names_beside[:3])} runs on next to one that has ended; {hint}"

    @property
    def queue_labels(self) -> Mapping[str, str]:
        """Kueue's labels of the job, which go on to the Jobs that need GPUs."""
        labels = self.observed.job.meta.labels
        return {key: value for key, value in labels.items() if key.startswith(names.KUEUE_LABEL_PREFIX)}

    @property
    def is_queued(self) -> bool:
        """Whether Kueue decides when the job's GPU pods run."""
        return names.QUEUE_LABEL in self.queue_labels

    def is_held(self, job: ChildJob) -> bool:
        """Whether someone else decides when a suspended Job runs: Kueue, by its label, or anyone who suspends it again.

        Kueue labels and suspends Jobs of namespaces with a default queue, and may suspend those without a queue.
        """
        labels = job.meta.labels
        return job.suspended and (names.QUEUE_LABEL in labels or names.RESUMED_LABEL in labels or self.is_queued)

    def owned_jobs(self, role: str) -> list[ChildJob]:
        """Return this job's Jobs of a role; never those of an earlier job of the same name."""
        return [job for job in self.observed.jobs if job.role == role and job.meta.owner_uid == self.uid]

    def job_named(self, name: str) -> ChildJob | None:
        """Return this job's Job of that name."""
        found = (job for job in self.observed.jobs if job.meta.name == name and job.meta.owner_uid == self.uid)
        return next(found, None)

    def job_of(self, role: str, attempt: int) -> ChildJob | None:
        """Return this job's Job of a role in one attempt; of several the one that is not being deleted."""
        found = [job for job in self.owned_jobs(role) if job.attempt == attempt]
        return min(found, key=lambda job: job.meta.deleted is not None, default=None)

    @property
    def unseen_worker_jobs(self) -> tuple[tuple[str, int], ...]:
        """Role and attempt of the Jobs of live worker pods, and of JobSets that run, that no watch shows.

        They are gone, or somebody took their labels.
        """
        own = [job for job in self.observed.jobs if job.meta.owner_uid == self.uid]
        seen = {job.meta.uid for job in own}
        live = (pod for pod in self.observed.pods if pod.live and not self.is_lost(pod))
        pods = (pod for pod in live if pod.role in names.OF_AN_ATTEMPT and pod.meta.owner_uid not in seen)
        unseen = {(pod.role, pod.attempt) for pod in pods}
        known = {(job.role, job.attempt) for job in own if job.is_made}
        unmade = (job for job in own if not job.is_made and job.outcome is None and job.meta.deleted is None)
        unseen |= {(job.role, job.attempt) for job in unmade if not job.suspended}
        return tuple(sorted(unseen - known - self.observed.missing_jobs))

    def pods_of(self, job: ChildJob) -> list[ChildPod]:
        """Return the pods of one Job."""
        return [pod for pod in self.observed.pods if pod.meta.owner_uid == job.meta.uid]

    @property
    def num_servers(self) -> int:
        """Pods of embedding servers that the workers of the present attempt count on, as recorded when it started."""
        recorded = self.status.servers
        return 0 if recorded is None else recorded.desired or 0

    def servers_of(self, workers: ChildJob) -> ChildJob | None:
        """Return the Job of the embedding servers in the attempt of these workers. None: it has none, or lost it."""
        return self.job_of(names.SERVER, workers.attempt)

    def with_servers(self, job: ChildJob) -> list[ChildJob]:
        """Return a Job, and after one of workers that of the embedding servers in their attempt."""
        servers = self.servers_of(job) if job.role == names.WORKER else None
        return [job] if servers is None else [job, servers]

    def pods_with_servers(self, job: ChildJob) -> list[ChildPod]:
        """Return the pods of a Job, and with those of workers the pods of their embedding servers."""
        return [pod for each in self.with_servers(job) for pod in self.pods_of(each)]

    def num_pods(self, job: ChildJob) -> int:
        """Return the number of pods of a Job, and with those of workers that of their embedding servers."""
        if job.role != names.WORKER:
            return job.parallelism
        servers = self.servers_of(job)
        return job.parallelism + (self.num_servers if servers is None else servers.parallelism)

    @property
    def live_workers(self) -> list[ChildPod]:
        """Pods of any attempt that may still run."""
        found = (pod for pod in self.observed.pods if pod.role in names.OF_AN_ATTEMPT)
        return [pod for pod in found if pod.live and not self.is_lost(pod)]

    def config_map(self, name: str) -> ChildConfigMap | None:
        """Return this job's ConfigMap of that name."""
        found = (each for each in self.observed.config_maps if each.meta.name == name)
        return next((each for each in found if each.meta.owner_uid == self.uid), None)

    def shared_profile(self, name: str) -> ChildConfigMap | None:
        """Return the namespace's profile of that name, which no job owns."""
        found = (each for each in self.observed.config_maps if each.meta.name == name and each.role == names.PROFILE)
        return next((each for each in found if each.meta.owner_uid in {"", self.uid}), None)

    def fetched(self, name: str, key: str) -> Fetched | None:
        """Return a file of a ConfigMap of the user's; None if this pass did not read it."""
        found = (each for each in self.observed.fetched if (each.name, each.key) == (name, key))
        return next(found, None)

    def stage_status(self, stage: StageName) -> StageStatus:
        """Return the recorded status of a stage."""
        found = (each for each in self.status.stages if each.name is stage)
        return next(found, StageStatus(name=stage))

    def is_lost(self, pod: ChildPod) -> bool:
        """Whether a pod sits on a node that is gone: it should have ended more than a minute ago."""
        # deletionTimestamp is the end of the grace period.
        return pod.live and pod.meta.deleted is not None and self.now > pod.meta.deleted + LOST_AFTER

    def lost_pods(self, job: ChildJob) -> list[ChildPod]:
        """Return the pods of a Job, and of servers with it, that sit on nodes that are gone."""
        return [pod for pod in self.pods_with_servers(job) if self.is_lost(pod)]

    def loss_check_s(self, job: ChildJob) -> float | None:
        """Return the seconds until the first of a Job's deleted pods counts as lost; None: none was deleted."""
        ends = (pod.meta.deleted for pod in self.pods_with_servers(job) if pod.live and not self.is_lost(pod))
        return earliest(seconds_until(end + LOST_AFTER, self.now) + 1.0 for end in ends if end is not None)

    def is_abandoned(self, job: ChildJob) -> bool:
        """Whether a Job that is being deleted waits for lost pods alone: it goes when their Node objects do."""
        joined = [each for each in self.observed.jobs if job.job_set is not None and each.job_set == job.job_set]
        live = [pod for each in joined or [job] for pod in self.pods_of(each) if pod.live]
        return job.meta.deleted is not None and bool(live) and all(map(self.is_lost, live))


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadableJob:
    """A resource with values that this release cannot read."""

    observed: Observed
    status: Status
    problem: str
    now: datetime


def pod_counts(context: Context) -> Mapping[str, Workers | Servers | None]:
    """Return the status fields with the numbers of pods of the present attempt; while suspended none is wanted."""
    job = context.workers
    pods = context.pods_of(job) if job else []
    servers = context.servers_of(job) if job else None
    workers = Workers(
        desired=0 if context.spec.suspend else context.spec.trainer.num_nodes,
        active=sum(pod.phase == "Running" and not pod.ended_well for pod in pods),
        ready=sum(pod.ready for pod in pods),
        succeeded=sum(pod.ended_well for pod in pods),
        failed=sum(pod.phase == "Failed" for pod in pods),
        selector=f"{names.JOB_LABEL}={context.name},{names.ROLE_LABEL}={names.WORKER}",
    )
    if context.status.servers is None:
        return {"workers": workers, "servers": None}
    ready = sum(pod.ready for pod in context.pods_of(servers)) if servers else 0
    return {
        "workers": workers,
        "servers": Servers(desired=0 if context.spec.suspend else context.num_servers, ready=ready),
    }


def slow_nodes(context: Context) -> tuple[str, ...]:
    """Return the nodes that were found slow within the last day."""
    recorded = context.status.replanning.avoided_nodes if context.status.replanning else ()
    return tuple(each.name for each in recorded if context.now < each.time + AVOIDED_FOR)


def seconds_until(moment: datetime, now: datetime) -> float:
    """Return the seconds from now until a moment, at least a little: a timer must not fire before it."""
    return max((moment - now).total_seconds(), 0.0) + 0.1


def earliest(delays_s: Iterable[float | None]) -> float | None:
    """Return the shortest of the delays that are given."""
    given: Sequence[float] = [each for each in delays_s if each is not None]
    return min(given, default=None)
