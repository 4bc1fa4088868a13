"""The samples per device that a plan chose, in words. Chooses nothing."""

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.job.model import DEFAULT_BATCH_SIZE

from neuroshard_report.quantities import format_count


def batch_texts(plan: GivenPlan) -> tuple[str, str] | None:
    """Return the chosen samples per device with what becomes of learning rates, and the speed of all that were tried.

    None: there was no choice.
    """
    if plan.batch is None:
        return None
    samples, tried = plan.request.batch_size_per_device, plan.batch.tried
    factor = samples / DEFAULT_BATCH_SIZE
    rates = "as the job has them" if factor == 1 else f"the job's times {factor:g}"
    chosen = f"{format_count(samples)} samples per device, chosen of {len(tried)} sizes; learning rates are {rates}"
    speeds = (
        f"{format_count(each.samples_per_device)} "
        + ("does not fit" if each.samples_per_second is None else f"{format_count(round(each.samples_per_second))}/s")
        for each in tried
    )
    return chosen, ", ".join(speeds)
