"""How long a job's device is measured where the job does not say: no longer than its training is expected to take.

A training of seconds gains nothing by minutes of measurements, and one of hours is worth them. The expected time is
that of a CPU, on which small trainings run; devices train faster, and what is trained on them is longer.
"""

from typing import Final

from neuroshard_api.job.spec import Spec
from neuroshard_api.job.training import DataFormat

LEAST_SECONDS: Final = 60
"""Enough for the records that a fit needs, and for errors that more time lowers little."""
MOST_SECONDS: Final = 300
_TIMEOUT_SHARE: Final = 0.5
"""Of the stage's maximum time, which also covers the start, the fit, and other attempts."""
_MINUTE_S: Final = 60
_STEP_S: Final = 0.03
"""Of any step on a CPU: 30 ms of the 32 of MovieLens-100K with 512 samples on two cores."""
_BYTES_PER_S: Final = 5e8
"""Of looked-up embeddings, on a CPU: steps with 43 MB of them on each of two cores took 95 ms."""
_BYTES_PER_WEIGHT: Final = 4
_MOVIELENS_SAMPLES: Final = 100_000
_SYNTHETIC_SAMPLES: Final = 1_000_000


def profile_seconds(spec: Spec) -> int:
    """Return the seconds of measurements of a job: those that it asks for, or whole minutes by its training's time."""
    if spec.profiler.budget_seconds is not None:
        return spec.profiler.budget_seconds
    expected_s = expected_training_seconds(spec)
    most = min(MOST_SECONDS, max(1, int(_TIMEOUT_SHARE * spec.experimental.profiler.timeout_seconds)))
    if expected_s is None or expected_s >= most:
        return most
    return min(most, max(LEAST_SECONDS, _MINUTE_S * -int(-expected_s // _MINUTE_S)))


def expected_training_seconds(spec: Spec) -> float | None:
    """Return the seconds that a training is expected to take on a CPU. None: its steps or its tables are not known."""
    model, steps = spec.model, expected_steps(spec)
    if steps is None or model.embedding_tables is None:
        return None
    weights = sum(each.table.embedding_dim * each.table.pooling_factor for each in model.embedding_tables)
    return steps * (_STEP_S + model.samples_per_device * weights * _BYTES_PER_WEIGHT / _BYTES_PER_S)


def expected_steps(spec: Spec) -> float | None:
    """Return the steps that a training has at most. None: only the data show them."""
    samples, training = _epoch_samples(spec), spec.training
    samples_per_step = spec.model.samples_per_device * spec.trainer.world_size
    steps = None if samples is None else training.epochs * samples / samples_per_step
    if training.max_steps is None:
        return steps
    return training.max_steps if steps is None else min(steps, training.max_steps)


def _epoch_samples(spec: Spec) -> int | None:
    """Return the most training samples of an epoch; None: only the data show them."""
    if spec.data.format is DataFormat.MOVIELENS_100K:
        return _MOVIELENS_SAMPLES
    if spec.data.format is DataFormat.SYNTHETIC:
        return spec.data.num_samples or _SYNTHETIC_SAMPLES
    return None
