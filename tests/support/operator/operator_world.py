"""A cluster in memory: an API server that keeps Kubernetes' rules, and the controllers and kubelets that tests move.

The operator's own code runs against it unchanged (`operator_process`). Watches may lag behind, and the operator may die
after any write.
"""

import asyncio
import copy
import hashlib
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from neuroshard_api.documents.bundle import BundleManifest, Calibration
from neuroshard_api.documents.config_map import contents_of, pack_files, unpack_files
from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import IncumbentPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError, Json
from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.observed import parsing
from support import builders
from support.operator.job_set_controller import JobSetController
from support.operator.operator_watches import Place, Watches

NAMESPACE = "training"
START = datetime(2026, 1, 1, tzinfo=UTC)


KINDS_BY_PLURAL = {
    "dlrmtrainingjobs": KIND,
    "jobs": "Job",
    "jobsets": names.JOB_SET,
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "services": "Service",
    "serviceaccounts": "ServiceAccount",
    "roles": "Role",
    "rolebindings": "RoleBinding",
}


_OF_CANDIDATE = ("incumbent", "inputs")


class CrashError(BaseException):
    """The operator's process was killed here."""


class World:
    """One namespace of a cluster, and its time."""

    def __init__(self) -> None:
        """Make it empty."""
        self.objects: dict[Place, Json] = {}
        self.events: list[Json] = []
        self.nodes: list[Json] = []
        self.now = START
        self.writes = 0
        self.crash_after: int | None = None
        """Kill the operator after that many more writes; None: it lives."""
        self.warnings: dict[str, str] = {}
        """Warning events of controllers and kubelets, by the uid of their object."""
        self.default_queue = ""
        """Kueue's webhook labels and suspends every new Job with this queue; empty: it does not."""
        self.suspends_jobs_without_queue = False
        """Kueue's controller suspends every Job without a queue, whenever it meets one."""
        self.quota: int | None = None
        """Pods of queued Jobs for which Kueue has quota. None: `admit` alone admits Jobs."""
        self._asked: dict[str, int] = {}
        """Pods that queued Jobs had asked for when Kueue admitted them, by uid."""
        self.has_job_set_controller = True
        self.has_free_nodes = True
        """Whether the scheduler finds a node for a new pod."""
        self.refuse: dict[str, ApiError] = {}
        """Errors that creating a kind meets, or an object of a name."""
        self.created: list[Json] = []
        self.statuses: list[Json] = []
        """Every status that was written, in order."""
        self.candidate_moves = 1
        """Devices by which a candidate moves each shard; 0: it places them as the plan in force does."""
        self.candidate_ms = (3.0, 6.0)
        """Predicted cost of candidates, and of the plan in force for the same inputs."""
        self.hardware = builders.hardware()
        """What a profiler finds."""
        self.correction_error = 0.2
        """Error of the cost models that a calibrator publishes."""
        self.too_early: list[str] = []
        """Children that were made before something that they refer to."""
        self.doubled: list[str] = []
        """Pods of workers or embedding servers that were made while one of another attempt still lived."""
        self._mounted: dict[str, dict[str, Json]] = {}
        """ConfigMaps as a pod found them when it started, by its uid."""
        self._numbers = itertools.count(1)
        self.watches = Watches(self.objects, namespace=NAMESPACE)

    # What the operator calls

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        """See Api."""
        del namespace
        return copy.deepcopy(self._event(name) if kind == "Event" else self._object(kind, name))

    def _event(self, name: str) -> Json:
        return next(event for event in self.events if event["metadata"]["name"] == name)

    async def create(self, manifest: Mapping[str, Any]) -> Json:
        """See Api."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Event":
            if any(event["metadata"]["name"] == name for event in self.events):
                raise ApiError(409, "AlreadyExists", f"Event {name} already exists")
            self.events.append(copy.deepcopy(dict(manifest)))
            return dict(manifest)
        refused = self.refuse.get(kind) or self.refuse.get(name)
        if refused is not None:
            raise refused
        if (kind, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{kind} {name} already exists")
        missing = self._missing_for(manifest)
        if missing is not None:
            self.too_early.append(f"{kind} {name} before {missing}")
        if missing is not None and kind == "RoleBinding":
            raise ApiError(404, "NotFound", f"{missing} not found")
        await asyncio.sleep(0)  # calls that are made side by side do not see what the others make
        made = self.put(manifest)
        if kind in {"Job", names.JOB_SET} and self.default_queue:
            made["metadata"]["labels"].setdefault(names.QUEUE_LABEL, self.default_queue)
            made["spec"]["suspend"] = True
        self.created.append(made)
        self._written()
        return copy.deepcopy(made)

    async def patch(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Json:
        """See Api."""
        del namespace
        if kind == "Event":
            event = self._event(name)
            event |= {key: value for key, value in change.items() if key != "metadata"}
            return event
        found = self._object(kind, name)
        if change["metadata"]["uid"] != found["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "another uid")
        for part, value in change.items():
            found[part] = merge_patched(found.get(part), value)
        self.touch(found)
        self._written()
        return copy.deepcopy(found)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        """See Api."""
        del namespace
        found = self._object(kind, name)
        if found["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "another uid")
        self.remove(kind, name, foreground=propagation == "Foreground")
        self._written()

    async def replace_status(self, body: Mapping[str, Any]) -> Json:
        """See Api."""
        found = self._object(KIND, body["metadata"]["name"])
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        found["status"] = copy.deepcopy(body["status"])
        self.statuses.append(found["status"])
        self.touch(found)
        self._written()
        return copy.deepcopy(found)

    async def last_warning(self, namespace: str, uid: str) -> str:
        """See Api."""
        del namespace
        return self.warnings.get(uid, "")

    async def list_metadata(self, path: str, *, selector: str = "") -> list[Json]:
        """See Api."""
        if path in self.refuse:
            raise self.refuse[path]
        kind = KINDS_BY_PLURAL[path.rsplit("/", 1)[-1]]
        found = [each for each in self.of_kind(kind) if not selector or _is_managed(each)]
        return [{"metadata": copy.deepcopy(each["metadata"])} for each in found]

    async def list_objects(self, path: str) -> list[Json]:
        """See Api."""
        if path in self.refuse:
            raise self.refuse[path]
        return self.nodes

    def _written(self) -> None:
        self.writes += 1
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                self.crash_after = None
                raise CrashError

    def _missing_for(self, manifest: Mapping[str, Any]) -> str | None:
        """Return a missing object that a new one refers to: a binding's Role, or one that a Job's pods need."""
        wanted: list[Place] = []
        if manifest["kind"] == "RoleBinding":
            wanted = [("Role", manifest["roleRef"]["name"])]
        elif manifest["kind"] in {"Job", names.JOB_SET}:
            parts = manifest["spec"].get("replicatedJobs")
            specs = [manifest["spec"]] if parts is None else [part["template"]["spec"] for part in parts]
            pods = [spec["template"]["spec"] for spec in specs]
            wanted = [place for pod in pods for place in (("ServiceAccount", pod["serviceAccountName"]), *_mounts(pod))]
        return next((" ".join(place) for place in wanted if place not in self.objects), None)

    def _object(self, kind: str, name: str) -> Json:
        if (kind, name) not in self.objects:
            raise ApiError(404, "NotFound", f"{kind} {name} not found")
        return self.objects[kind, name]

    # What tests and controllers do

    def put(self, manifest: Mapping[str, Any]) -> Json:
        """Store a new object with a uid and a version of its own."""
        made = copy.deepcopy(dict(manifest))
        made["metadata"] |= {
            "namespace": NAMESPACE,
            "uid": str(UUID(int=next(self._numbers))),
            "creationTimestamp": stamp(self.now),
        }
        self.touch(made)
        self.objects[made["kind"], made["metadata"]["name"]] = made
        return made

    def remove(self, kind: str, name: str, *, foreground: bool = False) -> None:
        """Delete an object. With `foreground` it stays until its pods are gone, and a pod until its kubelet is done."""
        found = self.objects[kind, name]
        uid = found["metadata"]["uid"]
        dependents = [place for place, each in self.objects.items() if uid in owners(each)]
        keeps = (
            kind == "Pod" and found["status"].get("phase") not in {"Succeeded", "Failed"} and found["spec"]["nodeName"]
        )
        if keeps or (foreground and dependents):
            found["metadata"].setdefault("deletionTimestamp", stamp(self.now + timedelta(seconds=30)))
            self.touch(found)
        else:
            del self.objects[kind, name]
        for place in dependents:
            if place in self.objects:
                self.remove(*place, foreground=foreground)
        self._collect()

    def _collect(self) -> None:
        """Let objects go whose dependents are gone."""
        for waiting in ("Job", names.JOB_SET):
            for (kind, name), each in list(self.objects.items()):
                waits = kind == waiting and "deletionTimestamp" in each["metadata"]
                if waits and not any(each["metadata"]["uid"] in owners(other) for other in self.objects.values()):
                    del self.objects[kind, name]

    def submit(self, name: str, **spec: Any) -> JobKey:
        """Store a training job."""
        made = self.put({**builders.job_data(name, **spec)})
        made["metadata"]["generation"] = 1
        return NAMESPACE, name

    def change_spec(self, name: str, **spec: Any) -> None:
        """Change fields of a job's spec, as its user does."""
        found = self.training_job(name)
        found["spec"] |= spec
        found["metadata"]["generation"] += 1
        self.touch(found)

    def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Give a job labels, as its user does."""
        found = self.training_job(name)
        found["metadata"]["labels"] = {**found["metadata"].get("labels", {}), **labels}
        self.touch(found)

    def training_job(self, name: str) -> Json:
        """Return a training job."""
        return self.objects[KIND, name]

    def status(self, name: str) -> Json:
        """Return a training job's status."""
        status: Json = self.training_job(name).get("status", {})
        return status

    def of_kind(self, kind: str, role: str = "") -> list[Json]:
        """Return the objects of a kind (and a role) by name."""
        found = [each for (each_kind, _), each in sorted(self.objects.items()) if each_kind == kind]
        return [each for each in found if role in {"", each["metadata"].get("labels", {}).get(names.ROLE_LABEL)}]

    def run_job_controller(self) -> None:
        """Make the Jobs of JobSets and the pods of Jobs, and end Jobs whose pods have ended."""
        for job_set in self.of_kind(names.JOB_SET) if self.has_job_set_controller else ():
            JobSetController(self, end=self._end_job).run(job_set)
        self.run_kueue()
        for job in self.of_kind("Job"):
            is_queued = names.QUEUE_LABEL in job["metadata"]["labels"] or names.JOB_SET in owner_kinds(job)
            if self.suspends_jobs_without_queue and not is_queued and not job["spec"].get("suspend"):
                job["spec"]["suspend"] = True
                self.touch(job)
            self._run_job(job)
            self._count(job)

    def admit(self) -> None:
        """Let Kueue admit all Jobs and JobSets, which hold their own Jobs."""
        for job in [*self.of_kind("Job"), *self.of_kind(names.JOB_SET)]:
            if names.JOB_SET not in owner_kinds(job):
                job["spec"]["suspend"] = False
                self.touch(job)

    def run_kueue(self) -> None:
        """Admit queued Jobs in the order in which they were made: whole, or in part where they take that."""
        if self.quota is None:
            return
        jobs = [each for each in self.created if self.objects.get(("Job", each["metadata"]["name"])) is each]
        queued = [job for job in jobs if names.QUEUE_LABEL in job["metadata"]["labels"] and not is_finished(job)]
        free = self.quota - sum(job["spec"].get("parallelism", 1) for job in queued if not job["spec"]["suspend"])
        for job in (each for each in queued if each["spec"]["suspend"] and "deletionTimestamp" not in each["metadata"]):
            wanted = job["spec"].get("parallelism", 1)
            least = int(job["metadata"].get("annotations", {}).get(names.LEAST_PODS_ANNOTATION, wanted))
            if (admitted := min(wanted, free)) < least:
                continue
            free -= admitted
            self._asked[job["metadata"]["uid"]] = wanted
            in_part = {} if admitted == wanted else {"parallelism": admitted, "completions": admitted}
            job["spec"] |= {"suspend": False, **in_part}
            self.touch(job)

    def preempt(self, job: Json) -> None:
        """Let Kueue take the quota of a Job back: its pods are asked to end, and it waits for what it had asked for."""
        wanted = self._asked[job["metadata"]["uid"]]
        job["spec"] |= {"suspend": True, "parallelism": wanted, "completions": wanted}
        self._remove_living(job)
        self.touch(job)

    def _count(self, job: Json) -> None:
        """Let a Job's status say since when it runs, and how many of its pods are ready."""
        if job["spec"].get("suspend"):
            return
        pods = (pod for pod in self._pods_of(job) if _lives(pod))
        ready = sum(any(each["type"] == "Ready" for each in pod["status"].get("conditions", ())) for pod in pods)
        status = job.setdefault("status", {})
        if "startTime" not in status or status["ready"] != ready:
            status |= {"startTime": status.get("startTime", stamp(self.now)), "ready": ready}
            self.touch(job)

    def _run_job(self, job: Json) -> None:
        conditions = job.setdefault("status", {}).get("conditions", [])
        if any(each["type"] in {"Complete", "Failed"} for each in conditions):
            return
        pods = self._pods_of(job)
        wanted = job["spec"].get("parallelism", 1)
        if any(each["status"].get("phase") == "Failed" for each in pods):
            self._fail_job(job)
        elif "deletionTimestamp" in job["metadata"]:
            self._remove_living(job)
        elif sum(each["status"].get("phase") == "Succeeded" for each in pods) >= wanted:
            self._end_job(job, "Complete", "CompletionsReached")
        elif not job["spec"].get("suspend"):
            have = {each["metadata"]["labels"].get(names.POD_INDEX_LABEL) for each in pods}
            for index in range(wanted):
                if str(index) not in have:
                    self._make_pod(job, index)

    def _fail_job(self, job: Json) -> None:
        """Let a Job fail: it is bound to at once, its other pods go, and then it has failed."""
        if not job["status"].get("conditions"):
            self._end_job(job, "FailureTarget", "PodFailurePolicy")
        self._remove_living(job)
        if not any(_lives(pod) for pod in self._pods_of(job)):
            self._end_job(job, "Failed", "PodFailurePolicy")

    def expire(self, job: Json, *, confirms: bool = True) -> None:
        """Let a Job reach its activeDeadlineSeconds: it has failed, and its pods are asked to end.

        They have ended where a kubelet confirms it, unless their nodes are lost.
        """
        for pod in self._pods_of(job):
            self.remove("Pod", pod["metadata"]["name"])
            if confirms and not self._is_lost(pod):
                self.finish_deletion(pod)
        self._end_job(job, "Failed", "DeadlineExceeded")

    def _remove_living(self, job: Json) -> None:
        for pod in self._pods_of(job):
            if _lives(pod):
                self.remove("Pod", pod["metadata"]["name"])

    def _pods_of(self, job: Json) -> list[Json]:
        return [each for each in self.of_kind("Pod") if job["metadata"]["uid"] in owners(each)]

    def _make_pod(self, job: Json, index: int) -> None:
        template = job["spec"]["template"]
        if ("ServiceAccount", template["spec"]["serviceAccountName"]) not in self.objects:
            return
        labels = {**template["metadata"]["labels"], names.POD_INDEX_LABEL: str(index)}
        name = f"{job['metadata']['name']}-{index}-{next(self._numbers)}"
        uid = job["metadata"]["uid"]
        if labels[names.ROLE_LABEL] in names.OF_AN_ATTEMPT:
            living = (pod for pod in self.of_kind("Pod") if _lives(pod) and owners(pod) != [uid])
            others = (pod for pod in living if _excludes(pod, labels))
            self.doubled += [f"{name} beside {pod['metadata']['name']}" for pod in others if not self._is_lost(pod)]
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": uid, "controller": True}
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        is_placed = self.has_free_nodes and not template["spec"].get("schedulingGates")
        spec = {**template["spec"], "nodeName": f"node-{index}" if is_placed else ""}
        self.put({"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})

    def _is_lost(self, pod: Json) -> bool:
        """Return whether a pod should have been gone more than a minute ago: its node is lost."""
        deleted = parsing.timestamp(pod["metadata"].get("deletionTimestamp"))
        return deleted is not None and self.now > deleted + timedelta(seconds=60)

    def _end_job(self, job: Json, kind: str, reason: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": stamp(self.now)}
        job["status"].setdefault("conditions", []).append(condition)
        self.touch(job)

    def start_pod(self, pod: Json) -> None:
        """Let a pod run and be ready; it waits for a ConfigMap that it mounts and that is not there."""
        if pod["status"]["phase"] == "Pending":
            if not all(place in self.objects for place in _mounts(pod["spec"])):
                return
            self._mounted[pod["metadata"]["uid"]] = {
                name: self.objects[kind, name] for kind, name in _mounts(pod["spec"])
            }
        pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.touch(pod)

    def end_pod(self, pod: Json, code: int, *, disruption: str = "") -> None:
        """Let a pod end with an exit code."""
        name = pod["spec"]["containers"][0]["name"]
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "message": f"exit {code}",
            "finishedAt": stamp(self.now),
        }
        taken = [{"type": "DisruptionTarget", "status": "True", "reason": disruption}] if disruption else []
        phase = "Failed" if code else "Succeeded"
        pod["status"] = {
            "phase": phase,
            "conditions": taken,
            "containerStatuses": [{"name": name, "state": {"terminated": ended}}],
        }
        self.touch(pod)

    def finish_deletion(self, pod: Json) -> None:
        """Let a pod be gone that was asked to go."""
        del self.objects["Pod", pod["metadata"]["name"]]
        self._collect()

    def publish(self, config_map: str, files: Mapping[str, bytes]) -> None:
        """Fill a ConfigMap, as `neuroshard publish` does."""
        packed = pack_files(files)
        found = self.objects.get(("ConfigMap", config_map))
        if found is not None:
            found["data"], found["binaryData"] = dict(packed.data), dict(packed.binary_data)
            self.touch(found)

    def work(self, pod: Json) -> None:
        """Do the work of a profiler's or planner's pod, if it can start, and let it end well.

        Of profilers on two nodes only the first one publishes.
        """
        self.start_pod(pod)
        if pod["status"]["phase"] == "Pending":
            return
        command = pod["spec"]["containers"][0]["command"]
        result = command[command.index("--config-map") + 1]
        role = pod["metadata"]["labels"][names.ROLE_LABEL]
        is_first = pod["metadata"]["labels"][names.POD_INDEX_LABEL] == "0"
        if role == names.PROFILER and is_first:
            self.publish(result, profile_files(self.hardware))
        elif role == names.CALIBRATOR:
            self._corrected(pod, result)
        elif role == names.PLANNER:
            volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
            asked = self._mounted[pod["metadata"]["uid"]][volumes["request"]["configMap"]["name"]]
            request = PlanRequest.from_json(unpack_files(contents_of(asked))["request.json"])
            plan = builders.plan(request)
            if "incumbent" in volumes:
                plan = self._candidate(plan, pod, volumes)
            self.publish(result, {"plan.json": plan.to_json().encode()})
        self.end_pod(pod, 0)

    def _corrected(self, pod: Json, result: str) -> None:
        """Publish the mounted cost models with a calibration, once plan and reports are found to be of one training."""
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounted = self._mounted[pod["metadata"]["uid"]]
        files = {
            each: unpack_files(contents_of(mounted[volumes[each]["configMap"]["name"]]))
            for each in ("bundle", "incumbent", "inputs")
        }
        trained = hashlib.sha256(files["incumbent"]["plan.json"]).hexdigest()
        assert StepReport.from_json(files["inputs"]["step-report.json"]).plan_sha256 == trained
        assert DriftReport.from_json(files["inputs"]["drift-report.json"]).plan_sha256 == trained
        manifest = BundleManifest.from_json(files["bundle"]["manifest.json"])
        error = self.correction_error
        calibration = Calibration(
            source=manifest.source, num_records=4, compute_scale=(1.0, 2.0), mape_before=0.5, mape_after=error
        )
        corrected = manifest.model_copy(update={"calibration": calibration})
        self.publish(result, {**files["bundle"], "manifest.json": corrected.to_json().encode()})

    def _candidate(self, plan: Plan, pod: Json, volumes: Mapping[str, Json]) -> Plan:
        """Return a plan for the mounted statistics that gives each table of the mounted plan to another device."""
        mounted = self._mounted[pod["metadata"]["uid"]]
        files = {each: unpack_files(contents_of(mounted[volumes[each]["configMap"]["name"]])) for each in _OF_CANDIDATE}
        InputStatistics.from_json(files["inputs"]["input-statistics.json"])
        before = Plan.from_json(files["incumbent"]["plan.json"])
        moves = self.candidate_moves
        count, (candidate_ms, incumbent_ms) = before.request.topology.num_devices, self.candidate_ms
        tables = tuple(
            each.model_copy(
                update={
                    "shards": tuple(
                        shard.model_copy(update={"device": (shard.device + moves) % count}) for shard in each.shards
                    )
                }
            )
            for each in before.tables
        )
        predicted = plan.predicted.model_copy(update={"total_ms": candidate_ms})
        incumbent = IncumbentPlan(total_ms=incumbent_ms, fits=True)
        return plan.model_copy(update={"tables": tables, "predicted": predicted, "incumbent": incumbent})

    def touch(self, body: Json) -> None:
        """Give an object a new version, as any change of it does."""
        body["metadata"]["resourceVersion"] = str(next(self._numbers))


def profile_files(hardware: Hardware | None = None) -> dict[str, bytes]:
    """Return the files that a profiler publishes: they belong together, and no network is in them."""
    weights = b"weights"
    manifest = builders.bundle_manifest(weights_sha256=hashlib.sha256(weights).hexdigest())
    return {
        "manifest.json": manifest.to_json().encode(),
        "weights.safetensors": weights,
        "hardware.json": (hardware or builders.hardware()).to_json().encode(),
    }


def owners(body: Mapping[str, Any]) -> list[str]:
    """Return the uids of an object's owners."""
    return [owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()]


def owner_kinds(body: Mapping[str, Any]) -> list[str]:
    """Return the kinds of an object's owners."""
    return [owner["kind"] for owner in body["metadata"].get("ownerReferences") or ()]


def is_finished(job: Mapping[str, Any]) -> bool:
    """Return whether a Job has ended or is bound to: it makes no pods any more."""
    return any(
        each["type"] in {"Complete", "Failed", "FailureTarget"} for each in job.get("status", {}).get("conditions", [])
    )


def stamp(moment: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _mounts(pod_spec: Mapping[str, Any]) -> list[Place]:
    """Return the ConfigMaps that a pod mounts."""
    return [("ConfigMap", each["configMap"]["name"]) for each in pod_spec["volumes"] if "configMap" in each]


def _excludes(pod: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a pod must be gone before one with these labels is made: only the other role goes with it."""
    role, attempt = (pod["metadata"]["labels"].get(label) for label in (names.ROLE_LABEL, names.ATTEMPT_LABEL))
    is_partner = role != labels[names.ROLE_LABEL] and attempt == labels[names.ATTEMPT_LABEL]
    return role in names.OF_AN_ATTEMPT and not is_partner


def _lives(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") not in {"Succeeded", "Failed"}


def merge_patched(found: Any, change: Any) -> Any:
    """Return a JSON value after a merge patch (RFC 7396)."""
    if not isinstance(change, Mapping):
        return copy.deepcopy(change)
    merged = dict(found) if isinstance(found, Mapping) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patched(merged.get(key), value)
    return merged


def _is_managed(body: Mapping[str, Any]) -> bool:
    return (body["metadata"].get("labels") or {}).get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
