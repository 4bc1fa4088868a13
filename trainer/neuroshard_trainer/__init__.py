"""Trains a recommendation model under a given plan with TorchRec. Plans nothing and knows no cluster.

These names are for trainers of your own and stay where they are; modules below may move. Each is imported when it is
first used, so that a process that needs none of TorchRec does not pay for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard_trainer.data.repeats import repeated as repeated
    from neuroshard_trainer.dense.optimizers import share_replicated_weights as share_replicated_weights
    from neuroshard_trainer.dense_profile import describe_dense as describe_dense
    from neuroshard_trainer.measure.prometheus import prometheus_writer as prometheus_writer
    from neuroshard_trainer.measure.step_reporter import StepReporter as StepReporter
    from neuroshard_trainer.model.expansion import Expansion as Expansion
    from neuroshard_trainer.sharding.live_sharding import prove_sharding as prove_sharding
    from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan as load_sharding_plan
    from neuroshard_trainer.sharding.plan_adapter import read_plan as read_plan
    from neuroshard_trainer.sharding.plan_adapter import sharding_plan as sharding_plan

PUBLIC_NAMES = {
    "Expansion": "model.expansion",
    "StepReporter": "measure.step_reporter",
    "describe_dense": "dense_profile",
    "load_sharding_plan": "sharding.plan_adapter",
    "prometheus_writer": "measure.prometheus",
    "prove_sharding": "sharding.live_sharding",
    "read_plan": "sharding.plan_adapter",
    "repeated": "data.repeats",
    "share_replicated_weights": "dense.optimizers",
    "sharding_plan": "sharding.plan_adapter",
}
"""The public face: each name with the module below this package that defines it."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - it is of the type of what was asked for
    """Import a public name. Raises AttributeError for other names."""
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PUBLIC_NAMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(PUBLIC_NAMES)
