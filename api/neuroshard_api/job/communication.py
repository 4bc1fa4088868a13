"""What a DLRMTrainingJob sends in narrow types: ``spec.training.communication`` and its settings."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from neuroshard_api.documents.communication import CommunicationChoices, WireType, WireTypes
from neuroshard_api.documents.counts import PositiveCount
from neuroshard_api.documents.gradient_exchange import GradientChoices, GradientExchange, GradientSettings, GradientType
from neuroshard_api.job.resource import ATOMIC, Part, PositiveDecimal, Rule

NARROWEST = (WireType.FP8, WireType.MX4, *(kind for kind in WireType if kind.is_sparse))
"""Types whose loss of gradients must be watched by a guard that can end it."""


class CommunicationPolicy(StrEnum):
    """Who chooses the types."""

    EXACT = "Exact"
    """Nobody: everything travels as it is."""
    AUTO = "Auto"
    """The planner, among the permitted ones, where that shortens the step."""
    FIXED = "Fixed"
    """The job."""


class GuardAction(StrEnum):
    """What follows from errors beyond the budget."""

    EXACT = "Exact"
    """Exact exchange from the next step on."""
    FAIL = "Fail"
    """The job fails."""
    REPORT = "Report"
    """It is reported alone."""


WireTypeList = Annotated[tuple[WireType, ...], Field(max_length=len(WireType), json_schema_extra=ATOMIC)]


class EmbeddingWires(Part):
    """Types in which pooled embeddings and their gradients travel between devices."""

    forward: WireTypeList = (WireType.FP16, WireType.INT8)
    """Of pooled embeddings. Auto: permitted types; Fixed: exactly one. FP32 is exact, and with Auto always permitted.
    FP16, BF16, INT8 (a scale for each 32 values), FP8 (a scale for each 128 values), MX4 (4 bits, an exponent for
    each 32 values), or TOP32, TOP16, TOP8 (the 32, 16, or 8 largest of each 128 values); CPUs have no BF16 and FP8."""
    backward: WireTypeList = (WireType.FP16,)
    """Of their gradients, likewise. FP16 gradients are scaled by a power of two, so that they do not become 0."""


GradientTypeList = Annotated[
    tuple[GradientType, ...], Field(min_length=1, max_length=len(GradientType), json_schema_extra=ATOMIC)
]


class Threshold(Part):
    """Settings of Threshold."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!quantity(string(self.keepPercent)).isGreaterThan(quantity('50'))",
            message="keepPercent must be at most 50",
            holds=lambda own: Decimal(own.keep_percent) <= 50,  # noqa: PLR2004 - percent
        ),
    )

    keep_percent: PositiveDecimal = "5"
    """Share of the gradients' entries that a step sends, in percent: the largest. There is room for a quarter more; all
    others are added to the next step's gradients."""
    refresh_steps: PositiveCount = 2000
    """Steps after which the threshold is computed again; at once where the kept share is below half of keepPercent, or
    above the room."""


class CommunicationGuard(Part):
    """Measures what narrow types do to the loss: the same held-out batch, forward with and without them, no update."""

    max_entropy_increase_percent: PositiveDecimal = "0.05"
    """Maximum relative change of the held-out batch's loss, in percent and in either direction: a model adapts to a
    codec, so that a wrong one can lower the loss as well."""
    check_every_steps: PositiveCount = 1000
    """Steps from one check to the next; a check costs two forward passes."""
    action: GuardAction = GuardAction.EXACT
    """What follows from three checks in a row above the maximum. Exact: exact exchange from the next step on; after 10
    further checks narrow types are tried once again. Fail: the job fails. Report: nothing but the report."""


class Communication(Part):
    """Narrow types for what travels between devices in a training step. Evaluations are always exact."""

    policy: CommunicationPolicy = CommunicationPolicy.EXACT
    """Exact: everything travels as it is. Auto: the planner chooses among the types that experimental.communication
    permits, for embeddings FP16 and INT8 unless it is set, where that is predicted to shorten the step by 2 %, or by
    the error of the cost models if that is more. Fixed: the types of experimental.communication."""


class WireSettings(Part):
    """Types for what travels between devices in a training step, and their guard."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=(
                "self.guard.action == 'Exact' || !self.embeddings.backward.exists(each, each in "
                f"{[each.value for each in NARROWEST]})"
            ),
            message=f"embeddings.backward {', '.join(NARROWEST)} need guard.action Exact"
            "; hint: set it, or take FP16, BF16, or INT8",
            holds=lambda own: (
                own.guard.action is GuardAction.EXACT or not any(each in NARROWEST for each in own.embeddings.backward)
            ),
        ),
        Rule(
            cel="!quantity(string(self.guard.maxEntropyIncreasePercent)).isGreaterThan(quantity('100'))",
            message="guard.maxEntropyIncreasePercent must be at most 100",
            holds=lambda own: Decimal(own.guard.max_entropy_increase_percent) <= 100,  # noqa: PLR2004 - percent
        ),
    )

    embeddings: EmbeddingWires = EmbeddingWires.model_construct()
    """Types for pooled embeddings and their gradients."""
    dense: GradientTypeList = (GradientType.FP32,)
    """Types of the replicated dense part's gradients. Auto: permitted types; Fixed: exactly one. FP32 is exact, and
    with Auto always permitted. FP16 or BF16; Threshold (the largest entries alone). Gradients of sharded units
    travel as they are."""
    threshold: Threshold = Threshold.model_construct()
    """Settings of Threshold."""
    guard: CommunicationGuard = CommunicationGuard.model_construct()
    """What watches the accuracy. It needs held-out samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowTypes:
    """What a job sends in narrow types."""

    policy: CommunicationPolicy
    settings: WireSettings

    @property
    def guard(self) -> CommunicationGuard:
        """What watches the accuracy."""
        return self.settings.guard

    @property
    def choices(self) -> CommunicationChoices | None:
        """What a plan may choose from. None: the types are given."""
        if self.policy is not CommunicationPolicy.AUTO:
            return None
        return CommunicationChoices(
            forward=self.settings.embeddings.forward,
            backward=self.settings.embeddings.backward,
        )

    @property
    def fixed(self) -> WireTypes | None:
        """The types that the job gives. None: it gives none but FP32."""
        if self.policy is not CommunicationPolicy.FIXED:
            return None
        types = WireTypes(forward=self.settings.embeddings.forward[0], backward=self.settings.embeddings.backward[0])
        return None if types.is_exact else types

    @property
    def gradient_choices(self) -> GradientChoices | None:
        """How gradients may travel. None: there is no choice but FP32."""
        if self.policy is not CommunicationPolicy.AUTO or set(self.settings.dense) == {GradientType.FP32}:
            return None
        return GradientChoices(
            types=self.settings.dense,
            **self._gradient_settings.model_dump(),
        )

    @property
    def fixed_gradients(self) -> GradientExchange | None:
        """How gradients travel by the job. None: as they are."""
        if self.policy is not CommunicationPolicy.FIXED or self.settings.dense[0] is GradientType.FP32:
            return None
        return GradientExchange(type=self.settings.dense[0], **self._gradient_settings.model_dump())

    @property
    def _gradient_settings(self) -> GradientSettings:
        return GradientSettings(
            keep_percent=float(self.settings.threshold.keep_percent),
            refresh_steps=self.settings.threshold.refresh_steps,
        )
