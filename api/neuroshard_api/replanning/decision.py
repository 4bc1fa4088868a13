"""Whether a running job should take another plan, or leave a slow node. Pure functions of recorded facts.

A restart costs a checkpoint, a start, and a warm-up, all measured in the job. It pays where the expected gain of the
remaining steps is twice that. Predicted gains come true in part, and cost models err: the gain counts by the share that
earlier plans of the job brought of theirs, divided by how many times predicted and measured growth differ. Cooldown,
budget, and the record of earlier plans bound the number of restarts whatever is reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Final

from neuroshard_api.job.replanning import Replanning, ReplanningMode

USUAL_SHARE: Final = 0.5
"""Share of a promised gain that counts before the job has a record: 0.5 to 0.75 came true in trials on two CPUs."""
MIN_SHARE: Final = 0.25
"""Least share that a poor record leaves."""
MISS: Final = 0.5
"""Share of the promised gain below which a plan missed its promise."""
MAX_MISSES: Final = 2
"""Misses in a row after which further plans are suggested alone."""
MIN_GAIN_PERCENT: Final = 5.0
"""Least expected gain that a restart is for, in percent of a step: the cost models err by as much."""
COOLDOWN_S: Final = 1800.0
"""Seconds between two restarts for a plan; twice that after a plan that missed its promise."""
PRICE_FACTOR: Final = 2.0
"""How many times its price a restart must be expected to gain."""
WARM_UP_STEPS: Final = 50
"""Steps after a start that count as lost: the allocator, caches, and pipelines settle."""
LAST_SHARE: Final = 0.1
"""Share of all steps at the end in which nothing is restarted."""
SLOW_SHARE: Final = 0.25
"""Least excess of a slow rank's compute over the median of its peers."""
MS_PER_S: Final = 1000.0


class ReplanVerdict(StrEnum):
    """What was decided about a candidate plan or a slow node."""

    NO_BETTER_PLAN = "NoBetterPlan"
    """The plan in force is predicted to cost no more, or the candidate places everything as it does, or as a plan under
    which the workers failed."""
    GAIN_TOO_SMALL = "GainTooSmall"
    """The expected gain is below 5 % of a step, or below twice the price of a restart."""
    BETTER_PLAN_FOUND = "BetterPlanFound"
    """The candidate pays."""
    RESTART_PAYS = "RestartPays"
    """Leaving the slow node pays."""
    COOLING_DOWN = "CoolingDown"
    """It would pay, and the last restart was too recent, or its plan was not measured yet."""
    BUDGET_SPENT = "BudgetSpent"
    """It would pay, and maxReplans restarts were made, or the last plans missed their promise."""
    NEAR_END = "NearEnd"
    """It would pay, and the training is about to end."""
    PRICE_UNKNOWN = "PriceUnknown"
    """Its price is not known: no checkpoint was written yet, or checkpoints do not outlive a restart."""
    UNUSABLE_REPORT = "UnusableReport"
    """The reported times are not finite and above 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplanDecision:
    """What is done about a candidate plan or a slow node, and why."""

    verdict: ReplanVerdict
    acts: bool
    """Whether the workers are restarted now."""
    message: str
    """The reason in numbers."""
    gain_ms: float | None = None
    """Expected gain of a step. None: not known."""
    price_ms: float | None = None
    """Of a restart. None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanGain:
    """What an earlier plan of the job brought."""

    promised_percent: float
    """Expected decrease of the embedding part of a step, above 0."""
    measured_percent: float | None
    """Measured decrease. None: not measured yet."""
    predicted_percent: float | None = None
    """Decrease that the models predicted, of which a share was promised. None: not known."""

    @property
    def share(self) -> float | None:
        """Share of the promise that came true, within 0 and 1. None: not measured yet."""
        if self.measured_percent is None:
            return None
        return min(max(self.measured_percent / self.promised_percent, 0.0), 1.0)

    @property
    def predicted_share(self) -> float | None:
        """Share of the predicted decrease that came true, within 0 and 1. None: not known."""
        if self.measured_percent is None or not self.predicted_percent or self.predicted_percent < 0:
            return None
        return min(max(self.measured_percent / self.predicted_percent, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """What a restart would cost and leave to gain, as the job measured it."""

    step_ms: float
    """Of a whole step now."""
    step: int
    """Last measured step."""
    num_steps: int | None
    """Of the whole training. None: not known; then as many remain as were done."""
    checkpoint_ms: float | None
    """Duration of the last checkpoint. None: there was none."""
    start_ms: float | None
    """From the start of a process to its first step. None: not known."""
    admission_ms: float = 0.0
    """Last wait for a queue's admission."""
    keeps_checkpoints: bool = True
    """Whether checkpoints outlive the workers; otherwise the training starts over."""
    replans: int = 0
    """Restarts for a plan or a slow node so far."""
    since_replan_s: float | None = None
    """Seconds since the last of them. None: there was none."""
    outcomes: Sequence[PlanGain] = ()
    """Of earlier plans, the newest last."""

    @property
    def remaining_steps(self) -> int:
        """Steps to the end, or as many as were done where the end is not known."""
        return self.step if self.num_steps is None else max(self.num_steps - self.step, 0)

    @property
    def price_ms(self) -> float | None:
        """Checkpoint, admission, start, and warm-up. None: one of them was not measured."""
        if self.checkpoint_ms is None or self.start_ms is None or not self.keeps_checkpoints:
            return None
        return self.checkpoint_ms + self.admission_ms + self.start_ms + WARM_UP_STEPS * self.step_ms

    @property
    def counted_share(self) -> float:
        """Share of a predicted gain that counts: half, or what came true of earlier predictions."""
        known = [each.predicted_share for each in self.outcomes if each.predicted_share is not None]
        return max(sum(known) / len(known), MIN_SHARE) if known else USUAL_SHARE

    @property
    def cooldown_s(self) -> float:
        """Seconds between the last restart and the next one."""
        last = self.outcomes[-1].share if self.outcomes else None
        return COOLDOWN_S * (2.0 if last is not None and last < MISS else 1.0)

    def obstacle(self, policy: Replanning) -> tuple[ReplanVerdict, str] | None:
        """Return the obstacle to a restart that would pay; None: there is none."""
        if self.price_ms is None:
            return ReplanVerdict.PRICE_UNKNOWN, f"the price of a restart is not known: {self._unmeasured}"
        spent = self._spent_budget(policy)
        if spent is not None:
            return ReplanVerdict.BUDGET_SPENT, spent
        if self.since_replan_s is not None and self.since_replan_s < self.cooldown_s:
            ago = f"the last restart was {self.since_replan_s:.0f} s ago"
            return ReplanVerdict.COOLING_DOWN, f"{ago}, less than {self.cooldown_s:.0f} s"
        if self.outcomes and self.outcomes[-1].share is None:
            return ReplanVerdict.COOLING_DOWN, "the plan in force was not measured yet"
        if self.num_steps is not None and self.remaining_steps < LAST_SHARE * self.num_steps:
            return ReplanVerdict.NEAR_END, f"{self.remaining_steps:,} of {self.num_steps:,} steps remain"
        return None

    @property
    def _unmeasured(self) -> str:
        """The reason that the price is not known."""
        if not self.keeps_checkpoints:
            return "checkpoints are not kept"
        times = (("checkpoint", self.checkpoint_ms), ("start", self.start_ms))
        return f"no {' and no '.join(name for name, ms in times if ms is None)} was measured yet"

    def _spent_budget(self, policy: Replanning) -> str | None:
        """Return the reason that no further restart is allowed, whatever its gain; None: one is allowed."""
        if self.replans >= policy.max_replans:
            return f"{self.replans} of at most {policy.max_replans} restarts were made"
        shares = [each.share for each in self.outcomes[-MAX_MISSES:]]
        if len(shares) == MAX_MISSES and all(share is not None and share < MISS for share in shares):
            return f"the last {MAX_MISSES} plans brought less than half of what they promised"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedCandidate:
    """A plan for changed inputs, next to the plan in force."""

    embedding_ms: float
    """Measured time of the embedding part of a step now, of the slowest rank."""
    incumbent_ms: float
    """Predicted for the plan in force, for the changed inputs."""
    predicted_ms: float
    """Predicted for the candidate, for the changed inputs."""
    reference_ms: float | None = None
    """Measured time in the first steps under the plan in force. None: not known."""
    planned_ms: float | None = None
    """Predicted for the plan in force, for the inputs that it was made for. None: not known."""
    measured_ms: float | None = None
    """Time of the candidate where the job trained under it before, as measured then and scaled to the inputs of now. It
    counts in place of the prediction."""
    is_in_force: bool = False
    """Whether its workers would do what those of the plan in force do."""
    has_failed: bool = False
    """Whether workers of the job failed under its placement before it was measured."""
    is_host_bound: bool = False
    """Whether the host bound the embedding part under the plan in force: no placement shortens what the host takes."""

    @property
    def model_error(self) -> float:
        """How many times the models are off, at least 1: the predicted growth next to the measured one.

        A factor that all predictions are off by, as on a machine slower than the profiled one, cancels in the predicted
        decrease, and in the growth. Where there is nothing to compare with, times are compared instead.
        """
        predicted, measured = self.incumbent_ms, self.embedding_ms
        if self.reference_ms and self.planned_ms:
            predicted, measured = predicted / self.planned_ms, measured / self.reference_ms
        return max(predicted / measured, measured / predicted)

    @property
    def times_ms(self) -> tuple[float, ...]:
        """All times that are known."""
        known = (self.reference_ms, self.planned_ms, self.measured_ms)
        return (self.embedding_ms, self.incumbent_ms, self.predicted_ms, *(ms for ms in known if ms is not None))


def decide(
    candidate: PricedCandidate, restart: Restart, policy: Replanning, *, is_approved: bool = False
) -> ReplanDecision:
    """Return the decision about a candidate plan.

    Args:
        candidate: the plan and its times.
        restart: price, remaining steps, and record of the job.
        policy: of the job.
        is_approved: whether the user has asked for this plan; neither mode, cooldown, nor budget holds it up then.
            A plan whose workers would do what they do now, or under which they failed, is not taken all the same.
    """
    settled = _in_force(candidate) or _failed(candidate) or _unusable(*candidate.times_ms, restart.step_ms)
    settled = settled or (None if is_approved else _host_bound(candidate))
    if settled is not None:
        return settled
    gain_ms, why = _gain(candidate, restart)
    price_ms = restart.price_ms

    def decided(verdict: ReplanVerdict, message: str, *, acts: bool = False) -> ReplanDecision:
        return ReplanDecision(
            verdict=verdict, acts=acts or is_approved, message=message, gain_ms=gain_ms, price_ms=price_ms
        )

    if gain_ms <= 0:
        return decided(ReplanVerdict.NO_BETTER_PLAN, why)
    percent = 100 * gain_ms / restart.step_ms
    gained = f"{why}: expected gain {gain_ms:.3g} ms of a step of {restart.step_ms:.3g} ms ({percent:.1f} %)"
    gained, is_worth = weighed(gain_ms, gained, restart)
    if not is_worth:
        return decided(ReplanVerdict.GAIN_TOO_SMALL, gained)
    obstacle = restart.obstacle(policy)
    if obstacle is not None:
        verdict, message = obstacle
        return decided(verdict, f"{gained}; {message}")
    return decided(ReplanVerdict.BETTER_PLAN_FOUND, gained, acts=policy.mode is ReplanningMode.AUTO)


def weighed(gain_ms: float, why: str, restart: Restart) -> tuple[str, bool]:
    """Return a sentence on a gain next to the price of a restart, and whether the restart is worth it.

    Args:
        gain_ms: of a step, above 0.
        why: the sentence so far.
        restart: price, and steps that remain.
    """
    if 100 * gain_ms / restart.step_ms < MIN_GAIN_PERCENT:
        return f"{why}, below {MIN_GAIN_PERCENT:.0f} %", False
    price_ms = restart.price_ms
    if price_ms is None:
        return why, True
    total_ms = gain_ms * restart.remaining_steps
    why = (
        f"{why}, {total_ms / MS_PER_S:,.0f} s in {restart.remaining_steps:,} steps; "
        f"a restart costs {price_ms / MS_PER_S:,.0f} s"
    )
    is_worth = total_ms >= PRICE_FACTOR * price_ms
    return why if is_worth else f"{why}, and must gain twice that", is_worth


def _in_force(candidate: PricedCandidate) -> ReplanDecision | None:
    """Return the decision on a plan whose workers would do what they do now. None: they would do something else."""
    if not candidate.is_in_force:
        return None
    why = "for the changed inputs the same placement is the best one found, and a restart would change nothing"
    return ReplanDecision(verdict=ReplanVerdict.NO_BETTER_PLAN, acts=False, message=why)


def _host_bound(candidate: PricedCandidate) -> ReplanDecision | None:
    """Return the decision on a plan for devices that wait for their host. None: they do not."""
    if not candidate.is_host_bound:
        return None
    why = (
        "the host launches the embedding part's kernels later than the devices could run them, and another placement "
        f"does not shorten that; for the changed inputs {candidate.predicted_ms:.3g} ms are predicted, and "
        f"{candidate.incumbent_ms:.3g} ms under the plan in force"
    )
    return ReplanDecision(verdict=ReplanVerdict.NO_BETTER_PLAN, acts=False, message=why)


def _failed(candidate: PricedCandidate) -> ReplanDecision | None:
    """Return the decision on a plan that was given up. None: it was not."""
    if not candidate.has_failed:
        return None
    why = "for the changed inputs the best plan found is one under which the workers failed"
    return ReplanDecision(verdict=ReplanVerdict.NO_BETTER_PLAN, acts=False, message=why)


def _unusable(*times_ms: float) -> ReplanDecision | None:
    """Return the decision on times that cannot be compared. None: all are finite and above 0."""
    if all(isfinite(ms) and ms > 0 for ms in times_ms):
        return None
    found = ", ".join(f"{ms:g}" for ms in times_ms)
    return ReplanDecision(
        verdict=ReplanVerdict.UNUSABLE_REPORT, acts=False, message=f"times must be above 0, found {found} ms"
    )


def _gain(candidate: PricedCandidate, restart: Restart) -> tuple[float, str]:
    """Return the expected gain of a step in milliseconds, and how it was found."""
    now_ms = candidate.embedding_ms
    if candidate.measured_ms is not None:
        before = f"the candidate's measured time of before is {candidate.measured_ms:.3g} ms for the inputs of now"
        return now_ms - candidate.measured_ms, f"{before}, and the plan in force takes {now_ms:.3g} ms"
    promised = 1 - candidate.predicted_ms / candidate.incumbent_ms
    why = (
        f"for the changed inputs {candidate.predicted_ms:.3g} ms are predicted, and {candidate.incumbent_ms:.3g} ms "
        f"under the plan in force, which takes {now_ms:.3g} ms"
    )
    if promised <= 0:
        return now_ms * promised, why
    share = restart.counted_share / candidate.model_error
    return now_ms * promised * share, f"{why}; {100 * share:.0f} % of the difference count"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowNode:
    """A node whose ranks compute slower than all others."""

    slow_ms: float
    """Compute of its slowest rank."""
    peers_ms: float
    """Median of the compute of all other ranks."""
    reference_step_ms: float
    """Step before the change."""
    since_step: int
    """First step of the change."""


def decide_slow_node(
    node: SlowNode, restart: Restart, policy: Replanning, *, num_avoided: int, max_avoided: int
) -> ReplanDecision:
    """Return whether the workers start again elsewhere.

    How long a node stays slow is not known. So they restart once the loss so far equals the price of a restart: that
    costs at most twice what knowing it would (ski rental). They do not where the steps that remain, all of them slow,
    would lose less than the price.
    """
    unusable = _unusable(node.slow_ms, node.peers_ms, node.reference_step_ms, restart.step_ms)
    if unusable is not None:
        return unusable
    gain_ms, price_ms = restart.step_ms - node.reference_step_ms, restart.price_ms
    steps = max(restart.step - node.since_step, 0)
    excess = node.slow_ms / node.peers_ms - 1
    lost_ms = gain_ms * steps
    why = (
        f"its compute is {100 * excess:.0f} % above that of its peers, and since step {node.since_step:,} "
        f"{max(lost_ms, 0.0) / MS_PER_S:,.0f} s were lost"
    )

    def decided(verdict: ReplanVerdict, message: str, *, acts: bool = False) -> ReplanDecision:
        return ReplanDecision(verdict=verdict, acts=acts, message=message, gain_ms=gain_ms, price_ms=price_ms)

    if excess < SLOW_SHARE:
        return decided(
            ReplanVerdict.GAIN_TOO_SMALL, f"{why}; less than {100 * SLOW_SHARE:.0f} % are not a reason to restart"
        )
    against = None if price_ms is None else _against_leaving(restart, gain_ms, lost_ms, price_ms)
    if against is not None:
        return decided(ReplanVerdict.GAIN_TOO_SMALL, f"{why}; {against}")
    if num_avoided >= max_avoided:
        return decided(ReplanVerdict.BUDGET_SPENT, f"{why}; {num_avoided} nodes are avoided already")
    obstacle = restart.obstacle(policy)
    if obstacle is not None:
        verdict, message = obstacle
        return decided(verdict, f"{why}; {message}")
    return decided(ReplanVerdict.RESTART_PAYS, why, acts=policy.mode is ReplanningMode.AUTO)


def _against_leaving(restart: Restart, gain_ms: float, lost_ms: float, price_ms: float) -> str | None:
    """Return the reason in numbers that it does not pay to leave a slow node; None: there is none."""
    costs = f"a restart costs {price_ms / MS_PER_S:,.0f} s"
    if lost_ms < price_ms:
        return f"{costs}, and follows once as much was lost"
    to_gain_ms = gain_ms * restart.remaining_steps
    if restart.num_steps is not None and to_gain_ms <= price_ms:
        left = f"{restart.remaining_steps:,} steps remain, in which {to_gain_ms / MS_PER_S:,.0f} s are to be gained"
        return f"{left}, and {costs}"
    return None
