"""What the codecs of all ranks did, for a step report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.step_report import MeasuredCommunication, MeasuredGradients

from neuroshard_trainer.communication.codecs import Codecs, SwitchableCodec
from neuroshard_trainer.communication.gradient_codec import RankGradients
from neuroshard_trainer.ranks.clocks import Clock, Mark


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCodecs:
    """What the codecs of one rank did since the report before."""

    types: WireTypes
    is_encoded: bool
    forward_bytes: int
    backward_bytes: int
    encode_ms: float
    decode_ms: float
    errors: tuple[float | None, float | None]


def taken_work(codecs: Codecs, clock: Clock) -> RankCodecs:
    """Return this rank's part, and begin to count again.

    Args:
        codecs: of the model.
        clock: that made their marks.
    """
    both = (codecs.forward.take_work(), codecs.backward.take_work())
    return RankCodecs(
        types=codecs.types,
        is_encoded=codecs.is_on,
        forward_bytes=both[0].sent_bytes,
        backward_bytes=both[1].sent_bytes,
        encode_ms=sum(_total_ms(clock, work.encodings) for work in both),
        decode_ms=sum(_total_ms(clock, work.decodings) for work in both),
        errors=(_error(codecs.forward), _error(codecs.backward)),
    )


def measured_communication(ranks: Sequence[RankCodecs], num_steps: int, *, num_timed: int) -> MeasuredCommunication:
    """Return the mean communication of all ranks in a step.

    Args:
        ranks: what each did.
        num_steps: steps that the bytes are of.
        num_timed: those of them that the times are of.
    """
    steps, timed = max(num_steps, 1), max(num_timed, 1)
    first = ranks[0]
    forward_error, backward_error = (
        max((each.errors[index] or 0.0 for each in ranks), default=0.0) if first.errors[index] is not None else None
        for index in (0, 1)
    )
    return MeasuredCommunication(
        **first.types.model_dump(),
        is_encoded=first.is_encoded,
        forward_bytes=sum(each.forward_bytes for each in ranks) / steps,
        backward_bytes=sum(each.backward_bytes for each in ranks) / steps,
        encode_ms=max(each.encode_ms for each in ranks) / timed,
        decode_ms=max(each.decode_ms for each in ranks) / timed,
        forward_error=forward_error,
        backward_error=backward_error,
    )


def measured_gradients(ranks: Sequence[RankGradients]) -> MeasuredGradients | None:
    """Return the mean work of all ranks' gradient codecs in a step. None: there are none."""
    if not ranks:
        return None
    shares = [each.kept_share for each in ranks if each.kept_share is not None]
    return MeasuredGradients(
        type=ranks[0].type,
        is_encoded=ranks[0].is_encoded,
        sent_bytes=sum(each.step_bytes for each in ranks),
        kept_percent=100 * sum(shares) / len(shares) if shares else None,
    )


def _total_ms(clock: Clock, intervals: Sequence[tuple[Mark, Mark]]) -> float:
    if not intervals:
        return 0.0
    times = clock.read_ms([mark for pair in intervals for mark in pair])
    return max(sum(end - begin for begin, end in zip(times[::2], times[1::2], strict=True)), 0.0)


def _error(codec: SwitchableCodec) -> float | None:
    """Return the error that was measured last. None: none was, or it is not finite."""
    found = None if codec.error is None else float(codec.error)
    return found if found is not None and math.isfinite(found) else None
