"""Jobs in a cluster, by the official client and the user's own kubeconfig. Turns its errors into sentences."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError

if TYPE_CHECKING:
    from neuroshard_api.documents.drift_report import DriftReport
    from neuroshard_api.job.training_job import DLRMTrainingJob

NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The job's namespace; that of the kubeconfig if not given.")
]
NOT_FOUND = 404
Found = TypeVar("Found")
CALL_TIMEOUT_S = 30
POD_JOB_LABEL = "batch.kubernetes.io/job-name"
POD_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, kw_only=True, slots=True)
class PodLog:
    """A pod of a stage: its name, and the container that does the stage's work."""

    pod: str
    container: str
    index: int
    """Of the worker; 0 in other stages."""


class JobsClient:
    """The jobs of one namespace."""

    def __init__(self, api: Any, namespace: str) -> None:  # noqa: ANN401 - the client has no types
        from kubernetes import client
        from neuroshard_api.job.spec import GROUP
        from neuroshard_api.job.training_job import PLURAL, VERSION

        self.namespace = namespace
        self._jobs: Any = client.CustomObjectsApi(api)
        self._core: Any = client.CoreV1Api(api)
        self._where = {"group": GROUP, "version": VERSION, "namespace": namespace, "plural": PLURAL}

    def find(self, name: str) -> dict[str, Any] | None:
        """Return a job as the API server has it. None: there is none of this name. Raises CommandError otherwise."""
        return _unless_missing(lambda: self.read(name))

    def read(self, name: str) -> dict[str, Any]:
        """Return a job as the API server has it. Raises CommandError."""
        with _sentences(f"{name} in namespace {self.namespace}"):
            found: dict[str, Any] = self._jobs.get_namespaced_custom_object(
                **self._where, name=name, _request_timeout=CALL_TIMEOUT_S
            )
            return found

    def of_sweep(self, name: str) -> list[dict[str, Any]]:
        """Return the jobs of a sweep, by name; none where there is no such sweep. Raises CommandError."""
        from neuroshard_api.job.training_job import SWEEP_LABEL

        with _sentences(f"jobs of the sweep {name} in namespace {self.namespace}"):
            found: list[dict[str, Any]] = self._jobs.list_namespaced_custom_object(
                **self._where, label_selector=f"{SWEEP_LABEL}={name}", _request_timeout=CALL_TIMEOUT_S
            )["items"]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def drift(self, name: str) -> "DriftReport | None":
        """Return a job's drift report.

        None: there is none, it cannot be used, the user may not read it, or the API server does not answer.
        """
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_api.documents.drift_report import DriftReport
        from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE

        try:
            files = self.reports(name)
            where = f"{name}-report"
            return DriftReport.from_json(files[DRIFT_REPORT_FILE], where=where) if DRIFT_REPORT_FILE in files else None
        except (CommandError, DocumentError):
            return None

    def reports(self, name: str) -> Mapping[str, bytes]:
        """Return the reports of a job's workers, by file; none where there is no ConfigMap of them yet.

        Raises CommandError, and DocumentError for a damaged ConfigMap.
        """
        return _unless_missing(lambda: self.config_map(f"{name}-report")) or {}

    def config_map(self, name: str) -> Mapping[str, bytes]:
        """Return the files of a ConfigMap, decompressed. Raises CommandError, and DocumentError for a damaged one."""
        from neuroshard_api.documents.config_map import contents_of, unpack_files

        where = f"ConfigMap {name} in namespace {self.namespace}"
        with _sentences(where):
            found = self._core.read_namespaced_config_map(name, self.namespace, _request_timeout=CALL_TIMEOUT_S)
            return unpack_files(contents_of(self._core.api_client.sanitize_for_serialization(found)), where=where)

    def create(self, job: Mapping[str, Any], *, is_trial: bool = False) -> None:
        """Create a job; fields that the cluster does not know are refused. Raises CommandError.

        Args:
            job: the resource.
            is_trial: whether the cluster only says whether it would take the job.
        """
        trial = {"dry_run": "All"} if is_trial else {}
        with _sentences(f"{job['metadata']['name']} in namespace {self.namespace}"):
            self._jobs.create_namespaced_custom_object(
                **self._where, body=job, field_validation="Strict", _request_timeout=CALL_TIMEOUT_S, **trial
            )

    def annotate(self, name: str, key: str, value: str) -> None:
        """Set an annotation of a job. Raises CommandError."""
        body = {"metadata": {"annotations": {key: value}}}
        with _sentences(f"{name} in namespace {self.namespace}"):
            self._jobs.patch_namespaced_custom_object(
                **self._where, name=name, body=body, _request_timeout=CALL_TIMEOUT_S
            )

    def create_config_map(self, config_map: Mapping[str, Any]) -> None:
        """Create a ConfigMap. Raises CommandError."""
        with _sentences(f"ConfigMap {config_map['metadata']['name']} in namespace {self.namespace}"):
            self._core.create_namespaced_config_map(
                self.namespace, config_map, field_validation="Strict", _request_timeout=CALL_TIMEOUT_S
            )

    def pods(self, batch_job: str) -> list[PodLog]:
        """Return the pods of a Kubernetes Job, the newest of each worker, by index. Raises CommandError."""
        with _sentences(f"pods of {batch_job}"):
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=f"{POD_JOB_LABEL}={batch_job}", _request_timeout=CALL_TIMEOUT_S
            ).items
        newest = {}
        for pod in sorted(found, key=lambda pod: pod.metadata.creation_timestamp):
            index = int(pod.metadata.labels.get(POD_INDEX_LABEL, 0))
            newest[index] = PodLog(pod=pod.metadata.name, container=pod.spec.containers[0].name, index=index)
        return [newest[index] for index in sorted(newest)]

    def log(self, pod: PodLog, *, follow: bool) -> Iterator[bytes]:
        """Yield a pod's log as it comes, until its end. Raises CommandError."""
        with _sentences(f"log of pod {pod.pod}"):
            answer = self._core.read_namespaced_pod_log(
                pod.pod, self.namespace, container=pod.container, follow=follow, _preload_content=False
            )
            with contextlib.closing(answer):
                yield from answer.stream(decode_content=False)


def names_job(target: str, *, namespace: str | None) -> bool:
    """Return whether a word is the name of a job in a cluster, and not a path of this machine."""
    path = Path(target)
    is_path = path.exists() or "/" in target or path.suffix in {".json", ".gz", ".yaml", ".yml"}
    return namespace is not None or not is_path


@contextlib.contextmanager
def jobs_client(namespace: str | None) -> Iterator[JobsClient]:
    """Give a client for the current context of the user's kubeconfig. Raises CommandError where there is none."""
    from kubernetes import config
    from kubernetes.config import ConfigException

    # The client itself reads the variable once, when it is imported.
    file = os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        _, context = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
        if context is None:
            raise CommandError("the kubeconfig has no current context; hint: `kubectl config use-context NAME` sets it")
        api: Any = config.new_client_from_config(file)  # type: ignore[no-untyped-call]
    except ConfigException as error:
        hint = "set KUBECONFIG to a file that kubectl works with"
        raise CommandError(f"there is no usable kubeconfig: {error}; hint: {hint}") from error
    with contextlib.closing(api):
        yield JobsClient(api, namespace or context["context"].get("namespace") or "default")


def parsed(raw: dict[str, Any]) -> "DLRMTrainingJob":
    """Return a job of the API server as a document. Raises CommandError where a newer operator knows more."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.job.training_job import DLRMTrainingJob

    try:
        return DLRMTrainingJob.from_data(raw)
    except DocumentError as error:
        hint = "is this command older than the operator? Update it, or read the job with kubectl"
        raise CommandError(f"{raw['metadata']['name']}: {error}; hint: {hint}") from error


def _unless_missing(read: Callable[[], Found]) -> Found | None:
    """Return the result of reading. None: there is nothing of that name, in a cluster that knows jobs."""
    from kubernetes.client import ApiException

    try:
        return read()
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ApiException) and cause.status == NOT_FOUND and error.exit_code is not ExitCode.CLUSTER:
            return None
        raise


@contextlib.contextmanager
def _sentences(what: str) -> Iterator[None]:
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        message = _message(error.body) or error.reason
        if error.status == NOT_FOUND and "could not find the requested resource" in message:
            hint = "is the operator installed? See docs/guides/install.md"
            raise CommandError(f"this cluster knows no DLRMTrainingJob; hint: {hint}", ExitCode.CLUSTER) from error
        code = ExitCode.INVALID_INPUT if error.status in (400, 404, 409, 422) else ExitCode.CLUSTER
        raise CommandError(f"{what}: {message}", code) from error
    except HTTPError as error:
        raise CommandError(
            f"the API server does not answer: {error}; hint: check the kubeconfig", ExitCode.CLUSTER
        ) from error


def _message(body: str | bytes | None) -> str:
    try:
        message: str = json.loads(body or "{}").get("message", "")
    except ValueError:
        return ""
    return message
