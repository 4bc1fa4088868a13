"""Which records a fit takes: those of a device at full speed that did not wait for its host. Fits nothing.

A throttled GPU, a core that others slow, and a device that waits for its host have the times of another device, and a
fit to a mixture describes neither. Where so few others remain that nothing could be fitted to them, the disturbed ones
are the only description of the device that there is: they are taken, with a warning.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from neuroshard_api.documents.records import ProfileRecord

FEWEST = 12
"""Undisturbed records of sampled kinds that are enough for a fit without the others."""
_FIXED_SHARE = 0.5
"""The same of kinds whose samples are the same in every profile."""
_SAMPLED = ("compute", "communication")


def undisturbed(
    records: Sequence[ProfileRecord], *, say: Callable[[str], None] = lambda _: None
) -> tuple[ProfileRecord, ...]:
    """Return the records to fit, in their order.

    Args:
        records: with times.
        say: gets one sentence about each kind of record with disturbed ones.
    """
    needless: set[str] = set()  # kinds that have enough without their disturbed records
    for kind in dict.fromkeys(record.kind for record in records if record.disturbance is not None):
        causes = [record.disturbance for record in records if record.kind == kind]
        disturbed = [cause for cause in causes if cause is not None]
        num_others = len(causes) - len(disturbed)
        share = f"{len(disturbed)} of {len(causes)} {kind} records"
        if num_others >= (FEWEST if kind in _SAMPLED else _FIXED_SHARE * len(causes)):
            needless.add(kind)
            say(f"{share} are left out: {_counted(disturbed)}")
        else:
            say(
                f"warning: {share} are disturbed ({_counted(disturbed)}) and are fitted all the same, since "
                f"{num_others} remain: the cost models are of the disturbed device; hint: measure again while nothing "
                "slows it"
            )
    return tuple(record for record in records if record.disturbance is None or record.kind not in needless)


def _counted(causes: Iterable[str]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in Counter(causes).most_common())
