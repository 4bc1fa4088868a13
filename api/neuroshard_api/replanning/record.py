"""The record of a job's further plans: what each one promised and brought. Pure functions of ``status.replanning``."""

from datetime import datetime
from itertools import pairwise

from neuroshard_api.documents.drift_report import SlowdownCause
from neuroshard_api.job.replanning import MAX_PLANS_KEPT, CandidatePlan, ReplanningStatus, TrainedPlan
from neuroshard_api.replanning.decision import (
    COOLDOWN_S,
    WARM_UP_STEPS,
    PlanGain,
    PricedCandidate,
    ReplanDecision,
    ReplanVerdict,
)

US_PER_MS = 1000
MESSAGE_CHARACTERS = 1024
REPORTED_STEPS = 100
"""Steps that the medians of a step report are of."""
PLAN_FAILED = "PlanFailed"
"""Reason of a plan that is taken again, since the workers failed under the one after it."""
CANDIDATE_FAILED = "CandidateFailed"
"""Verdict of a candidate that could not be made."""
_TRIED_AGAIN = {ReplanVerdict.NO_BETTER_PLAN.value, ReplanVerdict.GAIN_TOO_SMALL.value, CANDIDATE_FAILED}
"""Verdicts that the same change may not keep: it may grow, and a failure may pass."""
_MAX_DOUBLINGS = 6
"""Of the cooldown between candidates for one change: up to 64 times as long."""
_EXACT = 2**53
_INT32 = 2**31 - 1


def is_candidate_due(candidate: CandidatePlan, *, since_step: int, now: datetime) -> bool:
    """Return whether another candidate is to be made for changed inputs.

    For another change after the cooldown. For the same change, where the candidate did not pay or could not be made,
    after twice the cooldown, and twice as long with each further candidate of the job.

    Args:
        candidate: the newest one.
        since_step: first step of the change as reported now.
        now: the present time.
    """
    waited_s = (now - candidate.start_time).total_seconds()
    if waited_s < 0:  # the clock was set back: how long it was is not known
        return since_step != candidate.since_step or candidate.verdict in _TRIED_AGAIN
    if since_step != candidate.since_step:
        return waited_s >= COOLDOWN_S
    return candidate.verdict in _TRIED_AGAIN and waited_s >= COOLDOWN_S * 2 ** min(candidate.number, _MAX_DOUBLINGS)


def with_candidate_asked(record: ReplanningStatus, *, since_step: int, now: datetime) -> ReplanningStatus:
    """Return the record with a further candidate that is to be made, for a change that began at this step."""
    number = (record.candidates or 0) + 1
    candidate = CandidatePlan(number=number, since_step=since_step, start_time=now)
    return record.model_copy(update={"candidates": number, "candidate": candidate})


def outcomes_of(record: ReplanningStatus, plan_hash: str) -> tuple[PlanGain, ...]:
    """Return promised and measured gains of plans, the newest last.

    A plan that promised nothing, as of a restart for a slow node, and one that was left before it was measured say
    nothing, and are left out.

    Args:
        record: of the job.
        plan_hash: of the plan in force, as the record has it.
    """
    return tuple(
        PlanGain(
            promised_percent=each.promised_gain_percent,
            measured_percent=each.measured_gain_percent,
            predicted_percent=each.predicted_gain_percent,
        )
        for each in record.history
        if each.promised_gain_percent is not None
        and each.promised_gain_percent > 0
        and (each.measured_gain_percent is not None or (each is record.history[-1] and each.hash == plan_hash))
    )


def since_replan_s(record: ReplanningStatus, now: datetime) -> float | None:
    """Return the seconds since the last restart for a plan or a slow node. None: there was none."""
    return (now - record.history[-1].start_time).total_seconds() if record.replans and record.history else None


def suggested_plan(record: ReplanningStatus) -> str | None:
    """Return the name of the candidate that is taken once the user approves it. None: there is none."""
    shown = record.candidate
    is_current = {ReplanVerdict.NO_BETTER_PLAN, ReplanVerdict.GAIN_TOO_SMALL}
    if shown is None or shown.verdict not in set(ReplanVerdict) - is_current:
        return None
    return shown.plan_name


def next_to_plan_in_force(
    record: ReplanningStatus,
    *,
    placement_hash: str,
    in_force_hash: str,
    measured_us: int,
    predicted_ms: float,
    incumbent_ms: float,
    reference_ms: float | None,
    planned_ms: float | None,
    is_host_bound: bool,
) -> PricedCandidate:
    """Return a candidate's times next to those of the plan in force.

    Args:
        record: of the job; its last plan of the same placement has a measured time.
        placement_hash: of the candidate's placement.
        in_force_hash: of the placement in force.
        measured_us: embedding part of a step under the plan in force, in microseconds.
        predicted_ms: of the candidate, for the changed inputs.
        incumbent_ms: of the plan in force, for the changed inputs.
        reference_ms: embedding part of its first steps. None: not known.
        planned_ms: of the plan in force, for the inputs that it was made for. None: not known.
        is_host_bound: whether the host bound the measured time.
    """
    trained = [each for each in record.history if each.placement_hash == placement_hash]
    return PricedCandidate(
        embedding_ms=measured_us / US_PER_MS,
        incumbent_ms=incumbent_ms,
        predicted_ms=predicted_ms,
        reference_ms=reference_ms or None,
        planned_ms=planned_ms or None,
        measured_ms=_scaled_ms(trained[-1], predicted_ms) if trained else None,
        is_in_force=placement_hash == in_force_hash,
        is_host_bound=is_host_bound,
        has_failed=any(
            each.placement_hash == placement_hash and after.reason == PLAN_FAILED
            for each, after in pairwise(record.history)
        ),
    )


def _scaled_ms(trained: TrainedPlan, predicted_ms: float) -> float | None:
    """Return a plan's measured time, scaled from the inputs of then to those of a prediction. None: not known."""
    measured, predicted = trained.measured_microseconds, trained.predicted_when_measured_microseconds
    return measured / predicted * predicted_ms if measured and predicted else None


def with_measured_gain(
    record: ReplanningStatus, *, plan_hash: str, measured_us: int | None, steps: int | None
) -> ReplanningStatus:
    """Return the record with what the newest plan brought, once only steps after the warm-up were measured.

    Args:
        record: of the job.
        plan_hash: of the plan in force, as the record has it.
        measured_us: embedding part of a step under it, in microseconds.
        steps: steps of the training until that was measured.
    """
    if len(record.history) < 2 or not measured_us:  # noqa: PLR2004 - the plan before, and the newest
        return record
    *_, before, newest = record.history
    is_open = newest.promised_gain_percent is not None and newest.measured_gain_percent is None
    is_warm = (steps or 0) >= (newest.from_step or 0) + WARM_UP_STEPS + REPORTED_STEPS
    if newest.hash != plan_hash or not is_open or not is_warm or not before.measured_microseconds:
        return record
    gain = _whole(100 * (1 - measured_us / before.measured_microseconds), _INT32)
    measured = newest.model_copy(
        update={
            "measured_microseconds": measured_us,
            "predicted_when_measured_microseconds": newest.predicted_microseconds,
            "measured_gain_percent": gain,
        }
    )
    return record.model_copy(update={"history": (*record.history[:-1], measured)})


def judged(
    candidate: CandidatePlan, decision: ReplanDecision, *, total_ms: float, incumbent_ms: float
) -> CandidatePlan:
    """Return a candidate with its predicted times, and with gain and price as they were decided on."""
    gain_ms, price_ms = decision.gain_ms, decision.price_ms
    return candidate.model_copy(
        update={
            "predicted_microseconds": _whole(total_ms * US_PER_MS, _EXACT),
            "incumbent_microseconds": _whole(incumbent_ms * US_PER_MS, _EXACT),
            "gain_microseconds": None if gain_ms is None else _whole(gain_ms * US_PER_MS, _EXACT),
            "price_milliseconds": None if price_ms is None else _whole(price_ms, _EXACT),
        }
    )


def promised_percent(decision: ReplanDecision, measured_us: int | None) -> int:
    """Return the expected decrease of the embedding part of a step, in percent; 0 where it is not known."""
    if decision.gain_ms is None or not measured_us:
        return 0
    return _whole(100 * decision.gain_ms * US_PER_MS / measured_us, _INT32)


def _predicted_percent(candidate: CandidatePlan) -> int | None:
    """Return the predicted decrease of the embedding part of a step, in percent; None where it is not known."""
    predicted, incumbent = candidate.predicted_microseconds, candidate.incumbent_microseconds
    return None if predicted is None or not incumbent else _whole(100 * (1 - predicted / incumbent), _INT32)


def with_candidate_taken(
    record: ReplanningStatus,
    candidate: CandidatePlan,
    decision: ReplanDecision,
    *,
    placement_hash: str,
    in_force: TrainedPlan,
    measured_us: int | None,
    message: str,
    from_step: int | None,
    now: datetime,
) -> ReplanningStatus:
    """Return the record once a judged candidate takes the place of the plan in force.

    Args:
        record: of the job.
        candidate: as `judged` returned it, with its hash.
        decision: on it.
        placement_hash: of its placement.
        in_force: see `with_restart`.
        measured_us: see `with_restart`.
        message: why it is taken.
        from_step: last step that was reported under the plan in force. None: not known.
        now: the present time.
    """
    taken = TrainedPlan(
        candidate=candidate.number,
        hash=candidate.hash or "",
        placement_hash=placement_hash,
        reason=SlowdownCause.INPUTS_DRIFTED.value,
        message=message,
        start_time=now,
        from_step=from_step,
        predicted_microseconds=candidate.predicted_microseconds,
        predicted_gain_percent=_predicted_percent(candidate),
        promised_gain_percent=promised_percent(decision, measured_us),
    )
    recorded = with_restart(
        record,
        in_force=in_force,
        measured_us=measured_us,
        predicted_us=candidate.incumbent_microseconds,
        taken=taken,
    )
    return recorded.model_copy(update={"accepted": candidate.number, "candidate": None})


def with_plan_before(record: ReplanningStatus, *, message: str, now: datetime) -> ReplanningStatus | None:
    """Return the record once the workers go on under the plan before, since they failed under the newest one.

    Args:
        record: of the job.
        message: how they failed.
        now: the present time.

    Returns:
        None where the newest plan is not in doubt: it is the first one, or it was measured, and so trains.
    """
    if not record.history or record.accepted is None:
        return None
    *earlier, newest = record.history
    is_open = newest.promised_gain_percent is not None and newest.measured_gain_percent is None
    before = next((each for each in reversed(earlier) if each.candidate != newest.candidate), None)
    if newest.candidate != record.accepted or not is_open or before is None:
        return None
    again = TrainedPlan(
        candidate=before.candidate,
        hash=before.hash,
        placement_hash=before.placement_hash,
        reason=PLAN_FAILED,
        message=message[:MESSAGE_CHARACTERS],
        start_time=now,
        from_step=newest.from_step,
        predicted_microseconds=before.predicted_microseconds,
        measured_microseconds=before.measured_microseconds,
        predicted_when_measured_microseconds=before.predicted_when_measured_microseconds,
    )
    kept = tuple([*record.history, again][-MAX_PLANS_KEPT:])
    return record.model_copy(update={"accepted": before.candidate, "candidate": None, "history": kept})


def with_restart(
    record: ReplanningStatus,
    *,
    in_force: TrainedPlan,
    measured_us: int | None,
    taken: TrainedPlan,
    predicted_us: int | None = None,
) -> ReplanningStatus:
    """Return the record of one more restart: the plan in force as it was measured, and what is taken now.

    Args:
        record: of the job.
        in_force: entry of the plan in force, where the history has none of it.
        measured_us: embedding part of a step under it, in microseconds. None: not known.
        taken: entry of the plan that the workers restart under.
        predicted_us: of the plan in force for the inputs of now, in microseconds. If unset: not known, or its measured
            time is that of a slow node, and says nothing of other inputs.
    """
    history = list(record.history)
    if not history or history[-1].hash != in_force.hash:
        history.append(in_force)
    measured = {"measured_microseconds": measured_us, "predicted_when_measured_microseconds": predicted_us}
    history[-1] = history[-1].model_copy(update=measured)
    kept = tuple([*history, taken][-MAX_PLANS_KEPT:])
    return record.model_copy(update={"replans": (record.replans or 0) + 1, "history": kept})


def _whole(number: float, limit: int) -> int:
    """Return the nearest integer within -limit and limit; infinities too."""
    return round(min(max(number, -limit), limit))
