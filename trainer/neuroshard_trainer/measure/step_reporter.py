"""Measured times of training steps as StepReport documents: for this trainer, and in three lines for yours.

    reporter = StepReporter(model, Path("plan.json"), write=Path("step-report.json"))
    for batch in reporter.steps(batches):  # train as ever
        ...

Every rank measures itself: every step from begin to end, and one step in ten in parts. Every ``report_every`` steps
rank 0 collects the rolling medians and writes one report. Next to it, rank 0 writes whether steps became lastingly
slower, and why.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.step_report import (
    HostBoundShares,
    MeasuredCollective,
    MeasuredDuplication,
    RankTimes,
    StepReport,
)
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from numpy.typing import NDArray
from torch import nn
from torchrec.optim.keyed import KeyedOptimizerWrapper

from neuroshard_trainer.communication.codec_report import (
    RankCodecs,
    measured_communication,
    measured_gradients,
    taken_work,
)
from neuroshard_trainer.communication.codecs import Codecs
from neuroshard_trainer.communication.gradient_codec import GradientCodec, RankGradients
from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.drift.data_watch import SampleCount
from neuroshard_trainer.drift.watch import TIMES, DriftWatch, ReferenceTimes, process_age_ms
from neuroshard_trainer.files import write_file
from neuroshard_trainer.measure.core_loop import CoreLoop
from neuroshard_trainer.measure.dense_timers import DenseTimers
from neuroshard_trainer.measure.device_memory import measured_memory
from neuroshard_trainer.measure.embedding_timers import EmbeddingTimers
from neuroshard_trainer.measure.peer_waits import least_ms
from neuroshard_trainer.measure.processor_wait import ProcessorWait
from neuroshard_trainer.measure.step_marks import (
    COMMUNICATION,
    COMPUTE,
    DENSE,
    TIMED_EVERY,
    Interval,
    Member,
    StepMarks,
    TimedPart,
    is_timed,
)
from neuroshard_trainer.ranks.clocks import Clock, HostClock, Mark, clock_of
from neuroshard_trainer.ranks.run_identity import RunIdentity
from neuroshard_trainer.ranks.tracing import traced
from neuroshard_trainer.servers.model import ServedModel
from neuroshard_trainer.sharding.live_sharding import sharding_ranks

WINDOW_STEPS = 100
"""Steps that the medians are taken over."""
REPORT_EVERY_STEPS = 100
HOST_BOUND_SHARE = 0.1
"""Of a part's measured time, for which the device can have waited for the host: from there on the host bound it."""
MS_PER_SECOND = 1000.0
T = TypeVar("T")
R = TypeVar("R")
_Key = str | tuple[TimedPart, Member]
StepTimes = dict[_Key, float]
"""Milliseconds by field of RankTimes, and of each communication's parts by family."""
_NO_TIMES: StepTimes = dict.fromkeys(TIMES, 0.0)
_SYNC: _Key = (TimedPart.BACKWARD_COMMUNICATION, CollectiveKind.SYNC)
_KINDS: Mapping[Member, CollectiveKind] = {
    None: CollectiveKind.INDICES,
    Family.COLUMNS: CollectiveKind.ALL_TO_ALL,
    Family.ROWS: CollectiveKind.REDUCE_SCATTER,
    Family.NODE_ROWS: CollectiveKind.REDUCE_SCATTER,
    Family.REPLICATED: CollectiveKind.ALL_REDUCE,
    CollectiveKind.SYNC: CollectiveKind.SYNC,
}


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """The marks of one step."""

    begin: Mark
    end: Mark
    waits: tuple[tuple[Mark, Mark], ...]
    """For data."""
    intervals: tuple[Interval, ...]
    in_parts: bool = True
    """Whether it was timed in parts. If not, it has no intervals but those of averages of copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gathered:
    """What rank 0 collects of each rank for a report."""

    medians: Mapping[str, Any]
    """Fields of RankTimes."""
    exchange_ms: Mapping["_Key", float]
    """Median of each collective, with the waits for other ranks."""
    exchanges: Mapping[int, "StepTimes"]
    """Collectives by step."""
    peers: tuple[int, ...]
    """Ranks that shard tables together."""
    step_ms: NDArray[np.float32]
    """Of the steps since the report before; NaN for one whose times are none."""
    reference: Mapping[str, float] | None
    codecs: RankCodecs | None = None
    num_distinct: tuple[int, ...] = ()
    """Samples since the report before, and of each duplication group those that have lists of their own."""
    gradients: RankGradients | None = None


class StepReporter:
    """Times the steps of one rank.

    Args:
        model: with TorchRec's sharded embedding collections in it, after DistributedModelParallel.
        plan_file: the plan it trains under; reports carry its hash. One whose name ends in .gz is compressed.
        write: where rank 0 puts each report: a file, which is replaced, or a callable that takes it.
        report_every: steps between reports.
        window: steps that the medians are taken over, those of parts over one in ten of them (`step_marks.is_timed`);
            over all of a window of less than 20.
        first_step: number of the first step, for training that goes on from a checkpoint.
        group: process group of all ranks for the collecting. If unset: the default group.
        replicated_optimizer: of data_parallel tables, whose steps count as compute of the backward pass. None: there
            are no such tables.
        samples_per_step: of all ranks, for the report's samples per second. If unset: it has none.
        drift: folder for drift-report.json, input-statistics.json, and the state that lets a restart go on comparing.
            If True: that of the report's file, where there is one. If False: nothing watches for drift. The same on all
            ranks.
        drift_conditions: what, besides plan, device, ranks, and samples per step, must be the same for a restart to go
            on comparing.
        clock: marks and reads times. If unset: that of the model's device.
        columns: of the data, for what is found in them. If unset: it has no dense ones.
        first_sample: samples used before the first step. If unset: by ``samples_per_step``.
        groups: duplication groups that `count_distinct` counts. Empty: there are none.
        gradients: codec of the dense part's gradients. If unset: it has none.
        codecs: of the model's all-to-all; they take the reporter's clock. If unset: it has none.
    """

    def __init__(
        self,
        model: nn.Module,
        plan_file: Path,
        *,
        write: Path | Callable[[StepReport], None],
        report_every: int = REPORT_EVERY_STEPS,
        window: int = WINDOW_STEPS,
        first_step: int = 0,
        group: dist.ProcessGroup | None = None,
        replicated_optimizer: KeyedOptimizerWrapper | None = None,
        samples_per_step: int | None = None,
        drift: Path | bool = True,
        drift_conditions: str = "",
        columns: DataColumns | None = None,
        first_sample: int | None = None,
        clock: Clock | None = None,
        groups: Sequence[str] = (),
        codecs: Codecs | None = None,
        gradients: GradientCodec | None = None,
    ) -> None:
        self._gradients = gradients
        self._codecs = codecs
        self._groups = tuple(groups)
        self._num_samples = 0
        self._num_distinct = [0] * len(self._groups)
        device = _device_of(model)
        self._clock = clock_of(device) if clock is None else clock
        self._marks = StepMarks(self._clock)
        if codecs is not None:
            codecs.use_marks(self._marks)
        EmbeddingTimers(model, self._marks, replicated_optimizer)
        DenseTimers(model, self._marks)
        self._write = write
        self._report_every = report_every
        self._group = group
        self._run = RunIdentity.of(device, plan_file)
        self._next_step = first_step
        self._num_steps = 0
        """Since the start."""
        self._timed_every = max(1, min(TIMED_EVERY, window // TIMED_EVERY))
        self._begun: Mark | None = None
        self._waits: list[tuple[Mark, Mark]] = []
        self._unread: list[MarkedStep] = []
        self._samples_per_step = samples_per_step
        self._device = device
        self._peers = sharding_ranks(model)
        self._served = next((module for module in model.modules() if isinstance(module, ServedModel)), None)
        self._steps: deque[_StepMs] = deque(maxlen=window)
        self._parts: deque[_StepParts] = deque(maxlen=max(1, window // self._timed_every))
        self._reference = ReferenceTimes()
        self._processor_wait = ProcessorWait()
        self._core_loop = CoreLoop() if isinstance(self._clock, HostClock) else None
        folder = drift if isinstance(drift, Path) else write.parent if drift and isinstance(write, Path) else None
        self.drift: DriftWatch | None = None
        """The drift watch, on rank 0; None on other ranks, and where nothing watches."""
        if folder is not None and dist.get_rank() == 0:
            world_size = dist.get_world_size(group)
            self.drift = DriftWatch(
                folder,
                run=self._run,
                plan_file=plan_file,
                world_size=world_size,
                local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
                conditions=f"{drift_conditions}; {samples_per_step or 'unknown'} samples per step",
                columns=columns,
                samples=None
                if samples_per_step is None
                else SampleCount(
                    first_step=first_step,
                    first_sample=first_step * samples_per_step if first_sample is None else first_sample,
                    per_step=samples_per_step,
                ),
            )

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; a step lasts from asking for its batch to ``end_step``, or to asking for the next.

        Ends with a report of the last steps. After a ``break`` call ``report`` yourself, on every rank.
        """
        return self.pipelined(batches, next)

    def pipelined(self, batches: Iterable[T], progress: Callable[[Iterator[T]], R]) -> Iterator[R]:
        """Yield the result of each call of a pipeline's ``progress``; a step lasts from the call to ``end_step``.

        A pipeline takes in the batches of later steps during a step; waiting for them is waiting in the step that does.
        Likewise, what of the indices' all-to-all a step does not wait for is not part of it.

        Args:
            batches: handed to ``progress`` as an iterator.
            progress: takes a step, and raises StopIteration after the last, as that of TorchRec's pipelines does.
        """
        iterator = self._watched(batches)
        while True:
            self._waits = []
            self._marks.start(in_parts=is_timed(self._num_steps, every=self._timed_every))
            self._begun = self._clock.mark()
            try:
                result = progress(iterator)
            except StopIteration:
                self._begun = None
                self._marks.stop()
                break
            yield result
            self.end_step()
            if self._next_step % self._report_every == 0:
                self.report()
        if self._unread:
            self.report()

    def _watched(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and mark the waiting for each. Each is of a step, in their order."""
        iterator = iter(batches)
        for step in count(self._next_step):
            asked = self._clock.mark() if self._marks.in_parts else None
            try:
                with traced("wait for data"):
                    batch = next(iterator)
            except StopIteration:
                return
            if self._marks.in_parts:
                self._waits.append((asked, self._clock.mark()))
            if self.drift is not None:
                self.drift.offer(step, batch)
            yield batch

    def count_distinct(self, num_samples: int, num_distinct: Sequence[int]) -> None:
        """Take in how many samples of a batch, in all and in each group, have lists of their own."""
        self._num_samples += num_samples
        self._num_distinct = [before + more for before, more in zip(self._num_distinct, num_distinct, strict=True)]

    def end_step(self) -> None:
        """End the step here, so that what is done before the next, such as an evaluation, is not part of it."""
        if self._begun is not None:
            in_parts, intervals = self._marks.in_parts, tuple(self._marks.stop())
            self._unread.append(MarkedStep(self._begun, self._clock.mark(), tuple(self._waits), intervals, in_parts))
            self._begun = None
            if in_parts and self._core_loop is not None:  # the step after is not timed in parts
                self._core_loop.look()
            self._next_step += 1
            self._num_steps += 1
            if self.drift is not None and self.drift.start_ms is None:
                self.drift.start_ms = process_age_ms()

    def forget_steps(self) -> None:
        """Leave all steps so far out of the next reports."""
        self._take_in()
        self._steps.clear()
        self._parts.clear()
        self._processor_wait.share_since_last()

    def report(self) -> StepReport | None:
        """Collect the medians of all ranks and write them. All ranks must call this, after at least one step.

        Returns:
            The report on rank 0, None on the others.
        """
        first_unread, num_unread = self._next_step - len(self._unread), len(self._unread)
        num_timed = sum(step.in_parts for step in self._unread)
        step_ms = self._take_in()
        steps = self._steps or [_StepMs(0.0, None)]
        parts = [each.times for each in self._parts] or [_NO_TIMES]
        medians = {key: median(each.get(key, 0.0) for each in parts) for key in parts[-1] if key != _SYNC}
        medians["step_ms"] = median(step.step_ms for step in steps)
        if any(step.sync_ms is not None for step in steps):  # not each step has one: the mean is the price of a step
            medians[_SYNC] = mean(step.sync_ms or 0.0 for step in steps)
            medians[TimedPart.BACKWARD_COMMUNICATION.value] += medians[_SYNC]
        own: dict[str, Any] = {key: ms for key, ms in medians.items() if isinstance(key, str)}
        own["host_bound"] = _host_bound_shares([each.host_bound for each in self._parts])
        own.update(measured_memory(self._device), processor_wait_share=self._processor_wait.share_since_last())
        if self._served is not None:
            own["server_hidden_ms"] = self._served.ahead.hidden_ms(own.get(TimedPart.SERVERS, 0.0))
        own["core_loop_ms"] = None if self._core_loop is None else self._core_loop.median_ms
        work = None if self._codecs is None else taken_work(self._codecs, self._clock)
        distinct = (self._num_samples, *self._num_distinct)
        of_gradients = None if self._gradients is None else self._gradients.take_work()
        gathered = _Gathered(
            medians=own,
            exchange_ms=_exchanges(medians),
            exchanges={each.number: _exchanges(each.times) for each in self._parts},
            peers=self._peers,
            step_ms=step_ms,
            reference=self._reference.medians,
            codecs=work,
            num_distinct=distinct,
            gradients=of_gradients,
        )
        self._num_samples, self._num_distinct = 0, [0] * len(self._groups)
        is_first = dist.get_rank() == 0
        everyone: list[_Gathered] | None = [gathered] * dist.get_world_size(self._group) if is_first else None
        dist.gather_object(gathered, everyone, dst=0, group=self._group)
        if everyone is None:
            return None
        duplication = _duplication(self._groups, [each.num_distinct for each in everyone])
        works = [each.codecs for each in everyone if each.codecs is not None]
        report = StepReport(
            source=self._run.source,
            plan_sha256=self._run.plan_sha256,
            run_id=self._run.run_id,
            first_step=self._next_step - len(steps),
            num_steps=len(steps),
            num_timed_steps=len(parts),
            samples_per_second=_samples_per_second(self._samples_per_step, [each.medians for each in everyone]),
            ranks=_rank_times(everyone),
            duplication=duplication,
            communication=measured_communication(works, num_unread, num_timed=num_timed) if works else None,
            gradients=measured_gradients([each.gradients for each in everyone if each.gradients is not None]),
        )
        if callable(self._write):
            self._write(report)
        else:
            write_file(self._write, report.to_json())
        if self.drift is not None:
            self.drift.add_steps(first_unread, [each.step_ms for each in everyone])
            references = [each.reference for each in everyone]
            self.drift.report(self._next_step - 1, report.ranks, references, num_recent=report.num_steps)
        return report

    def _take_in(self) -> NDArray[np.float32]:
        """Read the steps since the report before, and return how long each was; one whose times are none counts not."""
        step_ms = np.full(len(self._unread), np.nan, dtype=np.float32)
        first = self._next_step - len(self._unread)
        for number, step in enumerate(self._unread):
            times = step_times(self._clock, step)
            if all(math.isfinite(ms) and ms >= 0 for ms in times.values()):
                step_ms[number] = times["step_ms"]
                self._steps.append(_StepMs(times["step_ms"], times.get(_SYNC)))
                parts = _StepParts(first + number, times, host_bound_parts(step, times)) if step.in_parts else None
                if parts is not None:
                    self._parts.append(parts)
                if self._reference.medians is None:
                    self._add_to_reference(times, parts)
        self._unread.clear()
        return step_ms

    def _add_to_reference(self, times: StepTimes, parts: "_StepParts | None") -> None:
        own = None if parts is None else {key: ms for key, ms in times.items() if isinstance(key, str)}
        bound = None if parts is None else parts.host_bound
        self._reference.add(times["step_ms"], own, sync_ms=times.get(_SYNC, 0.0), host_bound=bound)


class _StepMs(NamedTuple):
    """What every step has."""

    step_ms: float
    sync_ms: float | None
    """Average of copies. None: it had none."""


class _StepParts(NamedTuple):
    """What a step that was timed in parts has besides."""

    number: int
    times: StepTimes
    host_bound: frozenset[TimedPart] | None
    """Parts that the host bound. None: the host is what computes."""


def _duplication(groups: Sequence[str], distinct: Sequence[Sequence[int]]) -> tuple[MeasuredDuplication, ...] | None:
    """Return the factors of groups from each rank's samples and distinct ones. None: nothing was counted."""
    num_samples, *totals = [sum(counts) for counts in zip(*distinct, strict=True)]
    if not num_samples or not groups:
        return None
    return tuple(
        MeasuredDuplication(group=group, factor=num_samples / total)
        for group, total in zip(groups, totals, strict=True)
    )


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _samples_per_second(samples_per_step: int | None, ranks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the throughput by the slowest rank's median step."""
    slowest_ms = max(times["step_ms"] for times in ranks)
    return None if samples_per_step is None or not slowest_ms else MS_PER_SECOND * samples_per_step / slowest_ms


def step_times(clock: Clock, step: MarkedStep) -> StepTimes:
    """Return the parts of one step. Communication counts only while nothing of the lookups is computed.

    An exchange of pooled embeddings counts only outside the index exchanges, of which a further collection has its own
    while that of the first is under way.
    """
    pairs = [*step.waits, *((interval.begin, interval.end) for interval in step.intervals)]
    marks = [step.begin, step.end, *(mark for pair in pairs for mark in pair)]
    times = _times_of(step, clock.read_ms(marks))
    on_processor = clock.read_processor_ms(marks) if step.in_parts else None
    if on_processor is not None:
        processor = _times_of(step, on_processor)
        times["compute_processor_ms"] = sum(processor[part.value] for part in COMPUTE)
        if all(part.value in processor for part in DENSE):
            passes = (TimedPart.DENSE_FORWARD, TimedPart.DENSE_BACKWARD)
            times["dense_processor_ms"] = sum(processor[part.value] for part in passes)
    return times


def _times_of(step: MarkedStep, marks_ms: Sequence[float]) -> StepTimes:
    """Return the parts of a step by the times of its marks: begin, end, and those of all waits and intervals."""
    begin_ms, step_end_ms, *ends = marks_ms
    ends_of_pairs = list(zip(ends[::2], ends[1::2], strict=True))
    waits, intervals = ends_of_pairs[: len(step.waits)], ends_of_pairs[len(step.waits) :]
    spans: dict[TimedPart, dict[Member, list[tuple[float, float]]]] = {part: {} for part in TimedPart}
    for interval, span in zip(step.intervals, intervals, strict=True):
        spans[interval.part].setdefault(interval.family, []).append(span)
    taken = [span for part in (*COMPUTE, TimedPart.EXPANSION) for family in spans[part].values() for span in family]
    times: StepTimes = {
        part.value: _covered_ms([span for family in spans[part].values() for span in family])
        for part in (*COMPUTE, TimedPart.EXPANSION)
    }
    if spans[TimedPart.SERVERS]:
        times[TimedPart.SERVERS.value] = _covered_ms(spans[TimedPart.SERVERS][None])
    families: StepTimes = {}
    for part in COMMUNICATION:
        own = _own_ms(spans[part], without=taken)
        taken += [span for family in spans[part].values() for span in family]
        families.update({(part, family): ms for family, ms in own.items()})
        times[part.value] = sum(ms for family, ms in own.items() if family is not CollectiveKind.SYNC)
    data_wait_ms, step_ms = _covered_ms(waits), step_end_ms - begin_ms
    dense_ms = max(0.0, step_ms - data_wait_ms - sum(times.values()) - families.get(_SYNC, 0.0))
    taken += [*waits, *(span for each in spans[TimedPart.SERVERS].values() for span in each)]
    dense = _dense_times({part: spans[part].get(None, []) for part in DENSE}, without=taken)
    return {**times, **families, **dense, "dense_ms": dense_ms, "data_wait_ms": data_wait_ms, "step_ms": step_ms}


def host_bound_parts(step: MarkedStep, times: StepTimes) -> frozenset[TimedPart] | None:
    """Return the parts in which the device can have waited for the host for a tenth of the measured time or longer.

    None: the host is what computes. A wait for embedding servers is one for other processes than this host's.
    """
    limits_ms: dict[TimedPart, float] = {}
    for interval in step.intervals:
        if interval.idle_limit_ms is None:
            return None
        if interval.part is TimedPart.SERVERS:
            continue
        limits_ms[interval.part] = limits_ms.get(interval.part, 0.0) + interval.idle_limit_ms
    return frozenset(
        part for part, limit_ms in limits_ms.items() if limit_ms and limit_ms >= HOST_BOUND_SHARE * times.get(part, 0.0)
    )


def _host_bound_shares(steps: Sequence[frozenset[TimedPart] | None]) -> HostBoundShares | None:
    """Return the share of steps in which the host bound a part. None: the host is what computes."""
    known = [parts for parts in steps if parts is not None]
    return HostBoundShares.of(known) if known else None


def _dense_times(
    spans: Mapping[TimedPart, Sequence[tuple[float, float]]], *, without: Sequence[tuple[float, float]]
) -> StepTimes:
    """Return the parts of the dense part's passes; none where there was no backward pass to time."""
    if not spans[TimedPart.DENSE_BACKWARD]:
        return {}
    collectives = spans[TimedPart.DENSE_COLLECTIVES]
    taken = {part: without if part is TimedPart.DENSE_COLLECTIVES else [*without, *collectives] for part in DENSE}
    return {part.value: _covered_ms(spans[part], without=taken[part]) for part in DENSE}


def _own_ms(
    spans: Mapping[Member, Sequence[tuple[float, float]]], *, without: Sequence[tuple[float, float]]
) -> dict[Member, float]:
    """Return the time of each family's spans; a moment in several counts for the family that ended first.

    Collectives of one group of ranks pass one after the other, in the order in which they are waited for.
    """
    taken, found = list(without), {}
    for family in sorted(spans, key=lambda family: max(end for _, end in spans[family])):
        found[family] = _covered_ms(spans[family], without=taken)
        taken += spans[family]
    return found


def _exchanges(times: StepTimes) -> StepTimes:
    """Return the times of collectives among those of a step."""
    return {key: ms for key, ms in times.items() if not isinstance(key, str) or key == TimedPart.DENSE_COLLECTIVES}


def _rank_times(everyone: Sequence[_Gathered]) -> tuple[RankTimes, ...]:
    """Return the times of all ranks, which tell the waits for other ranks where there are any."""
    groups = {each.peers for each in everyone}
    least = {peers: least_ms([everyone[rank].exchanges for rank in peers]) for peers in groups}
    of_all = least_ms([each.exchanges for each in everyone])
    return tuple(
        RankTimes(
            rank=rank,
            **each.medians,
            collectives=_collectives(each.exchange_ms, least[each.peers]),
            dense_peer_wait_ms=_wait_ms(each.exchange_ms, of_all, TimedPart.DENSE_COLLECTIVES.value),
        )
        for rank, each in enumerate(everyone)
    )


def _wait_ms(exchange_ms: Mapping[_Key, float], least: Mapping[_Key, float], *keys: _Key) -> float | None:
    """Return the part of some collectives' medians that is waiting. None: it is not known of any."""
    known = [max(0.0, exchange_ms[key] - least[key]) for key in keys if key in exchange_ms and key in least]
    return sum(known) if known else None


def _collectives(medians: Mapping[_Key, float], least: Mapping[_Key, float]) -> tuple[MeasuredCollective, ...]:
    """Return the collectives in the order of families, that of indices first."""
    found = []
    for family, kind in _KINDS.items():
        ways = {part: medians[part, family] for part in COMMUNICATION if (part, family) in medians}
        if ways:
            forward = [part for part in ways if part is not TimedPart.BACKWARD_COMMUNICATION]
            found.append(
                MeasuredCollective(
                    kind=kind,
                    family=family if isinstance(family, Family) else None,
                    forward_ms=sum(ways[part] for part in forward),
                    backward_ms=ways.get(TimedPart.BACKWARD_COMMUNICATION, 0.0),
                    forward_wait_ms=_wait_ms(medians, least, *((part, family) for part in forward)),
                    backward_wait_ms=_wait_ms(medians, least, (TimedPart.BACKWARD_COMMUNICATION, family)),
                )
            )
    return tuple(found)


def _covered_ms(spans: Sequence[tuple[float, float]], *, without: Sequence[tuple[float, float]] = ()) -> float:
    """Return the time covered by any of the spans and by none of ``without``."""
    if len(spans) == 1:  # of most parts of most steps
        begin, end = spans[0]
        if not any(first < end and begin < last for first, last in without):
            return end - begin
    changes = sorted(
        [(begin, 1, 0) for begin, _ in spans]
        + [(end, -1, 0) for _, end in spans]
        + [(begin, 0, 1) for begin, _ in without]
        + [(end, 0, -1) for _, end in without]
    )
    total, last, inside, outside = 0.0, 0.0, 0, 0
    for at, wanted, unwanted in changes:
        if inside and not outside:
            total += at - last
        last = at
        inside += wanted
        outside += unwanted
    return total
