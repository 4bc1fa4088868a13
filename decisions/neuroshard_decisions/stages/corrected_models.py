"""Cost models that jobs have corrected by their steps: which ones a job is planned with, and which ones it adds.

    begins to plan -> corrected models chosen, and recorded -> planned with them
    trains steadily -> reports copied -> calibrator Job -> kept, where no other's error is less -> recorded

A choice is recorded before the planner starts, and is part of the plan's inputs hash: a correction that is made later
changes no plan. Each arrow is a separate pass, whose result is in the status or in a child.
"""

from dataclasses import replace

from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.status import ConfigMapReference, CorrectionStatus, ProfileStatus
from neuroshard_api.job.step_cost import is_busy

from neuroshard_decisions import names
from neuroshard_decisions.actions import (
    BundleSource,
    CalibratorRun,
    CandidateInputs,
    Event,
    EventReason,
    GivenModels,
    Keep,
    Start,
)
from neuroshard_decisions.conditions import MESSAGE_CHARACTERS, Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.objects import ChildConfigMap
from neuroshard_decisions.observed.results import ProfileSummary, ReportSummary, Unreadable, model_hash
from neuroshard_decisions.stages.input_hashes import takes_given_models
from neuroshard_decisions.stages.planning import PLANNING, Planned
from neuroshard_decisions.stages.profiling import hardware_of, profile_hardware
from neuroshard_decisions.stages.reports import latest
from neuroshard_decisions.stages.result import StageResult, training_goes_on
from neuroshard_decisions.stages.stage_job import follow
from neuroshard_decisions.stages.tables import tables_of
from neuroshard_decisions.stages.training import TrainingWorkers

CORRECTING = replace(
    PLANNING,
    role=names.CALIBRATOR,
    time_limit="correcting took longer than experimental.planner.timeoutSeconds",
    result="correction",
    again="it corrects again",
    failures={},
)
PERCENT = 100


def taken(context: Context) -> str | None:
    """Return the corrected models that were chosen when planning began. None: none were."""
    recorded = context.status.profile
    return recorded.corrected_by if _is_wanted(context) and recorded is not None else None


def _is_wanted(context: Context) -> bool:
    if context.at_hand is not None:
        return context.at_hand.profile is not None
    return context.spec.experimental.profiler.correct_by_steps and not takes_given_models(context.spec)


def cost_models(context: Context) -> tuple[StageResult, GivenModels | None]:
    """Return the result of profiling with the cost models, if there are some: corrected ones where they were chosen."""
    if context.at_hand is not None and context.at_hand.models is not None:
        return training_goes_on(), context.at_hand.models
    step, profiled = profile_hardware(context)
    name = taken(context)
    if profiled is None or name is None:
        return step, profiled
    recorded = context.status.profile
    assert recorded is not None, "a name was found in it"
    found = step.status_fields.get("profile")
    if isinstance(found, ProfileStatus):
        chosen = {
            "corrected_by": recorded.corrected_by,
            "corrected_error_percent": recorded.corrected_error_percent,
        }
        step = replace(step, status_fields={**step.status_fields, "profile": found.model_copy(update=chosen)})
    if context.shared_profile(name) is None:
        return replace(step, message=f"the corrected cost models {name} are gone"), None
    return step, replace(profiled, bundle=BundleSource(config_map=name))


def another_choice(context: Context, profiling: StageResult, *, has_planner: bool) -> StageResult | None:
    """Return the step that records which corrected models the job is planned with. None: as it is recorded.

    Args:
        context: of the pass; there is no plan yet.
        profiling: what profiling found.
        has_planner: whether a planner was started for the recorded choice.
    """
    recorded = profiling.status_fields.get("profile")
    if not isinstance(recorded, ProfileStatus) or has_planner or not _is_wanted(context):
        return None
    best = _best(context, _key_of_tables(context))
    name, error = (None, None) if best is None else (best[1].meta.name, _percent(best[0]))
    if recorded.corrected_by == name:
        return None
    profile = recorded.model_copy(update={"corrected_by": name, "corrected_error_percent": error})
    models = f"corrected cost models {name}" if name else "cost models as they were measured"
    step = PLANNING.active(Reason.PLANNER_RUNNING, f"the job is planned with {models}", None, requeue_after_s=0.1)
    return replace(step, status_fields={"profile": profile})


def corrections_needed(context: Context) -> tuple[str, ...]:
    """Return the corrected models for the job's tables and devices that were not read in this version."""
    if not _is_wanted(context):
        return ()
    return tuple(each.meta.name for each in _shared(context, _key_of_tables(context)) if not each.is_read)


def others_needed(context: Context, planned: Planned) -> tuple[str, ...]:
    """Return the corrected models, not read in this version, that those of the job are compared with."""
    if not _corrects(context, f"sha256:{planned.summary.hash}"):
        return ()
    result = context.config_map(names.result(names.calibrator_job(context.name, planned.summary.hash)))
    if result is None or not isinstance(result.document, ProfileSummary):
        return ()
    key = correction_key(context, planned.summary.model_hash)
    return tuple(each.meta.name for each in _shared(context, key) if not each.is_read)


def _corrects(context: Context, plan_hash: str) -> bool:
    """Return whether the cost models are to be corrected by the steps under a plan, and were not yet."""
    recorded = context.status.correction
    is_done = recorded is not None and recorded.plan_hash == plan_hash
    return _is_wanted(context) and not is_done


def correct(training: TrainingWorkers) -> StageResult:
    """Return the result of correcting the cost models by the steps of the plan in force, once for each plan."""
    context = training.context
    if not _corrects(context, training.plan_hash):
        return training_goes_on()
    plan_hash = training.planned.summary.hash
    name = names.calibrator_job(context.name, plan_hash)
    job = context.job_named(name)
    if job is None:
        return _begun(training)
    result = context.config_map(names.result(name))
    document = None if result is None else result.document
    if result is not None and isinstance(document, ProfileSummary):
        return _published(training, result, document)
    made = follow(
        context,
        CORRECTING,
        job,
        doing=f"Job {name} corrects the cost models",
        inputs=(),
        problem=document.problem if isinstance(document, Unreadable) else None,
        timeout_s=context.spec.experimental.planner.timeout_seconds,
    )
    if made.completion is not None:
        return _settled(training, None, made.message)
    return replace(training_goes_on(), actions=made.actions, events=made.events, requeue_after_s=made.requeue_after_s)


def _begun(training: TrainingWorkers) -> StageResult:
    """Return the start of the calibrator, where the reports have steady steps that are not the reference's."""
    context, planned = training.context, training.planned
    source = _source(context)
    kept = context.config_map(names.steps(context.name, planned.summary.hash))
    if kept is None:
        return _reports_kept(training)
    document = kept.document
    if source is None or context.shared_profile(source) is None:
        return _settled(training, None, "the cost models that the plan was made with are gone")
    if not isinstance(document, ReportSummary) or not document.step_keys:
        return _settled(training, None, f"ConfigMap {kept.meta.name} has no reports that can be read")
    run = CalibratorRun(
        name=names.calibrator_job(context.name, planned.summary.hash),
        profile=source,
        in_force=CandidateInputs(
            plan=planned.name, plan_key=planned.summary.key, inputs=kept.meta.name, inputs_key=document.step_keys[0]
        ),
        report_keys=document.step_keys,
    )
    return replace(training_goes_on(), actions=(Start(run=run),))


def _source(context: Context) -> str | None:
    """Return the ConfigMap of the cost models that the plan was made with. None: it is not known."""
    if context.at_hand is not None:
        return context.at_hand.profile
    recorded = context.status.profile
    if recorded is None or recorded.corrected_by is not None:
        return None if recorded is None else recorded.corrected_by
    return None if recorded.config_map_ref is None else recorded.config_map_ref.name


def _reports_kept(training: TrainingWorkers) -> StageResult:
    context, drift, report = training.context, training.drift, latest(training.context)
    config_map = context.config_map(names.report(context.name))
    is_steady = drift is not None and drift.headline is None
    if not is_steady or report is None or config_map is None or not training.planned.is_kept:
        return training_goes_on()
    assert drift is not None, "it is steady"
    if is_busy(report.measured):
        return training_goes_on()  # by other work on the machine, which says nothing of its kernels
    has_other_steps = report.first_step is not None and report.first_step >= drift.reference_end
    if report.plan_hash != drift.plan_hash or not has_other_steps or not report.step_keys:
        return training_goes_on()
    keep = Keep(
        name=names.steps(context.name, drift.plan_hash),
        role=names.STEPS,
        source=config_map.meta.name,
        source_version=config_map.meta.resource_version,
    )
    return replace(training_goes_on(), actions=(keep,))


def _published(training: TrainingWorkers, result: ChildConfigMap, document: ProfileSummary) -> StageResult:
    """Keep corrected models for later jobs, where no others have a smaller error; then record what came of it."""
    context = training.context
    if document.correction_error is None:
        return _settled(training, None, f"ConfigMap {result.meta.name} has cost models that nothing corrected")
    key = correction_key(context, training.planned.summary.model_hash)
    name = names.corrected(key, document.hash)
    error = _percent(document.correction_error)
    if context.shared_profile(name) is not None:
        return _settled(training, name, f"corrected by steps up to an error of {error} %", error=error)
    best = _best(context, key)
    if best is not None and best[0] <= document.correction_error:
        others = f"those of {best[1].meta.name} have {_percent(best[0])} %"
        return _settled(training, None, f"not kept: their error is {error} %, and {others}", error=error)
    keep = Keep(
        name=name,
        role=names.PROFILE,
        labels={names.PROFILE_KEY_LABEL: names.short(key)},
        is_shared=True,
        source=result.meta.name,
        source_version=result.meta.resource_version,
    )
    return replace(training_goes_on(), actions=(keep,))


def _settled(training: TrainingWorkers, name: str | None, message: str, *, error: int | None = None) -> StageResult:
    """Record what came of the correction; each plan has one."""
    message = message[:MESSAGE_CHARACTERS]
    status = CorrectionStatus(
        plan_hash=training.plan_hash,
        config_map_ref=None if name is None else ConfigMapReference(name=name),
        error_percent=error,
        message=message,
    )
    reason = EventReason.MODELS_NOT_CORRECTED if name is None else EventReason.MODELS_CORRECTED
    what = f"cost models {message}" if name is None else f"cost models {name}: {message}"
    return replace(
        training_goes_on(),
        events=(Event(reason=reason, message=what),),
        status_fields={"correction": status},
    )


def _key_of_tables(context: Context) -> str | None:
    tables = tables_of(context)
    return correction_key(context, model_hash(tables.tables)) if isinstance(tables, TableSet) else None


def correction_key(context: Context, tables: str) -> str:
    """Return the key of corrections: factors of other hardware, tables, or batch sizes say nothing of a job."""
    trainer, hardware = context.spec.trainer, hardware_of(context)
    assert hardware.fingerprint, "hardware_for always makes one"
    sizes = (context.spec.model.samples_per_device, trainer.num_nodes, trainer.devices_per_node)
    return names.key_of(hardware.fingerprint, tables, *map(str, sizes))


def _shared(context: Context, key: str | None) -> list[ChildConfigMap]:
    if key is None:
        return []
    prefix = names.corrected_prefix(key)
    return [
        each
        for each in context.observed.config_maps
        if each.role == names.PROFILE and not each.meta.owner_uid and each.meta.name.startswith(prefix)
    ]


def _best(context: Context, key: str | None) -> tuple[float, ChildConfigMap] | None:
    """Return the corrected models with the least error, and that error. None: there are none that can be read."""
    found = [
        (each.document.correction_error, each)
        for each in _shared(context, key)
        if isinstance(each.document, ProfileSummary)
        and each.document.correction_error is not None
        and each.meta.name == names.corrected(key or "", each.document.hash)
    ]
    return min(found, key=lambda one: (one[0], one[1].meta.name), default=None)


def _percent(error: float) -> int:
    return round(PERCENT * min(error, PERCENT))
