"""The record of a job's further plans: what each one promised and brought. Pure functions of ``status.replanning``."""

from datetime import datetime

from neuroshard_api.job_replanning import MAX_PLANS_KEPT, CandidatePlan, ReplanningStatus, TrainedPlan
from neuroshard_api.replanning import WARM_UP_STEPS, Decision, Outcome

US_PER_MS = 1000
MESSAGE_CHARACTERS = 1024


def outcomes_of(record: ReplanningStatus) -> tuple[Outcome, ...]:
    """Return what earlier plans promised and brought, the newest last; restarts for a slow node promise nothing."""
    return tuple(
        Outcome(promised_percent=each.promised_gain_percent, measured_percent=each.measured_gain_percent)
        for each in record.history
        if each.promised_gain_percent is not None
    )


def since_replan_s(record: ReplanningStatus, now: datetime) -> float | None:
    """Return the seconds since the last restart for a plan or a slow node. None: there was none."""
    return (now - record.history[-1].start_time).total_seconds() if record.replans and record.history else None


def measured_before_us(record: ReplanningStatus, placement_hash: str) -> int | None:
    """Return the measured time of the same shards under an earlier plan, in microseconds. None: there was none."""
    trained = [each for each in record.history if each.placement_hash == placement_hash]
    return trained[-1].measured_microseconds if trained else None


def with_measured_gain(
    record: ReplanningStatus, *, plan_hash: str, measured_us: int | None, steps: int | None
) -> ReplanningStatus:
    """Return the record with what the newest plan brought, once its steps were measured after the warm-up.

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
    is_warm = (steps or 0) >= (newest.from_step or 0) + WARM_UP_STEPS
    if newest.hash != plan_hash or not is_open or not is_warm or not before.measured_microseconds:
        return record
    gain = round(100 * (1 - measured_us / before.measured_microseconds))
    measured = newest.model_copy(update={"measured_microseconds": measured_us, "measured_gain_percent": gain})
    return record.model_copy(update={"history": (*record.history[:-1], measured)})


def judged(candidate: CandidatePlan, decision: Decision, *, total_ms: float, incumbent_ms: float) -> CandidatePlan:
    """Return a candidate with its predicted times, and with gain and price as they were decided on."""
    gain_ms, price_ms = decision.gain_ms, decision.price_ms
    return candidate.model_copy(
        update={
            "predicted_microseconds": round(total_ms * US_PER_MS),
            "incumbent_microseconds": round(incumbent_ms * US_PER_MS),
            "gain_microseconds": None if gain_ms is None else round(gain_ms * US_PER_MS),
            "price_milliseconds": None if price_ms is None else round(price_ms),
        }
    )


def promised_percent(decision: Decision, measured_us: int | None) -> int:
    """Return the expected decrease of the embedding part of a step, in percent; 0 where it is not known."""
    if decision.gain_ms is None or not measured_us:
        return 0
    return round(100 * decision.gain_ms * US_PER_MS / measured_us)


def with_restart(
    record: ReplanningStatus, *, in_force: TrainedPlan, measured_us: int | None, taken: TrainedPlan
) -> ReplanningStatus:
    """Return the record of one more restart: the plan in force as it was measured, and what is taken now.

    Args:
        record: of the job.
        in_force: entry of the plan in force, where the history has none of it.
        measured_us: embedding part of a step under it, in microseconds. None: not known.
        taken: entry of the plan that the workers restart under.
    """
    history = list(record.history)
    if not history or history[-1].hash != in_force.hash:
        history.append(in_force)
    history[-1] = history[-1].model_copy(update={"measured_microseconds": measured_us})
    kept = tuple([*history, taken][-MAX_PLANS_KEPT:])
    return record.model_copy(update={"replans": (record.replans or 0) + 1, "history": kept})
