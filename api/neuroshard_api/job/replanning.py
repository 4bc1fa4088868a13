"""Further plans of a running DLRMTrainingJob: ``spec.replanning``, and their record, ``status.replanning``."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.counts import Count
from neuroshard_api.job.resource import ATOMIC, Part

MAX_PLANS_KEPT = 10
"""Plans in a job's history, the newest ones."""
MAX_AVOIDED_NODES = 2
"""Slow nodes that a job's workers avoid at once."""

_Small = Annotated[int, Field(ge=0, lt=2**31)]
_Percent = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Text = Annotated[str, Field(max_length=1024)]


class ReplanningMode(StrEnum):
    """What follows from changed inputs."""

    OFF = "Off"
    SUGGEST = "Suggest"
    AUTO = "Auto"


class Replanning(Part):
    """What the job does about inputs and nodes that changed since its plan was made."""

    mode: ReplanningMode = ReplanningMode.SUGGEST
    """Off makes no further plan. Suggest plans for changed inputs while training continues, and shows gain and price.
    Auto also restarts the workers from a checkpoint: under that plan where it pays, and away from a slow node."""
    max_replans: Annotated[int, Field(ge=0, le=100)] = 3
    """Maximum restarts for changed inputs or slow nodes over the life of the job."""


class TrainedPlan(Part):
    """A plan that the workers trained under."""

    hash: _Text
    """SHA-256 of the plan document."""
    placement_hash: _Text | None = None
    """SHA-256 of its placement without prices: plans for other inputs may have equal ones."""
    candidate: _Small | None = None
    """Number of the candidate that it was. If unset: it is the job's first plan."""
    reason: _Text
    """Why it was taken, in one CamelCase word: PlanWritten, InputsDrifted, NodeSlow, or PlanFailed, if the workers
    failed under the plan after it before that was measured."""
    message: _Text | None = None
    """Why it was taken, in a sentence with its numbers."""
    start_time: datetime
    """When it was decided on."""
    from_step: Count | None = None
    """Last measured step under the plan before."""
    predicted_microseconds: Count | None = None
    """Predicted time of the embedding part of a step, for the inputs that the plan was made for."""
    measured_microseconds: Count | None = None
    """Measured time of the embedding part of a step, as last reported."""
    predicted_when_measured_microseconds: Count | None = None
    """Predicted time for the inputs that the measured time is of. If unset: not known, and the measured time says
    nothing of other inputs."""
    predicted_gain_percent: _Percent | None = None
    """Predicted decrease of the embedding part of a step, of which a share is promised."""
    promised_gain_percent: _Percent | None = None
    """Expected decrease of the measured time, in percent of the time under the plan before."""
    measured_gain_percent: _Percent | None = None
    """Measured decrease; below 0 it is an increase."""


class CandidatePlan(Part):
    """A plan for changed inputs, made while training continues under another one."""

    number: _Small
    """Counts the candidates of the job, from 1 on."""
    since_step: Count
    """First step of the change that it was made for."""
    start_time: datetime
    """When it was asked for."""
    plan_name: _Text | None = None
    """ConfigMap that the plan would have. If unset: it is being made, or could not be made."""
    hash: _Text | None = None
    """SHA-256 of the plan document."""
    predicted_microseconds: Count | None = None
    """Predicted time of the embedding part of a step under the candidate."""
    incumbent_microseconds: Count | None = None
    """The same under the plan in force, for the same inputs."""
    gain_microseconds: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = None
    """Expected gain of a step."""
    price_milliseconds: Count | None = None
    """Checkpoint, start, and warm-up of a restart, as measured in this job. If unset: not all of them were measured."""
    verdict: _Text | None = None
    """What was decided, in one CamelCase word."""
    message: _Text | None = None
    """Why, in a sentence with its numbers."""


class AvoidedNode(Part):
    """A node that the workers avoid, since it was slow."""

    name: _Text
    """Its name."""
    time: datetime
    """When it was found slow; a day later it is avoided no more."""


class ReplanningStatus(Part):
    """Further plans of the job, and what came of them."""

    replans: _Small | None = None
    """Restarts for changed inputs or slow nodes."""
    accepted: _Small | None = None
    """Number of the candidate that is in force. If unset: the job's first plan is."""
    candidates: _Small | None = None
    """Candidates that were made."""
    candidate: CandidatePlan | None = None
    """The newest candidate that is not in force. If unset: there is none."""
    avoided_nodes: Annotated[
        tuple[AvoidedNode, ...], Field(max_length=MAX_AVOIDED_NODES, json_schema_extra=ATOMIC)
    ] = ()
    """Slow nodes that the workers avoid."""
    history: Annotated[tuple[TrainedPlan, ...], Field(max_length=MAX_PLANS_KEPT, json_schema_extra=ATOMIC)] = ()
    """Plans that the workers trained under, the newest last."""
