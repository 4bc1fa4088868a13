"""The operator's settings, read once from environment variables. Nothing below `main` reads the environment."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from neuroshard_api.documents.document import DocumentError, Value, field_path
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION
from neuroshard_decisions.context import Rules
from pydantic import BeforeValidator, Field, ValidationError

PREFIX = "NEUROSHARD_"
"""A setting ``http_port`` is the variable ``NEUROSHARD_HTTP_PORT``."""


def _words(raw: object) -> object:
    return tuple(word for word in raw.replace(",", " ").split() if word) if isinstance(raw, str) else raw


Image = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^\S+$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Settings(Value):
    """All settings, with the defaults that the chart installs."""

    profiler_image: Image
    """Image of profiler pods whose job names none."""
    planner_image: Image
    """Image of planner pods whose job names none."""
    trainer_image: Image
    """Image of worker pods whose job names none."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull the profiler's and the planner's image."""
    image_pull_secrets: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    """Secrets, separated by commas, that the pods of jobs pull images with, each from its own namespace, in addition to
    those of spec.podTemplate. A namespace without such a Secret pulls without it."""
    fixed_user: bool = True
    """Run pods as user and group 65532, as the images do. False where the cluster assigns users, such as OpenShift."""
    planner_cpu: Annotated[str, Field(pattern=r"^[0-9]+m?$")] = "1"
    """CPU that a planner pod requests where its job says nothing; the search runs on one core."""
    planner_memory: Annotated[str, Field(pattern=r"^[0-9]+(Ki|Mi|Gi)$")] = "2Gi"
    """Memory request and limit of a planner pod where its job says nothing; 10,000 tables on 1,024 devices fit."""
    namespaces: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    """Namespaces whose jobs are run, separated by commas. Empty: all, which needs a ClusterRole."""
    read_nodes: bool = True
    """Read labels of nodes, to know the GPU's product and driver before a pod runs on it. False where the operator has
    no ClusterRole: then the job's own node selector says which hardware it gets."""
    log_tails: bool = True
    """Show the end of a failed container's log in a job's status, to all who may read the job. False: its exit code and
    reason alone."""
    gpu_product_labels: Annotated[tuple[str, ...], BeforeValidator(_words)] = (
        "nvidia.com/gpu.product",
        "amd.com/gpu.product-name",
        "cloud.google.com/gke-accelerator",
        "k8s.amazonaws.com/accelerator",
        "node.kubernetes.io/instance-type",
    )
    """Node labels that name the kind of GPU, separated by commas; the first that a node has counts."""
    rack_label: Annotated[str, Field(pattern=r"^[^\s,]+$", max_length=317)] | None = None
    """Node label of the level of Kueue's Topology that plans have as racks, such as nvidia.com/gpu.clique.
    Workers of queued jobs ask for it. If unset: they ask for no place, as clusters without a Topology need."""
    job_sets: bool = False
    """Join workers and embedding servers of a queued job in a JobSet (jobset.x-k8s.io/v1alpha2), where the cluster has
    those: Kueue then admits both or none. False: such a job is refused."""
    workers: Annotated[int, Field(ge=1, le=256)] = 32
    """Number of jobs reconciled concurrently."""
    resync_seconds: Seconds = 300.0
    """Interval between full lists of all objects, after which each job is reconciled even without a watch event, in
    seconds."""
    measured_seconds: Seconds = 30.0
    """Minimum interval between two writes of measured costs into a status, in seconds."""
    call_timeout_seconds: Seconds = 30.0
    """Timeout of one request to the API server, in seconds."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /healthz, /readyz and /metrics; 0 takes a free one."""
    lease: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = None
    """Lease that replicas compete for; the one that holds it works, the others wait. None: a single replica."""
    lease_namespace: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    """Namespace of the lease: the operator's own."""
    identity: Annotated[str, Field(min_length=1, max_length=253)] = "dlrm-operator"
    """Name of this replica in the lease: the pod's name."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest severity that is logged."""
    log_format: Literal["json", "text"] = "json"
    """One JSON object per line, or text for people."""

    @property
    def rules(self) -> Rules:
        """Those that decisions need."""
        return Rules(
            profiler_image=self.profiler_image,
            gpu_product_labels=self.gpu_product_labels,
            measured_seconds=self.measured_seconds,
            log_tails=self.log_tails,
            joins_servers=self.job_sets,
            approval=f"kubectl annotate --overwrite dlrmjob {{job}} {APPROVED_PLAN_ANNOTATION}={{plan}}",
        )


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables with the prefix. Unknown variables are left alone.

    Raises:
        DocumentError: one problem per wrong or missing variable, by the variable's name.
    """
    given: dict[str, Any] = {
        name: environment[PREFIX + name.upper()]
        for name in Settings.model_fields
        if environment.get(PREFIX + name.upper())
    }
    try:
        return Settings.model_validate_strings(given)
    except ValidationError as error:
        raise DocumentError("environment", [_problem(fault) for fault in error.errors(include_url=False)]) from error


def _problem(fault: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails, whose input is anything
    variable = PREFIX + field_path(fault["loc"]).upper()
    if fault["type"] == "missing":
        return f"{variable}: is missing; hint: the chart sets it"
    message = str(fault["msg"])
    return f"{variable}: {message[:1].lower()}{message[1:]}, found {fault['input']!r}"
