"""The training loop of one rank: steps, evaluations, checkpoints, progress. Builds nothing."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.finding import FindingKind
from neuroshard_api.documents.progress import GuardState
from neuroshard_api.job.replanning import ReplanningMode
from neuroshard_api.job.training import Checkpoint, Training
from neuroshard_api.job.trial import LEAST_TIMED_STEPS
from neuroshard_api.lifecycle.restart_price import is_checkpoint_due
from neuroshard_api.process.errors import InputError, StorageError
from torch.nn.functional import binary_cross_entropy_with_logits

from neuroshard_trainer.communication.gradient_guard import GradientGuard
from neuroshard_trainer.communication.guard import Guard
from neuroshard_trainer.data.batches import Batch, counted
from neuroshard_trainer.data.training_data import TrainingData
from neuroshard_trainer.divergence import LARGE_LOSS, Divergence, divergence_of
from neuroshard_trainer.errors import StoppedError
from neuroshard_trainer.measure.step_reporter import StepReporter
from neuroshard_trainer.measure.tensorboard import Show
from neuroshard_trainer.metrics import DIVERGED_REMEDY
from neuroshard_trainer.pipeline import BatchPipeline
from neuroshard_trainer.progress import Progress
from neuroshard_trainer.ranks.precision import autocast
from neuroshard_trainer.ranks.process import Process
from neuroshard_trainer.ranks.stopping import StepVote, Wish
from neuroshard_trainer.ranks.tracing import Trace, traced
from neuroshard_trainer.schedule import Schedule
from neuroshard_trainer.servers.lookahead import Lookahead
from neuroshard_trainer.servers.process import ServerReporter
from neuroshard_trainer.sharding.optimizer_step import set_optimizer_step
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from neuroshard_trainer.state.checkpoint import CheckpointManifest, has_earlier
from neuroshard_trainer.state.saver import Saver
from neuroshard_trainer.state.training_state import TrainingState
from neuroshard_trainer.variants import Scores, mean_losses, shown, summed

logger = logging.getLogger(__name__)
_LOSSES_AT_ONCE = 100
"""Losses that are added up by one launch."""


class TrainingLoop:
    """Trains, on all ranks together.

    Args:
        state: model and optimizers, as they are after ``schedule.first_step``.
        data: batches of this rank.
        schedule: which steps there are.
        training, checkpoint, replanning_mode, avoids_slow_nodes: the job's settings.
        is_pipelined: whether TorchRec's pipeline takes in the batches.
        looks_ahead: whether rows on embedding servers are looked up a step early.
        keeps_checkpoints: whether checkpoints outlive the workers.
        saver: writes the state.
        manifest: of a checkpoint that would be written now; step and position are filled in.
        reporter: of step times.
        process: this process.
        progress_file: what rank 0 writes now and then.
        trace: of some steps of this rank.
        show: takes the loss at each line of the log, and the metrics of each evaluation.
        variants: how each variant trains, by its name. If unset: there is one model.
        guard: of narrow types. If unset: everything travels as it is.
        gradient_guard: of the dense part's gradients. If unset: they travel as they are.
        resumed_from: checkpoint that the state is of. If unset: there is none.
        clock: seconds, for checkpoints by time and votes.
    """

    def __init__(
        self,
        *,
        state: TrainingState,
        data: TrainingData,
        schedule: Schedule,
        training: Training,
        is_pipelined: bool,
        looks_ahead: bool = False,
        checkpoint: Checkpoint,
        replanning_mode: ReplanningMode,
        avoids_slow_nodes: bool,
        keeps_checkpoints: bool,
        saver: Saver,
        manifest: CheckpointManifest,
        reporter: StepReporter | ServerReporter,
        process: Process,
        progress_file: Path,
        trace: Trace,
        show: Show,
        variants: Mapping[str, Training] | None = None,
        guard: Guard | None = None,
        gradient_guard: GradientGuard | None = None,
        resumed_from: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._data = data
        self._schedule = schedule
        self._training = training
        self._checkpoint = checkpoint
        self._replanning_mode = replanning_mode
        self._avoids_slow_nodes = avoids_slow_nodes
        self._keeps_checkpoints = keeps_checkpoints
        self._saver = saver
        self._trace = trace
        self._show = show
        self._guard = guard
        self._gradient_guard = gradient_guard
        self._guarded: list[Batch] = []
        """The held-out batches of the guard, with the samples of a step, once they were needed."""
        self._manifest = manifest
        self._reporter = reporter
        self._process = process
        self._optimizer = StepOptimizer(
            state.model,
            state.dense_optimizer,
            state.replicated_optimizer,
            training,
            step=schedule.first_step,
            variants=variants,
        )
        self._pipeline = self._new_pipeline(is_pipelined=is_pipelined, looks_ahead=looks_ahead)
        self._progress = Progress(progress_file, schedule, process, plan_sha256=manifest.plan_sha256)
        if reporter.drift is not None:
            self._progress.findings = reporter.drift.data.findings
        self._variants = tuple(variants or ())
        self._scores = Scores(self._variants, self._progress.diverged)
        self._saved_step: int | None = None
        """Step whose state is saved, or being saved."""
        if resumed_from is not None:
            self._saved_step = schedule.first_step
            self._progress.checkpoint = (schedule.first_step, resumed_from)
        self._clock = clock
        self._saved_at_s = clock()
        self._has_begun_save = False
        """Whether this start began a checkpoint, whose duration may not be known yet."""
        self.step = schedule.first_step
        """Steps done."""
        if guard is not None:
            self._progress.guard = guard.record
        if gradient_guard is not None:
            self._progress.gradient_guard = gradient_guard.record
        self._evaluated_step: int | None = None
        self._loss_sum = torch.zeros(self._scores.shape, device=process.device)
        """Of this rank's losses since the last line of the log, but for the last ones."""
        self._last_losses: list[torch.Tensor] = []
        """Those that are not in the sum yet: an addition in each step would be a launch in each step."""
        self._summed_losses: list[torch.Tensor] = []
        """Those that are, to tell the step of one that is not finite."""
        self._num_losses = 0
        self._num_labels = self._num_positive = 0
        """Of this rank since the last line of the log: all labels, and those that are 1."""

    @property
    def has_trained(self) -> bool:
        """Whether a step was taken since the start of this process."""
        return self.step > self._schedule.first_step

    def _new_pipeline(self, *, is_pipelined: bool, looks_ahead: bool) -> BatchPipeline | Lookahead | None:
        """Return the pipeline that prepares batches during steps. None: no step overlaps with the next one."""
        model, optimizer = self._state.model, self._optimizer
        if looks_ahead:
            step, is_exact = self._schedule.first_step, self._schedule.ends_epoch
            return Lookahead(model, optimizer, self._loss, step=step, is_exact=is_exact)
        return BatchPipeline(model, optimizer, self._loss, self._process.device) if is_pipelined else None

    def run(self) -> Mapping[str, float]:
        """Train to the end and return the last metrics.

        The state is saved before it is evaluated: whatever ends an evaluation, a signal or a lost rank, costs no step.
        An error of the input, also of this rank alone, lets a checkpoint in flight become whole first.

        Raises:
            StoppedError: a rank was asked to stop; the state is saved.
            StorageError: a checkpoint or the progress cannot be written.
            DataError: a sample cannot be used.
            InputError: the loss or a logit is not finite.
        """
        vote = StepVote(self._process.group, clock=self._clock)
        undo = vote.listen()
        try:
            with self._trace:
                self._train(vote)
            if self._num_losses:  # of the steps after the last line: a short training has no other
                self._log()
            vote.close()
            self._save()
            self._evaluate(vote)
            vote.close()
            self._saver.prune(self._finish_save())
        except InputError:  # the state that is being written was finite, and the other ranks' threads write on
            with contextlib.suppress(StorageError, RuntimeError):
                self._saver.wait()
            self._note_saved()
            raise
        finally:
            undo()
        if self._reporter.drift is not None:  # the reporter has seen the last steps since
            self._progress.findings = self._reporter.drift.findings()
        self._progress.write(self.step)
        return self._progress.metrics

    def try_out(self, *, warm_up_steps: int) -> None:
        """Take all steps, fewer where a checkpoint by time would be due, and save and evaluate nothing.

        A signal ends this process at once. The report is of the steps after the first ones. Where the time is over
        before there are `LEAST_TIMED_STEPS` of them, there is none. Raises as `run` does.
        """
        vote = StepVote(self._process.group, clock=self._clock)
        for wish in self._steps(vote):
            self._check_narrow_types()
            self._check_gradients()
            if self.step == warm_up_steps:
                self._reporter.forget_steps()
            if wish is Wish.SAVE:
                if self.step >= warm_up_steps + LEAST_TIMED_STEPS:
                    self._reporter.report()
                break
        vote.close()

    def _train(self, vote: StepVote) -> None:
        for wish in self._steps(vote):
            if self.step % self._training.log_every_steps == 0:
                self._log()
            if wish is Wish.STOP:
                raise self._stopped(vote)
            self._check_narrow_types()
            self._check_gradients()
            if self.step < self._schedule.num_steps:  # what is due at the end comes after the loop
                self._after_step(vote, save=wish is Wish.SAVE)
                if self._reached_target():
                    self._reporter.report()
                    return

    def _steps(self, vote: StepVote) -> Iterator[Wish]:
        """Take all steps, and give the next action of all ranks after each."""
        self._trace.begin_step(self.step)
        for loss in self._losses():
            self._add_loss(loss)
            wish = self._wish(vote, save_is_due=self._save_is_due())
            self._reporter.end_step()
            self.step += 1
            self._trace.begin_step(self.step)
            yield wish

    def _wish(self, vote: StepVote, *, save_is_due: bool) -> Wish:
        """Return the next action of all ranks. Raises StorageError on all where a background checkpoint failed."""
        wish = vote.wish(save_is_due=save_is_due, save_has_failed=self._saver.has_failed)
        if wish is Wish.FAIL:
            self._saver.wait()
        self._note_saved()
        return wish

    def _stopped(self, vote: StepVote) -> StoppedError:
        """Save the state and return the end of an orderly stop."""
        vote.close()
        self._save()
        path = self._finish_save()
        return StoppedError(f"asked to stop; step {self.step} is saved in {path}, start again to go on from it")

    def _losses(self) -> Iterator[torch.Tensor]:
        """Train on all batches, and give the loss of this rank's samples after each. Gradients are means over ranks."""
        size = self._schedule.global_batch_size
        positions = range(self._schedule.first_position, self._schedule.position(self._schedule.num_steps), size)
        if self._pipeline is not None:
            copies_itself = isinstance(self._pipeline, BatchPipeline)
            device = torch.device("cpu") if copies_itself else self._process.device
            batches = counted(self._data.training(positions, device), self._reporter.count_distinct)
            yield from self._reporter.pipelined(batches, self._pipeline.progress)
            return
        batches = counted(self._data.training(positions, self._process.device), self._reporter.count_distinct)
        for batch in self._reporter.steps(batches):
            self._optimizer.zero_grad()
            loss = self._loss(batch)
            with traced("backward"):
                torch.autograd.backward(summed(loss))
            self._optimizer.step()
            yield loss.detach()

    def _loss(self, batch: Batch) -> torch.Tensor:
        with traced("forward"):
            if self._process.is_server:
                return self._logits(batch).sum()  # of no samples: 0, whose gradients make the trainers' arrive
            self._num_labels += batch.num_real
            self._num_positive += batch.num_positive
            return mean_losses(self._logits(batch), batch.labels)

    def _logits(self, batch: Batch) -> torch.Tensor:
        with autocast(self._training.precision, self._process.device):
            logits: torch.Tensor = self._state.model(*batch.inputs)
        return logits.float()

    def _reached_target(self) -> bool:
        """Whether the last evaluation's AUC, less its error, is the one that the job wants."""
        target, metrics = self._training.target_auc, self._progress.metrics
        if target is None or "auc" not in metrics or metrics["auc"] - metrics["auc_error"] < float(target):
            return False
        self._progress.log(self.step, f"auc {metrics['auc']:.5f} has reached spec.training.targetAuc {target}")
        return True

    def _save_is_due(self) -> bool:
        """Return whether this rank wants a checkpoint: by time, or, on rank 0, for the price of a restart."""
        interval_s = self._checkpoint.interval_seconds
        if interval_s is not None and self._clock() - self._saved_at_s >= interval_s:
            return True
        drift = self._reporter.drift
        if drift is None or self._has_begun_save:
            return False
        return is_checkpoint_due(
            self._replanning_mode,
            drift.causes,
            checkpoint_ms=drift.checkpoint_ms,
            avoids_slow_nodes=self._avoids_slow_nodes,
            keeps_checkpoints=self._keeps_checkpoints,
        )

    def _after_step(self, vote: StepVote, *, save: bool) -> None:
        every = self._checkpoint.every_steps
        if save or (every is not None and self.step % every == 0):
            self._save()
            self._progress.write(self.step)
        every = self._training.eval_every_steps
        if self._schedule.ends_epoch(self.step) if every is None else self.step % every == 0:
            self._evaluate(vote)

    def _check_narrow_types(self) -> None:
        """Let the guard check where that is due. Raises InputError where the job fails by it."""
        guard = self._guard
        if guard is None or not guard.is_due(self.step):
            return
        with self._without_updates("check of narrow types"):
            has_changed = guard.check(self.step, self._held_out_loss)
        guard.codecs.measure_errors()
        self._progress.guard = guard.record
        if has_changed:
            state = "suspended: exchange is exact" if guard.record.state is GuardState.SUSPENDED else "tried once again"
            self._progress.log(self.step, f"{guard.codecs.types.text} {state}")
            self._progress.write(self.step)

    def _check_gradients(self) -> None:
        """Let the guard of gradients check where that is due. Raises InputError where the job fails by it."""
        guard = self._gradient_guard
        if guard is None or not guard.is_due(self.step):
            return
        has_changed = guard.check(self.step)
        self._progress.gradient_guard = guard.record
        if has_changed:
            state = "suspended: they travel whole" if guard.record.state is GuardState.SUSPENDED else "tried once again"
            self._progress.log(self.step, f"gradients by {guard.codec.exchange.type} {state}")
            self._progress.write(self.step)

    def _held_out_loss(self) -> torch.Tensor:
        """Return the sum of the losses of this rank's first held-out samples, about as many as it has in a step."""
        if not self._guarded:
            count = -(-self._data.global_batch_size // self._data.evaluate.global_batch_size)
            self._guarded = list(islice(self._data.validation(self._process.device), count))
        losses = torch.zeros((), device=self._process.device)
        for batch in self._guarded:
            logits, labels = self._logits(batch)[: batch.num_real], batch.labels[: batch.num_real]
            losses += binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        return losses

    def _log(self) -> None:
        """Write down the mean loss of all ranks since the last line."""
        means, num_labels, num_positive = self._mean_losses()
        self._progress.add_losses(self.step, means, self._scores.diverged)
        self._warn_of_large(means)
        if self._reporter.drift is not None:
            self._reporter.drift.data.add_report(
                self.step - 1, means["loss"], num_positive=num_positive, num_samples=num_labels
            )
            self._progress.findings = self._reporter.drift.findings()
        self._loss_sum.zero_()
        self._summed_losses.clear()
        self._num_losses = self._num_labels = self._num_positive = 0
        self._show(self.step, means)
        self._progress.log(self.step, shown(means, self._scores.best))
        self._progress.write(self.step)

    def _warn_of_large(self, means: Mapping[str, float]) -> None:
        """Warn once of a loss that has exploded, and of that of each variant."""
        if not self._variants and means["loss"] >= LARGE_LOSS and not self._progress.has_exploded:
            found = self._divergence(FindingKind.LOSS_EXPLODED)
            self._progress.has_exploded = True
            self._progress.explosion = None if found is None else found.finding
            self._warn_of(found)
        for index, name in enumerate(self._variants):
            if means.get(f"{name}/loss", 0.0) < LARGE_LOSS or name in self._scores.exploded:
                continue
            self._scores.exploded.add(name)
            found = self._divergence(FindingKind.LOSS_EXPLODED, variant=index)
            self._warn_of(found, before=f"variant {name!r}: ", after=f"; hint: {DIVERGED_REMEDY}")

    def _warn_of(self, found: Divergence | None, *, before: str = "", after: str = "") -> None:
        if found is not None and self._process.is_first:
            place = f" in {found.place}" if found.place else ""
            logger.warning("%s%s%s%s", before, found.finding.text, place, after)

    def _add_loss(self, loss: torch.Tensor) -> None:
        self._last_losses.append(loss)
        self._num_losses += 1
        if len(self._last_losses) == _LOSSES_AT_ONCE:
            self._sum_losses()

    def _sum_losses(self) -> None:
        """Take the last losses into the sum."""
        if self._last_losses:
            self._summed_losses.append(torch.stack(self._last_losses))
            self._loss_sum += self._summed_losses[-1].sum(dim=0)
            self._last_losses.clear()

    def _mean_losses(self) -> tuple[dict[str, float], int, int]:
        """Return the mean loss of all ranks since the last line of the log, all labels, and those that are 1.

        Raises:
            InputError: the loss is not finite.
        """
        self._sum_losses()
        count = 0 if self._process.is_server else self._num_losses
        sums = torch.tensor(
            [*self._loss_sum.view(-1).tolist(), count, self._num_labels, self._num_positive], dtype=torch.float64
        )
        dist.all_reduce(sums, group=self._process.group)
        *losses, count, num_labels, num_positive = sums.tolist()
        means = [each / max(1, count) for each in losses]
        if not self._variants and not math.isfinite(means[0]):
            raise self._diverged(means[0])
        return self._scores.losses(self.step, means), int(num_labels), int(num_positive)

    def _divergence(self, kind: FindingKind, *, variant: int | None = None) -> Divergence | None:
        """Return since when the loss, or that of a variant, has exploded, and which value of the data is unusual."""
        summed = torch.cat(self._summed_losses) if self._summed_losses else torch.zeros((0, len(self._variants)))
        losses = (summed if variant is None else summed[:, variant]).tolist()
        return divergence_of(
            kind,
            [] if self._process.is_server else losses,
            first_step=self.step - self._num_losses,
            data=self._data.train,
            columns=self._data.columns,
            schedule=self._schedule,
            group=self._process.group,
        )

    def _diverged(self, mean: float) -> InputError:
        """Note the cause of a loss that is not finite, and return the error of it."""
        found = self._divergence(FindingKind.LOSS_NOT_FINITE)
        if found is None:
            return InputError(f"step {self.step}: the loss is {mean}; hint: {DIVERGED_REMEDY}")
        self._progress.explosion = found.finding
        self._progress.write(self.step)
        cause = f", {found.finding.cause} in {found.place}" if found.place else ""
        remedy = "fix or drop the row" if found.place else DIVERGED_REMEDY
        return InputError(
            f"step {self.step}: the loss is {mean}{cause}; began in {found.finding.where}; hint: {remedy}"
        )

    def _evaluate(self, vote: StepVote) -> None:
        """Evaluate unless this step's state was. Raises StoppedError where a rank is asked to stop meanwhile."""
        if not self._data.num_validation or self._evaluated_step == self.step:
            return
        self._evaluated_step = self.step
        self._state.agree()
        evaluations = self._scores.evaluations(self._process.group)
        is_stopped = False
        exact = contextlib.nullcontext() if self._guard is None else self._guard.codecs.apart(on=False)
        with self._without_updates("evaluation"), exact:
            for batch in self._data.validation(self._process.device):
                is_stopped = self._wish(vote, save_is_due=False) is Wish.STOP
                if is_stopped:
                    break
                logits = self._logits(batch)
                self._scores.add(evaluations, logits[: batch.num_real], batch.labels[: batch.num_real])
        if is_stopped:
            raise self._stopped(vote)
        try:
            metrics, reason = self._scores.metrics(self.step, evaluations)
        except InputError as error:
            raise InputError(f"step {self.step}: {error}{self._saved_already()}") from error
        self._progress.add_evaluation(self.step, metrics, self._scores.diverged)
        self._show(self.step, metrics)
        self._progress.log(self.step, shown(metrics, self._scores.best) if reason is None else f"no auc: {reason}")

    @contextlib.contextmanager
    def _without_updates(self, name: str) -> Iterator[None]:
        """Have forward passes within train nothing, and show as ``name`` in traces."""
        model = self._state.model
        if self._pipeline is not None:
            self._pipeline.detach()
        self._optimizer.drop_gradients()  # no step has them next to the weights that zero2 gathers in forward
        model.eval()
        with torch.no_grad(), traced(name):
            yield
        model.train()
        set_optimizer_step(model, self.step)

    def _saved_already(self) -> str:
        """Return the advice about a checkpoint of this step, which was written before its evaluation.

        None where it could not be written: the input is at fault, and a run with more storage would diverge again.
        """
        if self._saved_step != self.step:
            return ""
        try:
            saved = self._finish_save()
        except StorageError:
            return ""
        remedy = "resume from the one before" if has_earlier(saved) else "start from the first step"
        return f"; hint: remove {saved} to {remedy}"

    def _save(self) -> None:
        """Begin to save the state, unless this step's is or was."""
        if self._saved_step == self.step:
            return
        self._mean_losses()  # a diverged state would be resumed from ever after
        if isinstance(self._pipeline, Lookahead):
            self._pipeline.look_up_again()  # as the first step of a start from this state does
        self._state.agree()
        where: dict[str, object] = {"step": self.step, "position": self._schedule.position(self.step)}
        if self._guard is not None:
            where["guard"] = self._guard.record
        if self._gradient_guard is not None:
            where["gradient_guard"] = self._gradient_guard.record
        self._saver.begin(self._state.tensors(), self._manifest.model_copy(update=where))
        self._progress.checkpoint_stop_ms = self._saver.stop_ms
        self._saved_step = self.step
        self._saved_at_s = self._clock()
        self._has_begun_save = True
        self._note_saved()

    def _finish_save(self) -> Path:
        """Wait until the state that was saved last is whole, and return where. Raises StorageError."""
        self._saver.wait()
        self._note_saved()
        assert self._progress.checkpoint is not None, "something was saved or resumed from"
        return self._progress.checkpoint[1]

    def _note_saved(self) -> None:
        """Show a checkpoint that has become whole."""
        found = self._saver.newest
        if found is not None and found != self._progress.checkpoint:
            self._progress.checkpoint = found
            self._progress.log(self.step, f"checkpoint {found[1]}")
            if self._reporter.drift is not None:
                self._reporter.drift.checkpoint_ms = self._saver.duration_ms
