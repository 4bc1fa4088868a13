"""Everything between the gradients of a step and the next step: rates, clipping, and the dense part's optimizer."""

from math import sqrt

from neuroshard_api.job.training import Training
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizerWrapper

from neuroshard_trainer.dense.parallel import clip_gradients
from neuroshard_trainer.model.averaged_model import AveragedModel
from neuroshard_trainer.ranks.tracing import traced
from neuroshard_trainer.sharding.learning_rate import learning_rate_factor, set_learning_rate


class StepOptimizer:
    """What a loop or TorchRec's pipeline calls once in each step.

    The tables' optimizer is fused into their backward kernels, so its rate is set before the backward pass, and the
    norm that is clipped is that of the dense part. Tables that are data_parallel have an optimizer here, with the
    same rate, and are not clipped either. Its gradients are means over all ranks, so that every rank clips
    alike.

    Args:
        model: whose tables are trained by fused optimizers, but for data_parallel ones. The copies of an AveragedModel
            are averaged after its optimizers.
        dense_optimizer: of all parameters but the tables.
        replicated_optimizer: of data_parallel tables. None: there are none.
        training: rates, schedule and norm.
        step: steps done.
    """

    def __init__(
        self,
        model: DistributedModelParallel,
        dense_optimizer: KeyedOptimizerWrapper,
        replicated_optimizer: KeyedOptimizerWrapper | None,
        training: Training,
        *,
        step: int,
    ) -> None:
        self._model = model
        self._tables_optimizer = model.fused_optimizer
        self._dense_optimizer = dense_optimizer
        self._replicated_optimizer = replicated_optimizer
        self._training = training
        self._dense = list(dense_optimizer.params.values())
        self._step = step
        self._moment_scale = model.moment_scale if isinstance(model, AveragedModel) else 1
        self._factor: float | None = None
        """Of the rates that the optimizers have."""

    def zero_grad(self) -> None:
        """Begin a step: drop the old gradients and set this step's rates."""
        self.drop_gradients()
        factor = learning_rate_factor(self._training.learning_rate_schedule, self._step + 1)
        if factor == self._factor:
            return
        self._factor = factor
        set_learning_rate(self._dense_optimizer, factor * float(self._training.dense_learning_rate))
        tables_rate = factor * float(self._training.embedding_learning_rate)
        set_learning_rate(self._tables_optimizer, tables_rate * sqrt(self._moment_scale))
        if self._replicated_optimizer is not None:
            set_learning_rate(self._replicated_optimizer, tables_rate)
        self._tables_optimizer.step()  # hands the rate to the kernels; the tables themselves are updated in backward

    def drop_gradients(self) -> None:
        """Free the gradients of the last step."""
        self._dense_optimizer.zero_grad()
        if self._replicated_optimizer is not None:
            self._replicated_optimizer.zero_grad()

    def step(self) -> None:
        """Update the dense part and data_parallel tables by their gradients, and average copies where that is due."""
        with traced("optimizer"):
            if self._training.gradient_clip_norm is not None:
                clip_gradients(self._dense, float(self._training.gradient_clip_norm))
            self._dense_optimizer.step()
            if self._replicated_optimizer is not None:
                self._replicated_optimizer.step()
        if isinstance(self._model, AveragedModel):
            with traced("sync"):
                self._model.end_step()
        self._step += 1
