"""Names, labels and annotations of everything the operator makes. Pure functions of a job's name; calls no API."""

import hashlib
from collections.abc import Mapping

from neuroshard_api.job.spec import GROUP

FIELD_MANAGER = "dlrm-operator"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "dlrm-operator"
SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
"""Selects everything the operator made; its watches see nothing else."""

JOB_LABEL = f"{GROUP}/job-name"
ROLE_LABEL = f"{GROUP}/role"
ATTEMPT_LABEL = f"{GROUP}/attempt"
PROFILE_KEY_LABEL = f"{GROUP}/profile-key"
INPUTS_HASH_LABEL = f"{GROUP}/inputs-hash"
RESUMED_LABEL = f"{GROUP}/resumed"
"""On a worker Job that somebody suspended and the operator resumed; it does so once."""
RESULT_LABEL = f"{GROUP}/result"
"""Hash of the name of the ConfigMap that a Role lets pods write; each plan has another."""
MADE_LABELS = frozenset((MANAGED_BY_LABEL, JOB_LABEL, ROLE_LABEL, ATTEMPT_LABEL, INPUTS_HASH_LABEL, PROFILE_KEY_LABEL))
"""Labels that a Job is made with, and its pods."""
KUEUE_LABEL_PREFIX = "kueue.x-k8s.io/"
QUEUE_LABEL = f"{KUEUE_LABEL_PREFIX}queue-name"
LEAST_PODS_ANNOTATION = f"{KUEUE_LABEL_PREFIX}job-min-parallelism"
"""Fewest pods of a Job that Kueue may admit in place of all."""
WHOLE_SIZE_ANNOTATION = f"{KUEUE_LABEL_PREFIX}job-completions-equal-parallelism"
"""With it the completions of an Indexed Job follow the number of pods that Kueue admits."""
POD_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"

PROFILER = "profiler"
PLANNER = "planner"
DENSE = "dense"
"""Container of the planner's pod that counts the dense part."""
WORKER = "worker"
SERVER = "server"
"""An embedding server."""
OF_AN_ATTEMPT = (WORKER, SERVER)
"""Roles of the pods of one attempt: they start, fail, and end together."""
QUOTA = "quota"
"""Pods that are never scheduled: Kueue tells by their Job whether a queue has room for as many workers more."""
JOB_SET = "JobSet"
"""Kind of the object that joins the Jobs of one attempt, so that Kueue admits both or none."""
PARTS_OF_SET = {WORKER: "workers", SERVER: "servers"}
"""Names of the Jobs within a JobSet, by role."""
TRAINER = "trainer"
"""Container of the workers' pods that trains."""
REQUEST = "request"
PLAN = "plan"
INPUTS = "inputs"
"""ConfigMap with what the workers reported when a candidate plan was asked for."""
PROFILE = "profile"
CALIBRATOR = "calibrator"
CHECKPOINTS_VOLUME = "checkpoints"
"""Volume of the workers' pods."""
STEPS = "steps"
"""ConfigMap with the reports of steps that cost models are corrected by."""

SHORT_HASH = 10
"""Hex digits of a hash within a name: 40 bits tell a namespace's objects apart, and keep names within 63 characters."""


def short(digest: str) -> str:
    """Return the part of a hexadecimal digest that goes into names and labels."""
    return digest.removeprefix("sha256:")[:SHORT_HASH]


def key_of(*parts: str) -> str:
    """Return the hexadecimal digest of several words."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def account(job: str, role: str) -> str:
    """Return the name of a role's ServiceAccount, Role and RoleBinding."""
    return f"{job}-{role}"


def result(child_job: str) -> str:
    """Return the name of the ConfigMap that the pods of a profiler or planner Job may write."""
    return f"{child_job}-result"


def report(job: str) -> str:
    """Return the name of the ConfigMap that the workers may write."""
    return f"{job}-report"


def files(job: str, digest: str) -> str:
    """Return the name of the ConfigMap with the job file."""
    return _hashed(job, "files", digest)


def profiler_job(job: str, profile_key: str) -> str:
    """Return the name of the Job that profiles one kind of hardware."""
    return _hashed(job, "profile", profile_key)


def network_profiler_job(job: str, profile_key: str) -> str:
    """Return the name of the Indexed Job that profiles one kind of hardware on two nodes.

    Shorter than the other one's: its pods' host names end in an index, and have at most 63 characters.
    """
    return _hashed(job, "net", profile_key)


def planner_job(job: str, inputs_hash: str) -> str:
    """Return the name of the Job that plans for one set of inputs."""
    return _hashed(job, "planner", inputs_hash)


def request(job: str, inputs_hash: str) -> str:
    """Return the name of the ConfigMap that holds the planner's request."""
    return _hashed(job, "request", inputs_hash)


def plan(job: str, plan_hash: str) -> str:
    """Return the name of the immutable ConfigMap of a plan."""
    return _hashed(job, "plan", plan_hash)


def inputs(job: str, number: int) -> str:
    """Return the name of the immutable ConfigMap with the reports that a job's candidate plan is made for."""
    return f"{job}-inputs-{number}"


def profile(profile_key: str) -> str:
    """Return the name of the profile of one kind of hardware, which all jobs of a namespace share."""
    return f"neuroshard-profile-{short(profile_key)}"


def calibrator_job(job: str, plan_hash: str) -> str:
    """Return the name of the Job that corrects cost models by the steps under one plan."""
    return _hashed(job, "correct", plan_hash)


def steps(job: str, plan_hash: str) -> str:
    """Return the name of the immutable ConfigMap with the reports of steps under one plan."""
    return _hashed(job, "steps", plan_hash)


def corrected(correction_key: str, content_hash: str) -> str:
    """Return the name of corrected cost models, which all jobs of a namespace with these tables and devices share."""
    return f"{corrected_prefix(correction_key)}{short(content_hash)}"


def corrected_prefix(correction_key: str) -> str:
    """Return the prefix of the names of all corrected cost models of a key."""
    return f"neuroshard-corrected-{short(correction_key)}-"


def service(job: str) -> str:
    """Return the name of the headless Service that gives workers their host names."""
    return f"{job}-workers"


def profiler_service(job: str) -> str:
    """Return the name of the headless Service that gives profilers of two nodes their host names."""
    return f"{job}-profilers"


def job_of_attempt(role: str, job: str, attempt: int) -> str:
    """Return the name of a role's Indexed Job in one attempt: of workers, their servers, or the question for quota."""
    return f"{job}-{role}-{attempt}"


def admitted_from(least_pods: int) -> Mapping[str, str]:
    """Return the annotations of a Job of which Kueue may admit fewer pods than all, down to a number."""
    return {LEAST_PODS_ANNOTATION: str(least_pods), WHOLE_SIZE_ANNOTATION: "true"}


def job_set(job: str, attempt: int) -> str:
    """Return the name of the JobSet of one start of the workers and their embedding servers."""
    return f"{job}-{attempt}"


def job_of_set(part: str, job_set: str) -> str:
    """Return the name that JobSet's controller gives the Indexed Job of a part, by the part's name."""
    return f"{job_set}-{part}-0"


def host(indexed_job: str, index: int, service_name: str) -> str:
    """Return the DNS name of a pod of an Indexed Job within its namespace."""
    return f"{indexed_job}-{index}.{service_name}"


def _hashed(job: str, part: str, digest: str) -> str:
    return f"{job}-{part}-{short(digest)}"
