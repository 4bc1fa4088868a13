"""How long the trial of a plan is: steps of the job's own trainer before the training, which correct its prediction.

A profile times each kind of work alone. In training, ranks, readers, and the loop share a machine's processors and
caches, which only steps of that training show.
"""

from typing import Final

from neuroshard_api.job.preparation import ProfilerBackend
from neuroshard_api.job.profile_time import expected_steps
from neuroshard_api.job.spec import LaunchPolicy, Spec

WARM_UP_STEPS: Final = 10
"""Of a trial, whose times do not count: allocators and caches fill."""
_MOST_STEPS: Final = 110
"""Times of 100 steps, as a step report has."""
_LEAST_STEPS: Final = 40
LEAST_TIMED_STEPS: Final = 10
"""Of a trial whose time is over, for a report: fewer say less than a prediction."""
MOST_SECONDS: Final = 60
"""Of all steps: a minute of a training whose steps are far slower than predicted is enough to know it."""
_SECONDS: Final = 10.0
"""Of predicted steps: about as long as the start of the processes takes."""
_MS_PER_SECOND: Final = 1000.0
WORTHWHILE_STEPS: Final = 2 * _LEAST_STEPS
"""Of the training, of which a trial takes at most half."""


def wants_trial(spec: Spec) -> bool:
    """Return whether a training is long enough for a trial, and NeuroShard's own: of another trainer little is known.

    A training with embedding servers has none: what they take is in no price of a plan. Neither has one whose plan is
    for a simulated device.
    """
    steps = expected_steps(spec)
    is_own = spec.launch_policy is not LaunchPolicy.PLAN_ONLY and not spec.trainer.command
    is_priced = spec.experimental.embedding_servers is None and spec.profiler.backend is not ProfilerBackend.SIMULATED
    return is_own and is_priced and (steps is None or steps >= WORTHWHILE_STEPS)


def trial_steps(spec: Spec, predicted_step_ms: float | None) -> int:
    """Return the steps of a trial, the warm-up included; None: the time of a step is not predicted."""
    if not predicted_step_ms:
        return _LEAST_STEPS
    expected = expected_steps(spec)
    most = _MOST_STEPS if expected is None else min(_MOST_STEPS, int(expected / 2))
    return max(_LEAST_STEPS, min(most, int(_SECONDS * _MS_PER_SECOND / predicted_step_ms)))
