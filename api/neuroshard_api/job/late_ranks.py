"""Which ranks come late to a step's exchanges, and why: one sentence from what the ranks measured of themselves."""

from collections.abc import Sequence
from statistics import median

from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.job.step_cost import planned_times

LEAST_SHARE = 0.1
"""Of the embedding part: less waiting is not worth a sentence."""
IN_TURNS_SHARE = 0.5
"""Where the rank that waits least waits for as much of what the others do, no rank is the late one."""
CAUSE_SHARE = 0.5
"""Of the waiting: what takes a late rank that much longer than the others is named as the cause."""
SCARCE_SHARE = 0.1
"""Of the time in which a process could run: where it waits for a processor for that long, it comes late by it."""
_WORK = {
    "its time for lookups and updates": ("forward_compute_ms", "backward_compute_ms", "expansion_ms"),
    "its time for the dense part": ("dense_forward_ms", "dense_backward_ms"),
    "its wait for data": ("data_wait_ms",),
}


def late_ranks_note(report: StepReport) -> str | None:
    """Return the sentence about ranks that come late to exchanges. None: there is none, or it is not known."""
    ranks = planned_times(report.ranks)
    longest_ms, total_ms = max(each.late_ms for each in ranks), max(each.total_ms for each in ranks)
    if longest_ms <= LEAST_SHARE * total_ms:
        return None
    text = f"Waiting for ranks that come later to an exchange: up to {longest_ms:.3f} ms, not in the totals."
    last = min(ranks, key=lambda each: each.late_ms)
    if last.late_ms >= IN_TURNS_SHARE * longest_ms:
        return f"{text} Ranks come last in turns: {_scarcity(report.ranks) or 'the cause is not known'}."
    own = next(each for each in report.ranks if each.rank == last.rank)
    others = [each for each in report.ranks if each.rank != last.rank]
    cause = _work(own, others, CAUSE_SHARE * longest_ms) or _scarcity([own]) or "the cause is not known"
    return f"{text} Rank {last.rank} comes last: {cause}."


def _work(own: RankTimes, others: Sequence[RankTimes], least_ms: float) -> str | None:
    """Return the work that takes a rank longer than the others by most. None: none does so by ``least_ms``."""

    def longer_ms(fields: Sequence[str]) -> float:
        return _sum(own, fields) - median(_sum(each, fields) for each in others)

    name = max(_WORK, key=lambda each: longer_ms(_WORK[each]))
    ms = longer_ms(_WORK[name])
    return f"{name} is {ms:.3f} ms longer than that of the others" if ms >= least_ms else None


def _scarcity(ranks: Sequence[RankTimes]) -> str | None:
    share = max((each.processor_wait_share or 0.0 for each in ranks), default=0.0)
    if share < SCARCE_SHARE:
        return None
    percent = f"{100 * share:.0f} %"
    return f"processes share the cores, and a worker waited for one for {percent} of the time in which it could run"


def _sum(times: RankTimes, fields: Sequence[str]) -> float:
    return sum(getattr(times, field) or 0.0 for field in fields)
