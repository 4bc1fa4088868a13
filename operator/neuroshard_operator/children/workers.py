"""The workers: a headless Service that names them, and the Indexed Jobs of one start."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from neuroshard_api.job.resource import quantity
from neuroshard_api.job.stage_commands import (
    CHECKPOINTS_FOLDER,
    CHECKPOINTS_LOST_VARIABLE,
    DRIFT_REPORT_FILE,
    GRACE_SECONDS,
    INPUT_STATISTICS_FILE,
    PROGRESS_FILE,
    READY_FILE_VARIABLE,
    STEP_REPORT_FILE,
    run_id,
    torchrun_environment,
    trainer_command,
    worker_environment,
)
from neuroshard_api.job.training import CHECKPOINTS_PATH, DATA_PATH, VolumeClaim
from neuroshard_decisions import names
from neuroshard_decisions.actions import WorkersRun
from neuroshard_decisions.context import Context
from neuroshard_decisions.files import JOB_FILE
from neuroshard_decisions.stages.checkpoints import keeps_checkpoints

from neuroshard_operator.children.headless import headless_service
from neuroshard_operator.children.metadata import metadata
from neuroshard_operator.children.pods import (
    NODE_RANK,
    TOKEN_PATH,
    WORK,
    config_map_volume,
    container,
    dns_of,
    empty_volume,
    pod_template,
    publishing,
    resources,
    token_volume,
    with_metadata,
)
from neuroshard_operator.settings import Settings
from neuroshard_operator.writes import Manifest

PUBLISHER = "publisher"
READY_FILE = "/tmp/neuroshard-ready"  # noqa: S108 - a volume of the pod's own
STARTUP_PROBE: Mapping[str, Any] = {
    "exec": {"command": ["test", "-e", READY_FILE]},
    "periodSeconds": 1,
    "timeoutSeconds": 10,
    "failureThreshold": 2**31 - 1,  # how long a start may take, spec.runPolicy.preRunningDeadlineSeconds says
}
"""Of NeuroShard's trainer: without a readiness probe a pod is ready from this one's success on.

A readiness probe would go on and disturb the training that it is meant to see.
"""
ANY_FAILURE: Mapping[str, Any] = {
    "action": "FailJob",
    "onExitCodes": {"containerName": names.TRAINER, "operator": "NotIn", "values": [0]},
}
_OF_NODES = ("nodeSelector", "affinity")
"""Fields of a pod's spec by which a job chooses the workers' nodes, and servers have their own."""
DISRUPTED: Mapping[str, Any] = {
    "action": "FailJob",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def service(context: Context) -> Manifest:
    """Return the headless Service of the workers."""
    return headless_service(context, names.service(context.name), names.WORKER)


def worker_job(context: Context, settings: Settings, run: WorkersRun) -> Manifest:
    """Return the Indexed Job of one attempt: one pod per node, all or none.

    Tables in host memory count on top of the memory that the job asks for.

    A pod that fails fails the Job at once, for its peers cannot go on without it; the policy's rules are there so that
    the Job's own condition tells exit code and pod even when the pod is gone. Restarts are the operator's.
    """
    trainer = context.spec.trainer
    template = _template(context, settings, run, names.WORKER)
    if run.host_bytes:
        trainers = (each for each in template["spec"]["containers"] if each["name"] == names.TRAINER)
        for each in trainers:
            each["resources"] = with_host_tables(each.get("resources") or {}, run.host_bytes)
    if context.is_queued and settings.rack_label is not None:
        place = place_of(settings.rack_label, trainer.num_nodes, run.nodes_per_rack)
        template["metadata"] = with_place(template["metadata"], place)
    more = {**_attempt_labels(run), **context.queue_labels}
    named = metadata(context, run.name, names.WORKER, more)
    return _job(named, template, size=trainer.num_nodes, suspend=context.is_queued)


def server_job(context: Context, settings: Settings, run: WorkersRun, name: str) -> Manifest:
    """Return the Indexed Job of the embedding servers of one attempt.

    Their pods are those of workers, with other memory and later node ranks, and fail their Job as these do.
    """
    servers = context.spec.experimental.embedding_servers
    assert servers is not None, "the run has servers"
    template = _template(context, settings, run, names.SERVER)
    named = metadata(context, name, names.SERVER, _attempt_labels(run))
    return _job(named, template, size=servers.replicas, suspend=False)


def _attempt_labels(run: WorkersRun) -> dict[str, str]:
    return {names.ATTEMPT_LABEL: str(run.attempt), **run.labels}


def _template(context: Context, settings: Settings, run: WorkersRun, role: str) -> dict[str, Any]:
    """Return the pod template of workers or of embedding servers: both have the workers' ServiceAccount."""
    spec = {**_pod_spec(context, settings, run, role), "serviceAccountName": names.account(context.name, names.WORKER)}
    overlay = context.spec.pod_template.spec
    servers = context.spec.experimental.embedding_servers
    if role == names.SERVER and servers is not None and servers.node_selector is not None:
        elsewhere = {key: value for key, value in overlay.items() if key not in _OF_NODES}
        overlay = {**elsewhere, "nodeSelector": servers.node_selector}
    template = pod_template(context, settings, role, spec, _attempt_labels(run), overlay=overlay)
    template["spec"] = _away_from(run.avoided_nodes, template["spec"])
    return with_metadata(template, context.spec.pod_template.metadata)


def _job(metadata: Mapping[str, Any], template: Mapping[str, Any], *, size: int, suspend: bool) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": suspend,
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [DISRUPTED, ANY_FAILURE]},
            "template": template,
        },
    }


def place_of(rack_label: str, num_nodes: int, nodes_per_rack: int | None) -> dict[str, str]:
    """Return the annotations by which Kueue's topology-aware scheduling places workers as their plan has them.

    Pods of one slice are consecutive, as the plan's nodes of a rack are: Kueue orders pods of an Indexed Job by index.
    Without racks in the plan no place is needed, and the workers' exchanges gain by being near.

    Args:
        rack_label: node label of the topology's level.
        num_nodes: workers.
        nodes_per_rack: of the plan. None: it has no racks.
    """
    if num_nodes == 1:
        return {}
    if nodes_per_rack == num_nodes:
        return {f"{names.KUEUE_LABEL_PREFIX}podset-required-topology": rack_label}
    near = {f"{names.KUEUE_LABEL_PREFIX}podset-preferred-topology": rack_label}
    if nodes_per_rack is None:
        return near
    return {
        **near,
        f"{names.KUEUE_LABEL_PREFIX}podset-slice-required-topology": rack_label,
        f"{names.KUEUE_LABEL_PREFIX}podset-slice-size": str(nodes_per_rack),
    }


def with_place(metadata: Mapping[str, Any], place: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of pods that ask for a place; a job whose pod template asks for one itself has that alone."""
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    asks = any(key.startswith(f"{names.KUEUE_LABEL_PREFIX}podset-") for key in annotations)
    return dict(metadata) if asks or not place else {**metadata, "annotations": {**annotations, **place}}


def with_host_tables(resources: Mapping[str, Any], host_bytes: int) -> dict[str, Any]:
    """Return resources with the memory of tables in host memory: on top of what is requested, and of a limit.

    Where a limit alone is given, Kubernetes takes it as the request too.
    """
    limits: dict[str, int | str] = dict(resources.get("limits", {}))
    requests: dict[str, int | str] = dict(resources.get("requests", {}))
    own = requests.get("memory", limits.get("memory", 0))
    requests["memory"] = str(int(quantity(own)) + host_bytes)
    if "memory" in limits:
        limits["memory"] = str(int(quantity(limits["memory"])) + host_bytes)
    return {**resources, **({"limits": limits} if limits else {}), "requests": requests}


def _pod_spec(context: Context, settings: Settings, run: WorkersRun, role: str) -> dict[str, Any]:
    trainer, checkpoint, data = context.spec.trainer, context.spec.checkpoint, context.spec.data
    servers = context.spec.experimental.embedding_servers if role == names.SERVER else None
    run_dir, data_dir = _run_dir(context), DATA_PATH
    plan_file = f"{WORK}/plan/{run.plan_key}"
    job_file = f"{WORK}/files/{run.files.stored_names[JOB_FILE]}"
    command = trainer_command(context.job, job_file=job_file, plan_file=plan_file, run_dir=run_dir, data_dir=data_dir)
    published = (STEP_REPORT_FILE, PROGRESS_FILE, DRIFT_REPORT_FILE, INPUT_STATISTICS_FILE)
    reports = [f"{run_dir}/{name}" for name in published]
    is_own = bool(trainer.command)
    mounts = {"plan": f"{WORK}/plan", "files": f"{WORK}/files", names.CHECKPOINTS_VOLUME: CHECKPOINTS_PATH}
    env = {
        **torchrun_environment(
            context.job,
            host=names.host(run.name, 0, names.service(context.name)),
            run_id=run_id(context.uid, run.attempt),
            grace_seconds=_grace_seconds(context.spec.pod_template.spec),
            has_servers=run.servers is not None,
            of_servers=servers is not None,
        ),
        **worker_environment(plan_file=plan_file, run_dir=run_dir, data_dir=data_dir),
        READY_FILE_VARIABLE: READY_FILE,
        **({} if is_own or keeps_checkpoints(context) else {CHECKPOINTS_LOST_VARIABLE: "1"}),
        "HOME": "/tmp",  # noqa: S108 - a volume of the pod's own
    }
    main = container(
        names.TRAINER,
        trainer.image or settings.trainer_image,
        command if is_own else publishing(run.result, reports, command, watch=True),
        mounts={**mounts, "tmp": "/tmp", **({} if is_own else {"token": TOKEN_PATH})},  # noqa: S108 - a volume of the pod's own
        env=env,
        ports=[{"name": "rendezvous", "containerPort": context.spec.experimental.rendezvous.port}],
        resources=resources(trainer.resources_per_node if servers is None else servers.resources, {}),
        **({} if is_own or _template_decides(context.spec.pod_template.spec) else {"startupProbe": STARTUP_PROBE}),
    )
    main["env"].append(NODE_RANK)
    main["env"] += [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in trainer.env]
    if is_own:
        main["securityContext"] = {**main["securityContext"], "readOnlyRootFilesystem": False}
    volumes = [
        config_map_volume("plan", run.plan, {run.plan_key: run.plan_key}),
        config_map_volume("files", run.files.name),
        _claim_or_empty(names.CHECKPOINTS_VOLUME, checkpoint.persistent_volume_claim),
        empty_volume("tmp"),
        token_volume(),
    ]
    if data.persistent_volume_claim is not None:
        main["volumeMounts"].append({"name": "data", "mountPath": data_dir, "readOnly": True})
        volumes.append(_claim_or_empty("data", data.persistent_volume_claim))
    main["volumeMounts"].append({"name": "dshm", "mountPath": "/dev/shm"})  # noqa: S108 - what NCCL and data loaders use
    volumes.append(empty_volume("dshm", medium="Memory"))
    return {
        **dns_of(context.spec.pod_template.spec),
        "subdomain": names.service(context.name),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **({"nodeSelector": dict(run.node_labels)} if run.node_labels and servers is None else {}),
        **({"initContainers": [_publisher(settings, run.result, reports)]} if is_own else {}),
        "containers": [main],
        "volumes": volumes,
    }


def _run_dir(context: Context) -> str:
    """Return the folder of checkpoints and reports. NeuroShard's trainer makes it; jobs on one volume differ in it.

    A job whose newest checkpoint is below the mount path itself, where earlier releases wrote, goes on there.
    """
    checkpoint, is_own = context.spec.checkpoint, bool(context.spec.trainer.command)
    newest = context.status.checkpoint.path if context.status.checkpoint else None
    root = PurePosixPath(CHECKPOINTS_PATH)
    is_at_root = newest is not None and PurePosixPath(newest).parent == root / CHECKPOINTS_FOLDER
    folder = checkpoint.folder or ("" if is_own or is_at_root else context.name)
    return str(root / folder)


def _grace_seconds(pod_spec: Mapping[str, Any]) -> int:
    """Return the grace period of the pods; the API server rejects one that is not a whole number."""
    chosen = pod_spec.get("terminationGracePeriodSeconds")
    return chosen if isinstance(chosen, int) and chosen > 0 else GRACE_SECONDS


def _away_from(nodes: Sequence[str], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod's spec with a preference for other nodes than these."""
    if not nodes:
        return spec
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    # A field selector takes one value: each node is one expression, and all must hold.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]
    elsewhere = {"matchFields": fields}
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    preferred = [*(node_affinity.get(key) or []), {"weight": 100, "preference": elsewhere}]
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**node_affinity, key: preferred}}}


def _template_decides(pod_spec: Mapping[str, Any]) -> bool:
    """Return whether the job's pod template says itself what the trainer's container runs, or when it has started."""
    containers = pod_spec.get("containers")
    said = [each for each in containers if isinstance(each, Mapping)] if isinstance(containers, list) else []
    return any(each.get("name") == names.TRAINER and {"command", "startupProbe"} & each.keys() for each in said)


def _publisher(settings: Settings, result: str, reports: list[str]) -> dict[str, Any]:
    """Return the sidecar that publishes the reports of a trainer whose image does not have our command."""
    sidecar = container(
        PUBLISHER,
        settings.planner_image,
        publishing(result, reports, watch=True),
        mounts={names.CHECKPOINTS_VOLUME: CHECKPOINTS_PATH, "token": TOKEN_PATH},
        env={},
        imagePullPolicy=settings.image_pull_policy,
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
    )
    return {**sidecar, "restartPolicy": "Always"}


def _claim_or_empty(name: str, claim: VolumeClaim | None) -> dict[str, Any]:
    if claim is None:
        return empty_volume(name)
    return {"name": name, "persistentVolumeClaim": {"claimName": claim.claim_name}}
