"""The job's tables: in the resource itself, or in a ConfigMap of the user's that was fetched for this pass."""

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.model import ONLY_LOCAL_FILE
from neuroshard_api.job.plan_request import tables_of_file
from neuroshard_api.job.status import Stage, StageName
from neuroshard_api.job.variants import with_variants

from neuroshard_decisions.conditions import Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.limits import TABLES, bounded_file
from neuroshard_decisions.stages.result import StageResult, failed

REQUEUE_AFTER_S = 15.0
"""ConfigMaps of users are not watched: nothing tells when a missing one comes."""


def tables_of(context: Context) -> TableSet | StageResult:
    """Return the tables, or the step that says why there are none."""
    own = context.own_tables
    if own is not None:
        return own
    source = context.spec.model.embedding_tables_from
    assert source is not None, "the resource's rules ask for one of the two"
    reference = source.config_map_key_ref
    if reference is None:
        message = f"model.embeddingTablesFrom: {ONLY_LOCAL_FILE}"
        return failed(display_stage=Stage.PENDING, stage=None, reason=Reason.INVALID_INPUT, message=message)
    file = context.fetched(reference.name, reference.key)
    if file is None or file.content is None:
        return missing(f"model.embeddingTablesFrom: ConfigMap {reference.name} has no key {reference.key}")
    where = f"ConfigMap {reference.name}/{reference.key}"
    try:
        name, content = bounded_file(reference.key, file.content, TABLES, where=where)
        return with_variants(tables_of_file(name, content, where=where), context.spec.variants)
    except DocumentError as error:
        if context.stage_status(StageName.PROFILING).start_time is not None:
            return broken(str(error))
        return failed(display_stage=Stage.PENDING, stage=None, reason=Reason.INVALID_INPUT, message=str(error))


def broken(problem: str) -> StageResult:
    """Return the step of a job whose tables could be read before: somebody may be about to write them."""
    return StageResult(
        display_stage=Stage.PENDING,
        reason=Reason.INVALID_INPUT,
        message=f"{problem}; it could be read before, and is read again every {REQUEUE_AFTER_S:.0f} s",
        requeue_after_s=REQUEUE_AFTER_S,
    )


def missing(what: str) -> StageResult:
    """Return the step of a job that waits for a ConfigMap of the user's."""
    return StageResult(
        display_stage=Stage.PENDING,
        reason=Reason.INPUT_MISSING,
        message=f"{what}; hint: create it in the job's namespace",
        requeue_after_s=REQUEUE_AFTER_S,
    )
