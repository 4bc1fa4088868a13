"""More nodes for an elastic job that trains: looked for, planned for, and taken where that pays.

    nodes that take more workers [-> quota for them] -> size recorded -> planner next to the workers -> verdict
    -> restart, where it pays

Nodes are looked at after the cooldown alone, and every five minutes then; the queue of a job that has one is asked for
quota (`quota`). Each arrow is a pass whose result is in the status or in a child. A larger size is taken as any other
restart is: the workers stop with a checkpoint and resume.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from neuroshard_api.job.elastic import ElasticBatch, ElasticStatus, GrowthStatus, SizeReason
from neuroshard_api.job.spec import LaunchPolicy
from neuroshard_api.job.status import StageName, StageState
from neuroshard_api.replanning.growth import LargerSize, cooldown_s, decide_growth, growth_obstacle
from neuroshard_api.replanning.record import CANDIDATE_FAILED, US_PER_MS

from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.results import DriftSummary, PlanResult
from neuroshard_decisions.stages.corrected_models import cost_models
from neuroshard_decisions.stages.elastic import MESSAGE_CHARACTERS, is_elastic, nodes_found, restarted_at, within
from neuroshard_decisions.stages.planning import plan_candidate, planned_already
from neuroshard_decisions.stages.queueing import is_in_queue
from neuroshard_decisions.stages.quota import ask
from neuroshard_decisions.stages.result import StageResult, training_goes_on
from neuroshard_decisions.stages.training import TrainingWorkers

LOOK_EVERY_S: Final = 300.0
"""Between two looks for more nodes: each lists all nodes of the cluster."""
NO_NODES: Final = "NoNodes"
"""Verdict on nodes of which no more take workers than the job has."""
NO_QUOTA: Final = "NoQuota"
"""Verdict on a queue that admits no more workers than the job has."""


def planned_growth(context: Context) -> int | None:
    """Return the larger number of nodes that a plan is wanted for. None: none is."""
    recorded = context.status.elastic
    growth = None if recorded is None else recorded.growth
    return growth.num_nodes if growth is not None and growth.verdict is None and _may_grow(context) else None


def are_nodes_needed(context: Context) -> bool:
    """Return whether this pass looks for more nodes."""
    return planned_growth(context) is not None or (_may_grow(context) and context.now >= _next_look(context))


def grow(training: TrainingWorkers, *, larger_hash: str | None) -> StageResult:
    """Return the result of looking for more nodes while workers train.

    Args:
        training: of the pass.
        larger_hash: inputs hash of the job of the larger size. None: no plan of one is wanted.
    """
    context, drift = training.context, training.drift
    if drift is None or context.observed.nodes is None or not are_nodes_needed(context):
        return _goes_on(context)
    nodes, size, found = planned_growth(context), context.spec.trainer.num_nodes, nodes_found(context)
    if found <= size or (nodes is not None and found < nodes):
        return _settled(context, found, NO_NODES, f"nodes take {found} workers")
    obstacle = growth_obstacle(training.restart(drift)) if nodes is None else None
    if obstacle is not None:
        return _settled(context, found, obstacle[0].value, obstacle[1])
    answer = ask(training, found - size) if is_in_queue(training.workers) else None
    if answer is not None and answer.waits_s is not None and nodes is None:
        return answer.kept(replace(training_goes_on(), requeue_after_s=answer.waits_s))
    if answer is not None:
        found = within(context.sizes, size + answer.admitted)
        if found <= size or (nodes is not None and found < nodes):
            return _settled(context, found, NO_QUOTA, f"the queue has quota for {answer.admitted} more workers")
    if nodes is None:
        step = _settled(context, found, None, f"planning for {found} nodes", requeue_after_s=0.1)
    else:
        assert larger_hash is not None, "a plan of that size is wanted"
        step = _judged(training, drift, nodes, larger_hash)
    return step if answer is None or _is_settled(step) else answer.kept(step)


def _is_settled(step: StageResult) -> bool:
    """Return whether a step ends the look for more nodes, without a restart."""
    recorded = step.status_fields.get("elastic")
    growth = recorded.growth if isinstance(recorded, ElasticStatus) else None
    return growth is not None and growth.verdict is not None


def _may_grow(context: Context) -> bool:
    """Return whether workers of less than the maximum have trained for the cooldown, and nobody approves plans."""
    recorded, launching = context.status.elastic, context.stage_status(StageName.LAUNCHING)
    if recorded is None or not is_elastic(context) or context.broken_rules:
        return False
    if context.spec.launch_policy is LaunchPolicy.MANUAL or launching.state is not StageState.SUCCEEDED:
        return False
    rests = timedelta(seconds=cooldown_s(recorded.missed or 0))
    return context.spec.trainer.num_nodes < context.sizes[-1] and context.now >= recorded.start_time + rests


def _next_look(context: Context) -> datetime:
    """Return the time of the next look at nodes; now where there was none since the number was decided."""
    growth = None if context.status.elastic is None else context.status.elastic.growth
    return context.now if growth is None else growth.time + timedelta(seconds=LOOK_EVERY_S)


def _goes_on(context: Context) -> StageResult:
    """Return that nothing is decided now, and when to look again."""
    waits = is_elastic(context) and context.spec.trainer.num_nodes < context.sizes[-1]
    return replace(training_goes_on(), requeue_after_s=LOOK_EVERY_S if waits else None)


def _settled(
    context: Context, nodes: int, verdict: str | None, why: str, *, requeue_after_s: float = LOOK_EVERY_S
) -> StageResult:
    """Record a look. Numbers of a verdict that stays are kept: they change with each report."""
    recorded = context.status.elastic
    assert recorded is not None, "only a job with a number of nodes looks for more"
    before = recorded.growth
    is_same = before is not None and (before.num_nodes, before.verdict) == (nodes, verdict)
    message = before.message if before is not None and is_same else why[:MESSAGE_CHARACTERS]
    growth = GrowthStatus(num_nodes=nodes, verdict=verdict, message=message, time=context.now)
    fields = {"elastic": recorded.model_copy(update={"growth": growth})}
    return replace(training_goes_on(), status_fields=fields, requeue_after_s=requeue_after_s)


def _judged(training: TrainingWorkers, drift: DriftSummary, nodes: int, larger_hash: str) -> StageResult:
    """Return the restart under the plan for more nodes, or the reason against it; a planner while there is no plan."""
    context = training.context
    larger = context.of_size(nodes)
    found = planned_already(larger, larger_hash)
    if found is None:
        return _planning(context, larger, larger_hash)
    plan: PlanResult = found[1].summary
    if training.measured_us is None or training.planned_ms is None or plan.total_ms is None:
        return _goes_on(context)  # the next report of step times decides
    elastic = larger.spec.experimental.elastic
    size = LargerSize(
        nodes_now=context.spec.trainer.num_nodes,
        num_nodes=nodes,
        embedding_ms=training.measured_us / US_PER_MS,
        incumbent_ms=training.planned_ms,
        predicted_ms=plan.total_ms,
        keeps_global_batch=elastic is not None and elastic.batch is ElasticBatch.GLOBAL,
    )
    decision = decide_growth(size, training.restart(drift))
    if not decision.acts:
        return _settled(context, nodes, decision.verdict.value, decision.message)
    reason = SizeReason.QUOTA_RETURNED if is_in_queue(training.workers) else SizeReason.NODES_JOINED
    return restarted_at(context, nodes, reason, decision.message)


def _planning(context: Context, larger: Context, larger_hash: str) -> StageResult:
    """Return the start or the state of the planner for more nodes."""
    step, profiled = cost_models(larger)
    if profiled is None:
        return _settled(context, larger.spec.trainer.num_nodes, CANDIDATE_FAILED, f"no cost models: {step.message}")
    made = plan_candidate(larger, larger_hash, profiled, None)
    if made.completion is not None:
        return _settled(context, larger.spec.trainer.num_nodes, CANDIDATE_FAILED, made.message)
    return replace(training_goes_on(), actions=made.actions, events=made.events, requeue_after_s=made.requeue_after_s)
