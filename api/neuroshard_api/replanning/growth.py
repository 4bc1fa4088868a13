"""Whether a running elastic job should restart on more nodes. Pure functions of recorded facts.

More nodes shorten a step by less than their number: exchanges grow, and the host's part stays. The plan of the larger
size has a predicted embedding part, the rest of a step is taken to shrink with the samples of each device, and half of
that gain counts, as of another plan. It must be twice the price of the restart in the steps that remain. The user asked
for the nodes by the job's bounds, so that neither mode nor maxReplans of spec.replanning holds a larger size up: the
cooldown bounds the restarts, and doubles with each time that the nodes were not there after all.
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from neuroshard_api.job.replanning import Replanning, ReplanningMode
from neuroshard_api.replanning.decision import (
    COOLDOWN_S,
    USUAL_SHARE,
    ReplanDecision,
    ReplanVerdict,
    Restart,
    weighed,
)

_MAX_DOUBLINGS: Final = 6
"""Of the cooldown after nodes that were not there: up to 64 times as long."""
_UNBOUNDED: Final = Replanning(mode=ReplanningMode.AUTO, max_replans=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LargerSize:
    """More nodes, and their plan next to the one in force."""

    nodes_now: int
    num_nodes: int
    embedding_ms: float
    """Measured embedding part of a step now."""
    incumbent_ms: float
    """Predicted for the plan in force."""
    predicted_ms: float
    """Predicted for the plan of more nodes."""
    keeps_global_batch: bool
    """Whether a step has as many samples on more nodes."""

    def step_ms(self, now_ms: float) -> float:
        """Return the expected time of as many samples as a step has now, which takes that long."""
        share = self.nodes_now / self.num_nodes
        embedding = self.embedding_ms * self.predicted_ms / self.incumbent_ms
        rest = max(now_ms - self.embedding_ms, 0.0)
        return embedding + rest * share if self.keeps_global_batch else (embedding + rest) * share


def cooldown_s(missed: int) -> float:
    """Return the seconds from the last change of the size to a restart on more nodes.

    Args:
        missed: starts on nodes that were not there.
    """
    return COOLDOWN_S * 2.0 ** min(missed, _MAX_DOUBLINGS)


def growth_obstacle(restart: Restart) -> tuple[ReplanVerdict, str] | None:
    """Return the obstacle to any restart on more nodes, before there is a plan. None: there is none."""
    return replace(restart, replans=0, outcomes=()).obstacle(_UNBOUNDED)


def decide_growth(size: LargerSize, restart: Restart) -> ReplanDecision:
    """Return whether the workers restart on more nodes."""
    times = (size.embedding_ms, size.incumbent_ms, size.predicted_ms, restart.step_ms)
    if not all(isfinite(ms) and ms > 0 for ms in times):
        found = ", ".join(f"{ms:g}" for ms in times)
        why = f"times must be above 0, found {found} ms"
        return ReplanDecision(verdict=ReplanVerdict.UNUSABLE_REPORT, acts=False, message=why)
    expected_ms = size.step_ms(restart.step_ms)
    gain_ms, price_ms = (restart.step_ms - expected_ms) * USUAL_SHARE, restart.price_ms
    percent = 100 * gain_ms / restart.step_ms
    why = (
        f"on {size.num_nodes} nodes {expected_ms:.3g} ms are expected for the samples of a step, which take "
        f"{restart.step_ms:.3g} ms on {size.nodes_now}; half of the difference counts ({percent:.1f} %)"
    )

    def decided(verdict: ReplanVerdict, message: str, *, acts: bool = False) -> ReplanDecision:
        return ReplanDecision(verdict=verdict, acts=acts, message=message, gain_ms=gain_ms, price_ms=price_ms)

    if gain_ms <= 0:
        return decided(ReplanVerdict.NO_BETTER_PLAN, why)
    why, is_worth = weighed(gain_ms, why, restart)
    if not is_worth:
        return decided(ReplanVerdict.GAIN_TOO_SMALL, why)
    obstacle = growth_obstacle(restart)
    if obstacle is not None:
        return decided(obstacle[0], f"{why}; {obstacle[1]}")
    return decided(ReplanVerdict.RESTART_PAYS, why, acts=True)
