"""What would save time, as sentences."""

from neuroshard_api.documents.levers import Lever, LeverName
from neuroshard_api.documents.plan import Plan

from neuroshard_report.quantities import format_count, format_ms, format_percent


def waits_for_host(plan: Plan) -> bool:
    """Return whether faster devices would wait for the host: it is known to bind the whole step of the plan."""
    return plan.step is not None and plan.step.dense_ms is not None and plan.step.is_host_bound


def of_request(plan: Plan) -> Plan:
    """Return a plan whose levers name fields alone: `neuroshard plan` takes few options with a request or plan file."""
    named = (
        each if each.name is LeverName.BATCH_SIZE else each.model_copy(update={"option": each.field})
        for each in plan.levers or ()
    )
    return plan.model_copy(update={"levers": tuple(named) or None})


def lever_line(lever: Lever, *, now_ms: float, num_samples: int, is_waiting: bool) -> str:
    """Return the promise of a lever, with the option and the job's field that turn it on.

    Args:
        lever: of a plan.
        now_ms: predicted cost of the plan's step.
        num_samples: of the plan's step, of all devices.
        is_waiting: whether devices wait for the host (`waits_for_host`): then equally many samples take as long.
    """
    times = f"about {format_ms(lever.total_ms)} ms in place of {format_ms(now_ms)}"
    saved = f"-{format_percent(lever.saved_share)}"
    if lever.num_samples is not None:
        counts = f"{format_count(lever.num_samples)} samples in place of {format_count(num_samples)}"
        times, saved = f"{times} for {counts}", f"{saved} per sample"
    elif is_waiting:
        saved = f"{saved} of the embedding part; the step stays, for the host binds it"
    is_whole = lever.option.startswith("--set") or lever.option == lever.field
    way = lever.option if is_whole else f"{lever.option}, or {lever.field}"
    return f"{lever.text}: {times} ({saved}); {way}"
