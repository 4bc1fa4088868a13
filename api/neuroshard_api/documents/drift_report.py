"""What a trainer found of lasting slow-downs: the times before and since, and the cause of each change."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import Count, Milliseconds, PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.run_document import RunDocument
from neuroshard_api.documents.step_report import RankTimes
from neuroshard_api.documents.tables import TableName


class SlowdownCause(StrEnum):
    """Why steps take longer."""

    INPUTS_DRIFTED = "InputsDrifted"
    """Lookups changed, and explain the times of the ranks that hold their tables."""
    DEVICE_SLOW = "DeviceSlow"
    """Some ranks compute slower than their peers, forward and backward."""
    NODE_SLOW = "NodeSlow"
    """The same for all ranks of one node."""
    COMMUNICATION_SLOW = "CommunicationSlow"
    """The exchanges take longer, beyond the wait for slower ranks."""
    EVERYTHING_SLOW = "EverythingSlow"
    """All parts of all ranks take longer: another program, or lower clocks."""
    DENSE_SLOW = "DenseSlow"
    """The dense part takes longer, and lookups and exchanges do not."""
    DATA_LATE = "DataLate"
    """Training waits for its batches."""
    UNEXPLAINED = "Unexplained"
    """None of these; the evidence has the numbers."""


class StepPart(StrEnum):
    """What evidence is about."""

    STEP = "step"
    COMPUTE = "compute"
    """Lookup kernels, forward and backward, of the rank itself."""
    INPUT_EXCHANGE = "input_exchange"
    OUTPUT_EXCHANGE = "output_exchange"
    """Pooled embeddings, and their gradients."""
    DENSE = "dense"
    DATA_WAIT = "data_wait"


class Evidence(Value):
    """A time before and since the change."""

    part: StepPart
    rank: Count | None = None
    """If unset: the least over all ranks, which has no wait for slower ranks in it."""
    reference_ms: Milliseconds
    recent_ms: Milliseconds


class DriftChange(Value):
    """One lasting change and its cause."""

    cause: SlowdownCause
    ranks: tuple[Count, ...] = ()
    """Ranks that the cause is on. Empty: all."""
    tables: tuple[TableName, ...] = ()
    """Tables whose lookups changed."""
    since_step: Count
    """First step of the change, as the detector dates it."""
    evidence: Annotated[tuple[Evidence, ...], Field(min_length=1)]
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of what the step takes longer that the evidence accounts for, by the rank with most of each part; 0 for
    Unexplained. If unset: the trainer did not tell."""

    @model_validator(mode="after")
    def _tables_for_inputs(self) -> Self:
        if (self.cause is SlowdownCause.INPUTS_DRIFTED) != bool(self.tables):
            raise ValueError(
                f"tables: are named for {SlowdownCause.INPUTS_DRIFTED} and no other cause, found {self.cause}"
            )
        return self


def first_change(changes: Sequence[DriftChange], *causes: SlowdownCause) -> DriftChange | None:
    """Return the first change for one of these causes. None: there is none."""
    return next((change for change in changes if change.cause in causes), None)


class DriftReport(RunDocument):
    """Times of the steps that are the reference, those of recent steps, and what changed."""

    schema_name: ClassVar[str] = "drift-report/v1"

    schema_version: Literal["drift-report/v1"] = "drift-report/v1"
    last_step: Count
    """Number of the last step that was measured."""
    reference_steps: PositiveCount
    reference_first_step: Count | None = None
    """Number of the first of them. If unset: the trainer did not report it."""
    reference: Annotated[tuple[RankTimes, ...], Field(min_length=1)]
    """Medians of the first steps after the warm-up, by rank."""
    recent: Annotated[tuple[RankTimes, ...], Field(min_length=1)]
    """Medians of the last steps, of the same ranks."""
    changes: tuple[DriftChange, ...] = ()
    """Changes that last. Empty: steps are as they were."""
    checkpoint_ms: Milliseconds | None = None
    """Duration of the last checkpoint. If unset: there was none."""
    start_ms: Milliseconds | None = None
    """From the start of the process to the end of its first step. If unset: not known."""

    @property
    def slowdown(self) -> float:
        """Excess of the slowest rank's recent step over the reference's, as a share; 0 where it is not longer."""
        before, since = (max(times.step_ms for times in ranks) for ranks in (self.reference, self.recent))
        return max(0.0, since / before - 1) if before else 0.0

    @property
    def headline(self) -> str | None:
        """One line that names the changes; None where there is none."""
        if not self.changes:
            return None
        since = min(change.since_step for change in self.changes)
        causes = "; ".join(_cause_text(change) for change in self.changes)
        waits = "; times of the parts include waiting for the host" if self._is_host_bound else ""
        return f"since step {since:,} steps take {100 * self.slowdown:.0f} % longer: {causes}{waits}"

    @property
    def _is_host_bound(self) -> bool:
        """Whether the host bound a part that is evidence of a change, on the rank that it is of."""
        bound = {times.rank: times.host_bound for times in self.recent if times.host_bound is not None}
        return any(
            shares.binds(*_PARTS_OF[each.part])
            for change in self.changes
            for each in change.evidence
            for rank, shares in bound.items()
            if each.rank in {None, rank} and each.part in _PARTS_OF
        )

    @model_validator(mode="after")
    def _the_same_ranks(self) -> Self:
        before, since = ([times.rank for times in ranks] for ranks in (self.reference, self.recent))
        if len(set(before)) != len(before) or before != since:
            raise ValueError(f"recent[].rank: must be those of the reference, each once, found {before} and {since}")
        known = set(before)
        unknown = sorted({rank for change in self.changes for rank in change.ranks} - known)
        if unknown:
            raise ValueError(f"changes[].ranks: must be among {before}, found {unknown}")
        return self


_PARTS_OF = {
    StepPart.COMPUTE: ("forward_compute", "backward_compute"),
    StepPart.INPUT_EXCHANGE: ("input_communication",),
    StepPart.OUTPUT_EXCHANGE: ("forward_communication", "backward_communication"),
    StepPart.DENSE: ("dense_forward", "dense_backward", "dense_collectives"),
}
"""Parts of step reports' host-bound shares by part of an evidence."""
_MAX_NAMES = 3
"""Tables or ranks that a headline names."""


def _cause_text(change: DriftChange) -> str:
    """Return a cause with where it is: ``DeviceSlow, rank 3``."""
    tables = f"table{'s' * (len(change.tables) > 1)} {named(change.tables)}" if change.tables else ""
    ranks = f"rank{'s' * (len(change.ranks) > 1)} {named(change.ranks)}" if change.ranks else ""
    return ", ".join(filter(None, (change.cause.value, tables, ranks)))


def named(names: Sequence[object]) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(map(str, names[:_MAX_NAMES]))
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"
