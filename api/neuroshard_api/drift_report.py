"""What a trainer found of lasting slow-downs: the times before and since, and the cause of each change."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.bundle import Source
from neuroshard_api.counts import Count, PositiveCount
from neuroshard_api.document import Document, Value
from neuroshard_api.step_report import RankTimes
from neuroshard_api.tables import TableName

Milliseconds = Annotated[float, Field(ge=0)]


class Cause(StrEnum):
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

    cause: Cause
    ranks: tuple[Count, ...] = ()
    """Ranks that the cause is on. Empty: all."""
    tables: tuple[TableName, ...] = ()
    """Tables whose lookups changed."""
    since_step: Count
    """First step of the change, as the detector dates it."""
    evidence: Annotated[tuple[Evidence, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _tables_for_inputs(self) -> Self:
        if (self.cause is Cause.INPUTS_DRIFTED) != bool(self.tables):
            raise ValueError(f"tables: are named for {Cause.INPUTS_DRIFTED} and no other cause, found {self.cause}")
        return self


class DriftReport(Document):
    """Times of the steps that are the reference, those of recent steps, and what changed."""

    schema_name: ClassVar[str] = "drift-report/v1"

    schema_version: Literal["drift-report/v1"] = "drift-report/v1"
    source: Source
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the plan file that the ranks trained under, decompressed."""
    run_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """torchrun's id of the run that wrote it. If unset: not known."""
    last_step: Count
    """Last step that was looked at."""
    reference_steps: PositiveCount
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
