"""What a trainer found wrong with its loss or its data, and where it began. A finding is shown, and nothing follows."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Value


class FindingKind(StrEnum):
    """What is wrong."""

    LOSS_NOT_FINITE = "LossNotFinite"
    """The loss is NaN or infinite, and training ends."""
    LOSS_EXPLODED = "LossExploded"
    """The loss of a step is above 100 nats: weights are beyond recovery, most often by a value of the data."""
    LOSS_ROSE = "LossRose"
    """The training loss is above that of the reports before, lastingly or by far."""
    ENTROPY_ROSE = "EntropyRose"
    """The same of the normalized entropy, which a change of the label rate alone does not move."""
    LABELS_CONSTANT = "LabelsConstant"
    """All labels are equal."""
    LABEL_RATE_MOVED = "LabelRateMoved"
    """Another share of labels is 1 than at the start."""
    NULLS_ROSE = "NullsRose"
    """More samples have no value, or no id, than at the start."""
    IDS_OUTSIDE = "IdsOutside"
    """A row is looked up that its table does not have."""
    VALUES_MOVED = "ValuesMoved"
    """A dense column is distributed otherwise than at the start."""
    LOOKUPS_MOVED = "LookupsMoved"
    """A feature has other lookups per sample than at the start."""
    ROWS_REPEAT = "RowsRepeat"
    """A feature's rows repeat more or less often than at the start."""
    LISTS_REPEAT = "ListsRepeat"
    """Its lists do."""


class DataFinding(Value):
    """One of them."""

    kind: FindingKind
    column: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Of the data, or the feature. If unset: no column is known to be the cause."""
    first_step: Count
    """First step in which it may have begun."""
    last_step: Count
    """Step in which it was seen first."""
    first_sample: Count | None = None
    """Training samples, over all ranks and epochs, before ``first_step``. If unset: samples are not counted."""
    last_sample: Count | None = None
    """Likewise the last sample of ``last_step``."""
    before: float | None = None
    """The number that it is about, as it was. If unset: not known."""
    now: float | None = None
    """The number as it was found. If unset: it is not finite."""
    until_step: Count | None = None
    """Step by which it was no longer so. If unset: it lasts."""

    @property
    def text(self) -> str:
        """What is wrong, with numbers, column, and range, in one line."""
        ended = "" if self.until_step is None else f", until step {self.until_step:,}"
        return f"{self.kind.value}: {self.cause}; began in {self.where}{ended}"

    @property
    def where(self) -> str:
        """The range in which it began."""
        steps = f"steps {self.first_step:,} to {self.last_step:,}"
        if self.first_step == self.last_step:
            steps = f"step {self.first_step:,}"
        if self.first_sample is None or self.last_sample is None:
            return steps
        return f"samples {self.first_sample:,} to {self.last_sample:,} ({steps})"

    @property
    def cause(self) -> str:
        """What is wrong, with column and numbers."""
        before, now = self.before or 0.0, self.now or 0.0
        known = "known" if self.before is not None else "unknown"
        template = _CAUSES.get((self.kind, known)) or _CAUSES[self.kind, ""]
        if self.kind in {FindingKind.LOSS_NOT_FINITE, FindingKind.LOSS_EXPLODED} and self.column is None:
            return "no column is known to be the cause"
        return template.format(column=f"column {self.column!r}", before=before, now=now, last_row=before - 1)


_CAUSES: Final = {
    (FindingKind.LOSS_NOT_FINITE, "known"): "{column} has {now:g} (at most {before:g} before)",
    (FindingKind.LOSS_NOT_FINITE, "unknown"): "{column} has {now:g}",
    (FindingKind.LOSS_EXPLODED, "known"): "{column} has {now:g} (at most {before:g} before)",
    (FindingKind.LOSS_EXPLODED, "unknown"): "{column} has {now:g}",
    (FindingKind.LOSS_ROSE, ""): "the training loss rose from {before:.4f} to {now:.4f}",
    (FindingKind.ENTROPY_ROSE, ""): "normalized entropy rose from {before:.4f} to {now:.4f}",
    (FindingKind.LABELS_CONSTANT, "known"): "{column}: all labels are {now:.0f}, {before:.3%} were before",
    (FindingKind.LABELS_CONSTANT, "unknown"): "{column}: all labels are {now:.0f} from the start",
    (FindingKind.LABEL_RATE_MOVED, ""): "{column}: {now:.3%} of labels are 1, {before:.3%} before",
    (FindingKind.NULLS_ROSE, ""): "{column}: {now:.1%} of samples have none, {before:.1%} before",
    (FindingKind.IDS_OUTSIDE, ""): "{column}: row {now:.0f} is looked up, the table has rows 0 to {last_row:.0f}",
    (FindingKind.VALUES_MOVED, ""): "{column}: {now:.1%} of values are in another place of the distribution",
    (FindingKind.LOOKUPS_MOVED, ""): "{column}: {now:.4g} lookups per sample, {before:.4g} before",
    (FindingKind.ROWS_REPEAT, ""): "{column}: {now:.4g} distinct rows per lookup, {before:.4g} before",
    (FindingKind.LISTS_REPEAT, ""): "{column}: {now:.4g} distinct lists per sample, {before:.4g} before",
}
"""By kind, and whether the number before is known where that makes a difference."""
MAX_FINDINGS: Final = 20
"""That a document has: a broken file may have a thousand columns."""


def lasting(findings: Sequence[DataFinding]) -> tuple[DataFinding, ...]:
    """Return the findings that last."""
    return tuple(each for each in findings if each.until_step is None)
