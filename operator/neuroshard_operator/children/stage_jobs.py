"""The Jobs of the profiler and of the planner: one pod that runs a stage's command and publishes what it wrote."""

from collections.abc import Mapping
from typing import Any

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.job.plan_request import counts_dense
from neuroshard_api.job.resource import quantity
from neuroshard_api.job.stage_commands import (
    DENSE_FILE,
    HARDWARE_FILE,
    correction_command,
    dense_command,
    planner_command,
    profiler_command,
)
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_decisions import names
from neuroshard_decisions.actions import BundleSource, CalibratorRun, CandidateInputs, PlannerRun, ProfilerRun
from neuroshard_decisions.context import Context
from neuroshard_decisions.files import JOB_FILE, REQUEST_FILE, TABLES_FILE
from neuroshard_decisions.hardware import product_selector
from neuroshard_decisions.observed.results import PLAN_FILE

from neuroshard_operator.children.meeting import endpoint, over_nodes
from neuroshard_operator.children.metadata import metadata
from neuroshard_operator.children.pods import (
    DISRUPTED,
    RESULT,
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

NOT_RETRIED = (
    ExitCode.INVALID_INPUT,
    ExitCode.INFEASIBLE,
    ExitCode.UNUSABLE_BUNDLE,
    ExitCode.MISSING_PACKAGE,
    ExitCode.TOO_LARGE,
)
"""Exit codes that a second run would end with as well."""
KEPT_FROM_TEMPLATE = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "runtimeClassName",
    "schedulerName",
    "resourceClaims",
    "hostNetwork",
    "dnsPolicy",
)
"""Fields of spec.podTemplate that decide which node and devices a pod meets; the profiler must meet the same."""


def profiler_job(context: Context, settings: Settings, run: ProfilerRun) -> Manifest:
    """Return the Job that measures the hardware on one of its nodes, or on several, whose network it measures too."""
    num_nodes, name = run.hardware.network_nodes, run.name
    profiler, template = context.spec.experimental.profiler, context.spec.pod_template.spec
    file_names = run.files.stored_names
    out = f"{WORK}/{RESULT}"
    command = profiler_command(
        job_file=f"{WORK}/files/{file_names[JOB_FILE]}",
        tables_file=f"{WORK}/files/{file_names[TABLES_FILE]}",
        out_dir=out,
        meet=None if num_nodes is None else endpoint(context, name),
    )
    on_trainer_nodes = {**{key: template[key] for key in KEPT_FROM_TEMPLATE if key in template}, **dns_of(template)}
    selector = {**product_selector(run.hardware), **on_trainer_nodes.get("nodeSelector", {})}
    trainer = context.spec.trainer.resources_per_node
    spec = {
        **on_trainer_nodes,
        **({"nodeSelector": selector} if selector else {}),
        "containers": [
            container(
                names.PROFILER,
                profiler.image or settings.profiler_image,
                publishing(run.result, [f"{out}/{BUNDLE_FOLDER}", f"{out}/{HARDWARE_FILE}"], command),
                mounts={"files": f"{WORK}/files", RESULT: out, "tmp": "/tmp", "token": TOKEN_PATH, "dshm": "/dev/shm"},  # noqa: S108 - a volume of the pod's own
                env=_ENVIRONMENT,
                imagePullPolicy=settings.image_pull_policy,
                resources={**_device_claims(template), **resources(profiler.resources, resources(trainer, {}))},
            )
        ],
        "volumes": [
            config_map_volume("files", run.files.name),
            empty_volume(RESULT),
            empty_volume("tmp"),
            empty_volume("dshm", medium="Memory"),
            token_volume(),
        ],
    }
    more = dict(run.labels)
    job = _job(
        context,
        settings,
        names.PROFILER,
        name,
        spec,
        labels={**more, **context.queue_labels},
        pod_labels=more,
        backoff_limit=profiler.backoff_limit,
        suspend=context.is_queued,
    )
    return job if num_nodes is None else over_nodes(context, job, profile_key=run.profile_key, num_nodes=num_nodes)


def _device_claims(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource claims that the template gives the trainer's container: the devices of workers with DRA."""
    containers = template.get("containers")
    entries = [each for each in (containers if isinstance(containers, list) else []) if isinstance(each, Mapping)]
    trainers = (each.get("resources") for each in entries if each.get("name") == names.TRAINER)
    claims = [each.get("claims") for each in trainers if isinstance(each, Mapping)]
    return {"claims": claims[0]} if claims and claims[0] else {}


def planner_job(context: Context, settings: Settings, run: PlannerRun) -> Manifest:
    """Return the Job that plans; it needs no GPU and is not queued by Kueue."""
    in_force = run.in_force
    planner = context.spec.experimental.planner
    out = f"{WORK}/{RESULT}"
    volume, folder = _bundle_volume(run.bundle)
    counted = counts_dense(context.spec)
    dense_file = f"{_DENSE_FOLDER}/{DENSE_FILE}"
    command = planner_command(
        request_file=f"{WORK}/request/{run.files.stored_names[REQUEST_FILE]}",
        bundle_dir=folder,
        plan_file=f"{out}/{PLAN_FILE}",
        dense_file=dense_file if counted else None,
        statistics_file=None if in_force is None else f"{WORK}/inputs/{in_force.inputs_key}",
        incumbent_file=None if in_force is None else f"{WORK}/incumbent/{in_force.plan_key}",
    )
    asked = resources(planner.resources, _usual(settings))
    more_mounts = {
        **({"bundle": f"{WORK}/bundle"} if volume else {}),
        **({names.DENSE: _DENSE_FOLDER} if counted else {}),
        **({"incumbent": f"{WORK}/incumbent", "inputs": f"{WORK}/inputs"} if in_force is not None else {}),
    }
    spec = {
        **({"initContainers": [_counter(context, settings, run, dense_file, asked)]} if counted else {}),
        "containers": [
            container(
                names.PLANNER,
                planner.image or settings.planner_image,
                publishing(run.result, [f"{out}/{PLAN_FILE}"], command),
                mounts={"request": f"{WORK}/request", **more_mounts, RESULT: out, "tmp": "/tmp", "token": TOKEN_PATH},  # noqa: S108 - a volume of the pod's own
                env=_ENVIRONMENT,
                imagePullPolicy=settings.image_pull_policy,
                resources=asked,
            )
        ],
        "volumes": [
            config_map_volume("request", run.files.name),
            *([volume] if volume else []),
            *([] if in_force is None else _candidate_volumes(in_force)),
            *([empty_volume(names.DENSE)] if counted else []),
            empty_volume(RESULT),
            empty_volume("tmp"),
            token_volume(),
        ],
    }
    more = dict(run.labels)
    return _job(
        context,
        settings,
        names.PLANNER,
        run.name,
        spec,
        labels=more,
        pod_labels=more,
        backoff_limit=planner.backoff_limit,
        suspend=False,
    )


def calibrator_job(context: Context, settings: Settings, run: CalibratorRun) -> Manifest:
    """Return the Job that corrects cost models by measured steps; as the planner's, it needs no GPU and no queue."""
    planner, in_force = context.spec.experimental.planner, run.in_force
    out = f"{WORK}/{RESULT}/bundle"  # below the volume: it is written next to its place, and renamed
    command = correction_command(
        bundle_dir=f"{WORK}/bundle",
        plan_file=f"{WORK}/incumbent/{in_force.plan_key}",
        report_files=[f"{WORK}/inputs/{key}" for key in run.report_keys],
        out_dir=out,
    )
    asked = resources(planner.resources, _usual(settings))
    folders = {each: f"{WORK}/{each}" for each in ("bundle", "incumbent", "inputs")}
    spec = {
        "containers": [
            container(
                names.CALIBRATOR,
                planner.image or settings.planner_image,
                publishing(run.result, [out], command),
                mounts={**folders, RESULT: f"{WORK}/{RESULT}", "tmp": "/tmp", "token": TOKEN_PATH},  # noqa: S108 - a volume of the pod's own
                env=_ENVIRONMENT,
                imagePullPolicy=settings.image_pull_policy,
                resources=asked,
            )
        ],
        "volumes": [
            config_map_volume("bundle", run.profile),
            config_map_volume("incumbent", in_force.plan, {in_force.plan_key: in_force.plan_key}),
            config_map_volume("inputs", in_force.inputs, {key: key for key in run.report_keys}),
            empty_volume(RESULT),
            empty_volume("tmp"),
            token_volume(),
        ],
    }
    return _job(
        context,
        settings,
        names.CALIBRATOR,
        run.name,
        spec,
        labels={},
        pod_labels={},
        backoff_limit=planner.backoff_limit,
        suspend=False,
    )


def _candidate_volumes(in_force: CandidateInputs) -> list[dict[str, Any]]:
    """Return the planner's volumes of the plan in force, and of the inputs as they are now."""
    return [
        config_map_volume("incumbent", in_force.plan, {in_force.plan_key: in_force.plan_key}),
        config_map_volume("inputs", in_force.inputs, {in_force.inputs_key: in_force.inputs_key}),
    ]


def _counter(
    context: Context, settings: Settings, run: PlannerRun, dense_file: str, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the container that counts the dense part, with the trainer's image, before the planner starts."""
    trainer = context.spec.trainer
    files = run.files.stored_names
    command = dense_command(
        job_file=f"{WORK}/request/{files[JOB_FILE]}",
        request_file=f"{WORK}/request/{files[REQUEST_FILE]}",
        dense_file=dense_file,
        device=run.device,
    )
    return container(
        names.DENSE,
        trainer.image or settings.trainer_image,
        command,
        mounts={"request": f"{WORK}/request", names.DENSE: _DENSE_FOLDER, "tmp": "/tmp"},  # noqa: S108 - a volume of the pod's own
        env=_ENVIRONMENT,
        resources=asked,
    )


def _usual(settings: Settings) -> dict[str, Any]:
    """Return the resources of a planner's pod whose job says nothing, all of them limited: quotas may ask for that."""
    cpu, memory = settings.planner_cpu, settings.planner_memory
    limits = {"cpu": max(cpu, "1", key=quantity), "memory": memory}  # the search runs on one core
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": limits}


_DENSE_FOLDER = f"{WORK}/{names.DENSE}"
_ENVIRONMENT = {"HOME": "/tmp", "OMP_NUM_THREADS": "1"}  # noqa: S108 - a volume of the pod's own


def _job(
    context: Context,
    settings: Settings,
    role: str,
    name: str,
    pod_spec: Mapping[str, Any],
    *,
    labels: Mapping[str, str],
    pod_labels: Mapping[str, str],
    backoff_limit: int,
    suspend: bool,
) -> dict[str, Any]:
    # Without a container's name the rule holds for all of them, those that run before the stage's own included.
    hopeless = {
        "action": "FailJob",
        "onExitCodes": {"operator": "In", "values": [code.value for code in NOT_RETRIED]},
    }
    few = context.spec.experimental
    stage = few.profiler if role == names.PROFILER else few.planner
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(context, name, role, labels),
        "spec": {
            "suspend": suspend,
            "backoffLimit": backoff_limit,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [DISRUPTED, hopeless]},
            "template": with_metadata(pod_template(context, settings, role, pod_spec, pod_labels), stage.pod_metadata),
        },
    }


def _bundle_volume(bundle: BundleSource) -> tuple[dict[str, Any] | None, str]:
    """Return the volume of the cost models, if they come from one, and the folder or name the planner is given."""
    folder = f"{WORK}/bundle"
    if bundle.config_map is not None:
        return config_map_volume("bundle", bundle.config_map), folder
    if bundle.claim is not None:
        volume = {"name": "bundle", "persistentVolumeClaim": {"claimName": bundle.claim, "readOnly": True}}
        return volume, f"{folder}/{bundle.path}" if bundle.path else folder
    assert bundle.device_type is not None, "the resource's rules ask for one of the three"
    return None, bundle.device_type
