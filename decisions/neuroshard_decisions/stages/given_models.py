"""Cost models that were made before: of a ConfigMap, a volume, or those that come with the planner."""

from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.presets import load_presets, preset
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.preparation import CostModelReference
from neuroshard_api.job.status import ConfigMapReference, ProfileStatus, Stage, StageName, StageState

from neuroshard_decisions import names
from neuroshard_decisions.actions import BundleSource, GivenModels
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.limits import LIMITS, bounded_file
from neuroshard_decisions.observed.results import MANIFEST_FILE
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition, failed
from neuroshard_decisions.stages.tables import missing


def given_models(context: Context) -> tuple[StageResult, GivenModels | None]:
    """Return the cost models that the job names, on the device that they are for."""
    reference, device_type = context.spec.profiler.cost_model_ref, context.spec.profiler.device_type
    if reference is None:
        assert device_type is not None, "the resource's rules ask for one of the two"
        return _given(context, BundleSource(device_type=device_type), device_type)
    bundle = BundleSource(config_map=reference.config_map_name, claim=reference.claim_name, path=reference.path)
    if device_type is not None:
        return _given(context, bundle, device_type)
    return _device_of(context, reference, bundle)


def _device_of(
    context: Context, reference: CostModelReference, bundle: BundleSource
) -> tuple[StageResult, GivenModels | None]:
    """Take the device from the bundle's manifest, which only a ConfigMap shows before a pod mounts it."""
    if reference.config_map_name is None:
        message = (
            "profiler.deviceType: is needed with costModelRef.claimName, since a volume cannot be read before a pod "
            "mounts it; hint: name the device that the cost models are for"
        )
        return _unusable(Reason.INVALID_INPUT, message), None
    file = context.fetched(reference.config_map_name, MANIFEST_FILE)
    if file is None or file.content is None:
        what = f"profiler.costModelRef: ConfigMap {reference.config_map_name} has no key {MANIFEST_FILE}"
        return missing(what), None
    try:
        where = f"ConfigMap {reference.config_map_name}"
        _, content = bounded_file(MANIFEST_FILE, file.content, LIMITS[names.PROFILE], where=where)
        manifest = BundleManifest.from_json(content, where=where)
    except DocumentError as error:
        return _unusable(Reason.PROFILE_UNUSABLE, str(error)), None
    name = manifest.device.name
    if name not in load_presets():
        message = (
            f"profiler.costModelRef: the cost models are for the device {name!r}, whose links are not known; "
            "hint: set profiler.deviceType to a device of `neuroshard devices` with the same links"
        )
        return _unusable(Reason.INVALID_INPUT, message), None
    return _given(context, bundle, name)


def _given(context: Context, bundle: BundleSource, device_type: str) -> tuple[StageResult, GivenModels | None]:
    try:
        topology: Topology = preset(device_type).topology(
            num_nodes=context.spec.trainer.num_nodes, devices_per_node=context.spec.trainer.devices_per_node
        )
    except ValueError as error:
        return _unusable(Reason.INVALID_INPUT, f"profiler.deviceType: {error}"), None
    where = bundle.config_map or bundle.claim
    message = f"cost models of {where}" if where else f"cost models of {device_type} that come with the planner"
    step = StageResult(
        display_stage=Stage.PLANNING,
        reason=Reason.MODELS_GIVEN,
        message=message,
        done=True,
        conditions=(condition(ConditionType.PROFILED, Reason.MODELS_GIVEN, message, holds=True),),
        status_fields={
            "profile": ProfileStatus(
                config_map_ref=ConfigMapReference(name=bundle.config_map) if bundle.config_map else None, cached=True
            )
        },
        stage_updates=(StageUpdate(stage=StageName.PROFILING, state=StageState.SKIPPED, message=message),),
    )
    return step, GivenModels(bundle=bundle, topology=topology)


def _unusable(reason: Reason, message: str) -> StageResult:
    return failed(display_stage=Stage.PROFILING, stage=StageName.PROFILING, reason=reason, message=message)
