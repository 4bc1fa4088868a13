"""A plan of the user's own: checked against the model and the world size, and kept as the job's immutable plan."""

from neuroshard_api.documents.config_map import ConfigMapTooLargeError
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.preparation import PlanReference
from neuroshard_api.job.status import Stage, StageName, StageState

from neuroshard_decisions import names
from neuroshard_decisions.actions import Files, Write
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.files import checked
from neuroshard_decisions.observed.limits import LIMITS, bounded_file
from neuroshard_decisions.observed.results import PLAN_FILE, plan_summary
from neuroshard_decisions.stages.planning import kept_plan, mismatch
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition, failed
from neuroshard_decisions.stages.tables import missing, tables_of


def adopt_plan(context: Context, reference: PlanReference, inputs_hash: str) -> StageResult:
    """Return the step that keeps the plan, or that says why it cannot be used."""
    file = context.fetched(reference.name, reference.key)
    if file is None or file.content is None:
        return missing(f"planRef: ConfigMap {reference.name} has no key {reference.key}")
    tables = tables_of(context)
    if not isinstance(tables, TableSet):
        return tables
    where = f"planRef: ConfigMap {reference.name}/{reference.key}"
    try:
        _, content = bounded_file(reference.key, file.content, LIMITS[names.PLAN], where=where)
        summary = plan_summary(content, key=PLAN_FILE, where=where)
    except DocumentError as error:
        return _refused(Reason.PLAN_UNUSABLE, str(error))
    problem = mismatch(context, summary, tables)
    if problem is not None:
        return _refused(problem[0], f"{where}: {problem[1]}")
    labels = {names.INPUTS_HASH_LABEL: names.short(inputs_hash)}
    name = names.plan(context.name, summary.hash)
    files = Files(name=name, role=names.PLAN, labels=labels, contents={PLAN_FILE: content})
    try:
        files = checked(context, files)
    except ConfigMapTooLargeError as error:
        return _refused(Reason.PLAN_UNUSABLE, str(error))
    kept = kept_plan(context, summary.hash, inputs_hash)
    message = f"the plan of ConfigMap {reference.name} is kept as {name}"
    return StageResult(
        display_stage=Stage.PLANNING,
        reason=Reason.PLAN_GIVEN,
        message=message,
        conditions=(condition(ConditionType.PLANNED, Reason.PLAN_GIVEN, message, holds=False),),
        actions=(Write(files=files) if kept is None else kept[0],),
        stage_updates=(
            StageUpdate(stage=StageName.PROFILING, state=StageState.SKIPPED, message="planRef brings the plan"),
            StageUpdate(stage=StageName.PLANNING, state=StageState.ACTIVE, message=message),
        ),
    )


def _refused(reason: Reason, message: str) -> StageResult:
    return failed(display_stage=Stage.PLANNING, stage=StageName.PLANNING, reason=reason, message=message)
