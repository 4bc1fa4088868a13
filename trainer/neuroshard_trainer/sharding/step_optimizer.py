"""Everything between the gradients of a step and the next step: rates, clipping, and the dense part's optimizer."""

from collections.abc import Mapping
from math import sqrt

import torch
from neuroshard_api.job.training import Training
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper

from neuroshard_trainer.dense.parallel import clip_gradients
from neuroshard_trainer.model.averaged_model import AveragedModel
from neuroshard_trainer.model.variant_model import variant_of
from neuroshard_trainer.ranks.tracing import traced
from neuroshard_trainer.servers.model import ServerModel
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
        variants: rates and norms of variants, whose parameters have names of their own. If unset: there are none.
    """

    def __init__(
        self,
        model: DistributedModelParallel | ServerModel,
        dense_optimizer: KeyedOptimizer,
        replicated_optimizer: KeyedOptimizerWrapper | None,
        training: Training,
        *,
        step: int,
        variants: Mapping[str, Training] | None = None,
    ) -> None:
        self._model = model
        self._tables_optimizer = model.fused_optimizer
        self._dense_optimizer = dense_optimizer
        self._replicated_optimizer = replicated_optimizer
        self._training = training
        self._variants = variants or {}
        self._clipped: dict[str | None, list[torch.Tensor]] = {}
        """Weights of the dense part with a norm over their gradients, by variant."""
        for name, weight in dense_optimizer.params.items():
            self._clipped.setdefault(variant_of(name) if variants else None, []).append(weight)
        self._step = step
        self._moment_scale = model.moment_scale if isinstance(model, AveragedModel) else 1
        self._factor: float | None = None
        """Of the rates that the optimizers have."""

    def zero_grad(self) -> None:
        """Begin a step: drop the old gradients and set this step's rates."""
        self.drop_gradients()
        self.set_rates(self._step + 1)

    def set_rates(self, step: int) -> None:
        """Set the rates of a step, numbered from 1. FBGEMM updates a batch's rows by the rate of its forward pass."""
        factor = learning_rate_factor(self._training.learning_rate_schedule, step)
        if factor == self._factor:
            return
        self._factor = factor

        def tables_rate(name: str) -> float:
            return factor * float(self._training_of(name).embedding_learning_rate)

        set_learning_rate(
            self._dense_optimizer, lambda name: factor * float(self._training_of(name).dense_learning_rate)
        )
        set_learning_rate(self._tables_optimizer, lambda name: tables_rate(name) * sqrt(self._moment_scale))
        if self._replicated_optimizer is not None:
            set_learning_rate(self._replicated_optimizer, tables_rate)
        self._tables_optimizer.step()  # hands the rate to the kernels; the tables themselves are updated in backward

    def _training_of(self, parameter: str) -> Training:
        variant = variant_of(parameter) if self._variants else None
        return self._training if variant is None else self._variants[variant]

    def drop_gradients(self) -> None:
        """Free the gradients of the last step."""
        self._dense_optimizer.zero_grad()
        if self._replicated_optimizer is not None:
            self._replicated_optimizer.zero_grad()

    def step(self) -> None:
        """Update the dense part and data_parallel tables by their gradients, and average copies where that is due."""
        with traced("optimizer"):
            for variant, weights in self._clipped.items():
                norm = (self._training if variant is None else self._variants[variant]).gradient_clip_norm
                if norm is not None:
                    clip_gradients(weights, float(norm))
            self._dense_optimizer.step()
            if self._replicated_optimizer is not None:
                self._replicated_optimizer.step()
        if isinstance(self._model, AveragedModel):
            with traced("sync"):
                self._model.end_step()
        self._step += 1
