"""When a running job takes another plan: what pays, what holds it up, and what no sequence of reports can cause."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.job.replanning import CandidatePlan, Replanning, ReplanningMode, ReplanningStatus, TrainedPlan
from neuroshard_api.replanning.decision import (
    COOLDOWN_S,
    LAST_SHARE,
    PlanGain,
    PricedCandidate,
    ReplanDecision,
    ReplanVerdict,
    Restart,
    SlowNode,
    decide,
    decide_slow_node,
)
from neuroshard_api.replanning.record import (
    is_candidate_due,
    judged,
    next_to_plan_in_force,
    outcomes_of,
    promised_percent,
    with_measured_gain,
)

AUTO = Replanning(mode=ReplanningMode.AUTO)
PAYS = PricedCandidate(embedding_ms=117.4, incumbent_ms=115.5, predicted_ms=67.8)
"""Predicted and measured times of a trial: 4 tables on 2 ranks, after the pooling of two of them grew sixfold."""


def restart(**fields: Any) -> Restart:
    """Return a restart in the middle of a long training, which costs 50.15 s."""
    usual: dict[str, Any] = {
        "step_ms": 145.0,
        "step": 50_000,
        "num_steps": 100_000,
        "checkpoint_ms": 2_900.0,
        "start_ms": 40_000.0,
    }
    return Restart(**{**usual, **fields})


def test_a_candidate_that_pays_is_taken_in_mode_auto() -> None:
    """The gain is half of what is promised, less for the models' error; the price is all that a restart takes."""
    decision = decide(PAYS, restart(), AUTO)

    assert (decision.verdict, decision.acts) == (ReplanVerdict.BETTER_PLAN_FOUND, True)
    assert decision.gain_ms == pytest.approx(117.4 * (1 - 67.8 / 115.5) * 0.5 / (117.4 / 115.5))
    assert decision.price_ms == pytest.approx(2_900 + 40_000 + 50 * 145)
    assert "50,000 steps; a restart costs 50 s" in decision.message


@pytest.mark.parametrize(
    ("planned_ms", "reference_ms", "error"),
    [
        (None, None, 2.0),
        (10.0, None, 2.0),
        (None, 20.0, 2.0),
        (10.0, 20.0, 1.0),
        (10.0, 30.0, 1.5),
        (10.0, 10.0, 2.0),
    ],
    ids=[
        "nothing known",
        "no first steps",
        "no price",
        "evenly slower machine",
        "less growth foreseen",
        "slower since",
    ],
)
def test_predictions_count_by_the_growth_that_they_foresee(
    planned_ms: float | None, reference_ms: float | None, error: float
) -> None:
    """A factor that all are off by is not an error; without first steps or their prediction, times are compared."""
    candidate = PricedCandidate(
        embedding_ms=60.0, incumbent_ms=30.0, predicted_ms=15.0, planned_ms=planned_ms, reference_ms=reference_ms
    )

    assert candidate.model_error == pytest.approx(error)
    assert decide(candidate, restart(), AUTO).gain_ms == pytest.approx(60.0 * 0.5 * 0.5 / error)


def test_no_plan_is_taken_for_devices_that_wait_for_their_host_unless_the_user_approves() -> None:
    """The measured time is the host's, and another placement would not shorten it."""
    bound = replace(PAYS, is_host_bound=True)

    found = decide(bound, restart(), AUTO)

    assert (found.verdict, found.acts) == (ReplanVerdict.NO_BETTER_PLAN, False)
    assert "the host launches" in found.message
    assert decide(bound, restart(), AUTO, is_approved=True).acts


def test_mode_suggest_restarts_nothing_but_what_the_user_approves() -> None:
    """The verdict is the same, and approval is enough."""
    suggested = decide(PAYS, restart(), Replanning())
    approved = decide(PAYS, restart(replans=9), Replanning(), is_approved=True)

    assert (suggested.verdict, suggested.acts) == (ReplanVerdict.BETTER_PLAN_FOUND, False)
    assert approved.acts


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        ({"step": 99_900, "num_steps": 100_000}, ReplanVerdict.GAIN_TOO_SMALL, "must gain twice that"),
        ({"step_ms": 2_000.0}, ReplanVerdict.GAIN_TOO_SMALL, "below 5 %"),
        ({"checkpoint_ms": None}, ReplanVerdict.PRICE_UNKNOWN, "no checkpoint was measured yet"),
        ({"start_ms": None}, ReplanVerdict.PRICE_UNKNOWN, "no start was measured yet"),
        (
            {"checkpoint_ms": None, "start_ms": None},
            ReplanVerdict.PRICE_UNKNOWN,
            "no checkpoint and no start was measured yet",
        ),
        ({"keeps_checkpoints": False}, ReplanVerdict.PRICE_UNKNOWN, "checkpoints are not kept"),
        ({"replans": 3}, ReplanVerdict.BUDGET_SPENT, "3 of at most 3 restarts"),
        ({"since_replan_s": 60.0}, ReplanVerdict.COOLING_DOWN, "60 s ago, less than 1800 s"),
        (
            {"outcomes": [PlanGain(promised_percent=40, measured_percent=None)]},
            ReplanVerdict.COOLING_DOWN,
            "was not measured yet",
        ),
        ({"step": 95_000}, ReplanVerdict.NEAR_END, "5,000 of 100,000 steps remain"),
        ({"admission_ms": 3_600_000.0}, ReplanVerdict.GAIN_TOO_SMALL, "a restart costs 3,650 s"),
    ],
)
def test_what_holds_a_restart_up_is_named(facts: dict[str, Any], verdict: ReplanVerdict, words: str) -> None:
    """Each obstacle has a verdict of its own, and the numbers in its sentence."""
    decision = decide(PAYS, restart(**facts), AUTO)

    assert (decision.verdict, decision.acts) == (verdict, False)
    assert words in decision.message


def test_a_candidate_that_is_predicted_to_cost_more_is_no_better_plan() -> None:
    """Equal costs neither."""
    for predicted_ms in (115.5, 130.0):
        decision = decide(replace(PAYS, predicted_ms=predicted_ms), restart(), AUTO)

        assert (decision.verdict, decision.acts) == (ReplanVerdict.NO_BETTER_PLAN, False)


@pytest.mark.parametrize("is_approved", [False, True])
def test_a_candidate_that_places_everything_as_now_is_never_taken(*, is_approved: bool) -> None:
    """Neither for what the models predict, nor for what that placement took before, nor since the user asks for it."""
    for candidate in (PAYS, replace(PAYS, measured_ms=50.0)):
        decision = decide(replace(candidate, is_in_force=True), restart(), AUTO, is_approved=is_approved)

        assert (decision.verdict, decision.acts) == (ReplanVerdict.NO_BETTER_PLAN, False)
        assert "a restart would change nothing" in decision.message


def test_models_that_are_far_from_the_measured_time_promise_less() -> None:
    """Models that are off by a factor of four leave a quarter of the gain, in either direction."""
    exact = replace(PAYS, incumbent_ms=117.4, predicted_ms=58.7)
    low = replace(PAYS, incumbent_ms=117.4 / 4, predicted_ms=58.7 / 4)
    high = replace(PAYS, incumbent_ms=117.4 * 4, predicted_ms=58.7 * 4)
    gains = [decide(each, restart(), AUTO).gain_ms for each in (exact, low, high)]

    assert gains == pytest.approx([117.4 / 4, 117.4 / 16, 117.4 / 16])


def test_the_record_of_the_job_replaces_the_usual_share() -> None:
    """What came true of earlier predictions counts, however little was promised, never less than a quarter."""
    shares = [
        restart(outcomes=[PlanGain(promised_percent=20, predicted_percent=40, measured_percent=measured)]).counted_share
        for measured in (40.0, 30.0, -10.0, 80.0)
    ]

    assert shares == [1.0, 0.75, 0.25, 1.0]


def test_a_missed_promise_doubles_the_cooldown_and_two_end_the_restarts() -> None:
    """One plan that brought less than half waits twice as long; after two in a row plans are suggested alone."""
    missed = PlanGain(promised_percent=40, measured_percent=10)
    once = decide(PAYS, restart(outcomes=[missed], since_replan_s=2_000.0), AUTO)
    twice = decide(PAYS, restart(outcomes=[missed, missed], since_replan_s=1e6), AUTO)

    assert (once.verdict, twice.verdict) == (ReplanVerdict.COOLING_DOWN, ReplanVerdict.BUDGET_SPENT)
    assert "less than 3600 s" in once.message
    assert "less than half of what they promised" in twice.message


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field_name", ["embedding_ms", "incumbent_ms", "predicted_ms"])
def test_times_that_cannot_be_are_no_reason_to_restart(field_name: str, wrong: float) -> None:
    """Reports with NaN, infinities, zeros, and negative times decide nothing."""
    changed: dict[str, Any] = {field_name: wrong}
    decision = decide(replace(PAYS, **changed), restart(), AUTO)

    assert (decision.verdict, decision.acts) == (ReplanVerdict.UNUSABLE_REPORT, False)


NODE = SlowNode(slow_ms=140.0, peers_ms=100.0, reference_step_ms=120.0, since_step=40_000)


def test_a_slow_node_is_left_once_the_loss_equals_the_price() -> None:
    """Not before: how long it stays slow is not known."""
    begun = decide_slow_node(NODE, restart(step=41_000), AUTO, num_avoided=0, max_avoided=2)
    lost = decide_slow_node(NODE, restart(step=43_000), AUTO, num_avoided=0, max_avoided=2)

    assert (begun.verdict, begun.acts) == (ReplanVerdict.GAIN_TOO_SMALL, False)
    assert "follows once as much was lost" in begun.message
    assert (lost.verdict, lost.acts) == (ReplanVerdict.RESTART_PAYS, True)
    assert "40 % above that of its peers" in lost.message


def test_a_slow_node_is_kept_where_the_steps_that_remain_lose_less_than_a_restart() -> None:
    """However much was lost before: 25 s a thousand steps, and a price of 50 s."""
    long = decide_slow_node(NODE, restart(step=80_000), AUTO, num_avoided=0, max_avoided=2)
    short = decide_slow_node(NODE, restart(step=85_000, num_steps=87_000), AUTO, num_avoided=0, max_avoided=2)
    endless = decide_slow_node(NODE, restart(step=85_000, num_steps=None), AUTO, num_avoided=0, max_avoided=2)

    assert (long.acts, endless.acts) == (True, True)
    assert (short.verdict, short.acts) == (ReplanVerdict.GAIN_TOO_SMALL, False)
    assert "2,000 steps remain, in which 50 s are to be gained" in short.message


@pytest.mark.parametrize(
    ("node", "policy", "avoided", "verdict"),
    [
        (replace(NODE, slow_ms=120.0), AUTO, 0, ReplanVerdict.GAIN_TOO_SMALL),
        (NODE, AUTO, 2, ReplanVerdict.BUDGET_SPENT),
        (NODE, Replanning(), 0, ReplanVerdict.RESTART_PAYS),
        (replace(NODE, peers_ms=0.0), AUTO, 0, ReplanVerdict.UNUSABLE_REPORT),
    ],
    ids=["not so slow", "enough avoided", "Suggest", "unusable"],
)
def test_a_slow_node_is_kept(node: SlowNode, policy: Replanning, avoided: int, verdict: ReplanVerdict) -> None:
    """Below 25 %, where two nodes are avoided, and in mode Suggest."""
    decision = decide_slow_node(node, restart(step=60_000), policy, num_avoided=avoided, max_avoided=2)

    assert (decision.verdict, decision.acts) == (verdict, False)


@dataclass
class Job:
    """A job that restarts whenever it is decided so, and the times at which it did."""

    policy: Replanning
    now_s: float = 0.0
    replans_s: list[float] = field(default_factory=list)
    outcomes: list[PlanGain] = field(default_factory=list)

    def decide(self, candidate: PricedCandidate, facts: Restart) -> ReplanDecision:
        """Decide, and take the candidate if that is what is decided; its plan is measured at the next report."""
        since_s = self.now_s - self.replans_s[-1] if self.replans_s else None
        facts = replace(facts, replans=len(self.replans_s), since_replan_s=since_s, outcomes=tuple(self.outcomes))
        decision = decide(candidate, facts, self.policy)
        if decision.acts:
            assert decision.gain_ms is not None
            self.replans_s.append(self.now_s)
            promised = 100 * decision.gain_ms / candidate.embedding_ms
            self.outcomes.append(PlanGain(promised_percent=promised, measured_percent=None))
        return decision

    def measure(self, percent: float | None) -> None:
        """Record what the newest plan brought."""
        if self.outcomes and percent is not None:
            self.outcomes[-1] = replace(self.outcomes[-1], measured_percent=percent)


ANY_MS = st.one_of(st.floats(1e-3, 1e5), st.sampled_from([0.0, -1.0, float("nan"), float("inf")]))
REPORTS = st.tuples(
    st.builds(
        PricedCandidate,
        embedding_ms=ANY_MS,
        incumbent_ms=ANY_MS,
        predicted_ms=ANY_MS,
        measured_ms=st.none() | st.floats(1e-3, 1e5),
        is_in_force=st.booleans(),
    ),
    st.builds(
        Restart,
        step_ms=ANY_MS,
        step=st.integers(0, 10**7),
        num_steps=st.none() | st.integers(1, 10**7),
        checkpoint_ms=st.none() | st.floats(0, 1e6),
        start_ms=st.none() | st.floats(0, 1e6),
        keeps_checkpoints=st.booleans(),
    ),
    st.floats(0, 1e4),
    st.none() | st.floats(-500, 100),
)
POLICIES = st.builds(
    Replanning,
    mode=st.sampled_from(ReplanningMode),
    max_replans=st.integers(0, 5),
)


@given(policy=POLICIES, reports=st.lists(REPORTS, max_size=40))
def test_no_sequence_of_reports_causes_a_storm_of_restarts(
    policy: Replanning, reports: list[tuple[PricedCandidate, Restart, float, float | None]]
) -> None:
    """Restarts keep maxReplans and the cooldown, need mode Auto and another placement, and spare the last tenth."""
    job = Job(policy=policy)
    for candidate, facts, passed_s, measured_percent in reports:
        job.now_s += passed_s
        job.measure(measured_percent)
        decision = job.decide(candidate, facts)
        if decision.acts:
            assert policy.mode is ReplanningMode.AUTO
            assert not candidate.is_in_force
            assert facts.keeps_checkpoints
            assert decision.price_ms is not None
            assert decision.gain_ms is not None
            assert decision.gain_ms * facts.remaining_steps >= 2 * decision.price_ms
            assert facts.num_steps is None or facts.remaining_steps >= LAST_SHARE * facts.num_steps
    pauses_s = [after - before for before, after in zip(job.replans_s, job.replans_s[1:], strict=False)]

    assert len(job.replans_s) <= policy.max_replans
    assert all(pause_s >= COOLDOWN_S for pause_s in pauses_s)


@given(
    first_ms=st.floats(1, 1e3),
    second_ms=st.floats(1, 1e3),
    proposals=st.lists(st.tuples(st.integers(0, 1), st.floats(1e-3, 1 - 1e-3)), min_size=1, max_size=40),
    step_overhead_ms=st.floats(0, 1e3),
)
def test_a_job_does_not_oscillate_between_two_plans(
    first_ms: float, second_ms: float, proposals: list[tuple[int, float]], step_overhead_ms: float
) -> None:
    """Whatever is promised, a plan that was measured counts by its measured time: there is one return at most.

    The planner may also propose the plan in force again, whose recorded time is that under other inputs.
    """
    job = Job(policy=AUTO.model_copy(update={"max_replans": 100}))
    costs_ms, measured, current, switches = (first_ms, second_ms), {}, 0, 0
    for proposed, promise in proposals:
        job.now_s += 2 * COOLDOWN_S
        now_ms, other = costs_ms[current], 1 - current
        measured[current] = now_ms
        if switches:
            job.measure(100 * (1 - now_ms / costs_ms[other]))
        candidate = PricedCandidate(
            embedding_ms=now_ms,
            incumbent_ms=now_ms,
            predicted_ms=now_ms * promise,
            measured_ms=now_ms * promise if proposed == current else measured.get(other),
            is_in_force=proposed == current,
        )
        facts = restart(step_ms=now_ms + step_overhead_ms, num_steps=None, step=10**7)
        if job.decide(candidate, facts).acts:
            assert proposed == other
            current, switches = other, switches + 1

    assert switches <= 2
    assert switches < 2 or current == 0


START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = TrainedPlan(hash="A", reason="PlanWritten", start_time=START, measured_microseconds=5_000)
SECOND = TrainedPlan(hash="B", reason="InputsDrifted", start_time=START, from_step=5_000, promised_gain_percent=20)
RECORD = ReplanningStatus(replans=1, accepted=1, history=(FIRST, SECOND))


def test_a_plan_that_was_left_before_it_was_measured_holds_nothing_up() -> None:
    """Another plan is in force since: nothing will measure it, and it says nothing about promises."""
    in_force, left = outcomes_of(RECORD, "B"), outcomes_of(RECORD, "C")
    waits = decide(PAYS, restart(outcomes=in_force, since_replan_s=1e6), AUTO)
    goes_on = decide(PAYS, restart(outcomes=left, since_replan_s=1e6), AUTO)

    assert (waits.verdict, goes_on.verdict) == (ReplanVerdict.COOLING_DOWN, ReplanVerdict.BETTER_PLAN_FOUND)
    assert goes_on.acts


@pytest.mark.parametrize(
    ("predicted_when_measured_us", "counted_ms"),
    [(20_000, 2.5), (5_000, 10.0), (None, None)],
    ids=["for four times the lookups", "for the inputs of now", "on a slow node"],
)
def test_a_measured_time_counts_for_other_inputs_by_how_predictions_differ(
    predicted_when_measured_us: int | None, counted_ms: float | None
) -> None:
    """So the way back is open once the inputs return, and a time of a slow node closes none."""
    before = FIRST.model_copy(
        update={
            "placement_hash": "a",
            "measured_microseconds": 10_000,
            "predicted_when_measured_microseconds": predicted_when_measured_us,
        }
    )
    candidate = next_to_plan_in_force(
        RECORD.model_copy(update={"history": (before, SECOND)}),
        placement_hash="a",
        in_force_hash="b",
        measured_us=12_000,
        predicted_ms=5.0,
        incumbent_ms=6.0,
        reference_ms=None,
        planned_ms=None,
        is_host_bound=False,
    )

    assert candidate.measured_ms == (None if counted_ms is None else pytest.approx(counted_ms))
    assert not candidate.is_in_force


def test_a_plan_that_promised_nothing_teaches_nothing() -> None:
    """A user may approve one; what it brings is not a share of anything."""
    approved = SECOND.model_copy(update={"promised_gain_percent": -3, "measured_gain_percent": -40})
    record = RECORD.model_copy(update={"history": (FIRST, approved)})

    assert outcomes_of(record, "B") == ()
    assert restart(outcomes=outcomes_of(record, "B")).counted_share == 0.5


@pytest.mark.parametrize(("steps", "gain"), [(5_050, None), (5_149, None), (5_150, 20)])
def test_a_gain_is_measured_on_no_step_of_the_warm_up(steps: int, gain: int | None) -> None:
    """A step report is of the last 100 steps, and the first 50 are the warm-up."""
    record = with_measured_gain(RECORD, plan_hash="B", measured_us=4_000, steps=steps)

    assert record.history[-1].measured_gain_percent == gain


def test_numbers_beyond_all_measure_stay_within_the_record() -> None:
    """The document of the record can always be written: its integers have 32 and 53 bits."""
    tiny = RECORD.model_copy(update={"history": (FIRST.model_copy(update={"measured_microseconds": 1}), SECOND)})
    measured = with_measured_gain(tiny, plan_hash="B", measured_us=2**53, steps=10**6)
    worse = decide(PricedCandidate(embedding_ms=1e9, incumbent_ms=1e-300, predicted_ms=1e300), restart(), AUTO)
    costly = decide(PAYS, restart(checkpoint_ms=1e300), AUTO)
    candidate = CandidatePlan(number=1, since_step=1, start_time=START)
    for decision in (worse, costly):
        found = judged(candidate, decision, total_ms=1e308, incumbent_ms=1e300)
        CandidatePlan.model_validate(found.model_dump())
        assert abs(promised_percent(decision, 1)) < 2**31

    assert measured.history[-1].measured_gain_percent == -(2**31 - 1)
    assert ReplanningStatus.model_validate(measured.model_dump()) == measured


@pytest.mark.parametrize(
    ("number", "verdict", "since_step", "due_s"),
    [
        (1, "GainTooSmall", 700, 1_800),
        (1, None, 700, 1_800),
        (1, "GainTooSmall", 600, 3_600),
        (2, "NoBetterPlan", 600, 7_200),
        (90, "CandidateFailed", 600, 64 * 1_800),
        (1, "BetterPlanFound", 600, None),
        (1, "CoolingDown", 600, None),
        (1, None, 600, None),
    ],
)
def test_another_candidate_is_due(number: int, verdict: str | None, since_step: int, due_s: int | None) -> None:
    """For another change after the cooldown, for one that goes on ever less often, and never next to one that pays."""
    candidate = CandidatePlan(number=number, since_step=600, start_time=START, verdict=verdict)

    def is_due(waited_s: int) -> bool:
        now = START + timedelta(seconds=waited_s)
        return is_candidate_due(candidate, since_step=since_step, now=now)

    if due_s is None:
        assert not is_due(10**7)
    else:
        assert (is_due(due_s - 1), is_due(due_s)) == (False, True)


def test_a_clock_that_was_set_back_holds_no_candidate_up() -> None:
    """How long the last one was made before is not known then; one that pays stays."""
    before = START - timedelta(days=1)
    failed = CandidatePlan(number=3, since_step=600, start_time=START, verdict="CandidateFailed")
    paying = failed.model_copy(update={"verdict": ReplanVerdict.BETTER_PLAN_FOUND.value})
    due = [
        is_candidate_due(candidate, since_step=step, now=before)
        for candidate, step in ((failed, 600), (failed, 700), (paying, 700), (paying, 600))
    ]

    assert due == [True, True, True, False]
