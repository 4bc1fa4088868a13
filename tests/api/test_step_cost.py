"""The cost of a step in the words of a job's status."""

import pytest
from neuroshard_api.documents.dense_layout import DenseCost
from neuroshard_api.documents.plan_parts import BaselineCost, CollectiveCost, PlanCost
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.step_report import HostBoundShares, MeasuredCollective, MeasuredDuplication
from neuroshard_api.job.status import HostBoundPart, PredictedCost
from neuroshard_api.job.step_cost import (
    baseline_cost,
    compared_collectives,
    dense_note,
    error_percent,
    is_host_bound,
    lookahead_note,
    measured_cost,
    measurement_notes,
    planned_times,
    predicted_cost,
    simulation_note,
)
from neuroshard_api.sharding.collectives import CollectiveKind, CollectiveTime
from neuroshard_api.sharding.kinds import Family
from support import builders


def test_prediction_and_measurement_meet_collective_by_collective() -> None:
    """Those of the slowest device and the slowest rank; one that only one side names is left out."""
    predicted = tuple(
        CollectiveCost(kind=kind, family=family, forward_ms=1.0, backward_ms=2.0, num_bytes=8)
        for kind, family in ((CollectiveKind.INDICES, None), (CollectiveKind.ALL_TO_ALL, Family.COLUMNS))
    )
    plan = builders.plan()
    devices = tuple(
        cost.model_copy(update={"collectives": predicted if index == plan.slowest_device else ()})
        for index, cost in enumerate(plan.predicted.devices)
    )
    plan = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"devices": devices})})
    measured = (
        MeasuredCollective(kind=CollectiveKind.ALL_REDUCE, family=Family.REPLICATED, backward_ms=9.0),
        MeasuredCollective(
            kind=CollectiveKind.ALL_TO_ALL, family=Family.COLUMNS, forward_ms=3.0, backward_ms=4.0, backward_wait_ms=1.5
        ),
    )
    slow = builders.rank_times(1).model_copy(update={"backward_compute_ms": 1e3, "collectives": measured})
    report = builders.step_report(ranks=(builders.rank_times(0), slow))

    (found,) = compared_collectives(plan, report)

    assert (found.kind, found.family) == (CollectiveKind.ALL_TO_ALL, Family.COLUMNS)
    exchange = CollectiveTime(kind=CollectiveKind.ALL_TO_ALL, family=Family.COLUMNS, forward_ms=3.0, backward_ms=2.5)
    assert (found.predicted, found.measured) == (predicted[1], exchange)


def test_predicted_is_the_slowest_device_in_microseconds() -> None:
    """Its parts add up to the total; waiting for others is part of the forward all-to-all."""
    slow = builders.device_cost(
        forward_compute_ms=1.0,
        backward_compute_ms=2.0,
        wait_ms=0.25,
        forward_communication_ms=0.5,
        backward_communication_ms=0.75,
    )
    fast = builders.device_cost(forward_compute_ms=0.1, backward_compute_ms=0.1)
    plan = builders.plan()
    plan = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"devices": (fast, slow)})})

    cost = predicted_cost(plan)

    assert cost.compute_microseconds == 3000
    assert cost.forward_communication_microseconds == 750
    assert cost.backward_communication_microseconds == 750
    assert cost.total_microseconds == round(1000 * plan.predicted.total_ms)
    assert cost.source == plan.predicted.source


def test_memory_is_that_of_the_fullest_device() -> None:
    """All that its ledger names, in MiB."""
    full = builders.device_memory(reserve_bytes=2**30)
    plan = builders.plan(memory=(builders.device_memory(reserve_bytes=0), full))

    ledger = full.model_dump(exclude_none=True)
    needed = sum(ledger.values()) - ledger["capacity_bytes"]
    assert predicted_cost(plan).max_device_memory_mib == needed // 2**20


def test_the_cheapest_baseline_is_told() -> None:
    """Those that found no plan do not count."""
    baselines = (
        BaselineCost(algorithm=Algorithm.RANDOM, problem="nothing fits"),
        BaselineCost(algorithm=Algorithm.SIZE_GREEDY, total_ms=3.0),
        BaselineCost(algorithm=Algorithm.DIM_GREEDY, total_ms=2.0),
    )
    best = baseline_cost(builders.plan(baselines=baselines))

    assert best is not None
    assert (best.algorithm, best.total_microseconds) == ("dim_greedy", 2000)
    assert baseline_cost(builders.plan(baselines=baselines[:1])) is None


def test_measured_is_the_slowest_rank_in_what_a_plan_predicts() -> None:
    """A rank that waits for data is not slow in that sense; the step as a whole is reported as well."""
    slow = builders.rank_times(0, forward_compute_ms=5.0, step_ms=9.0)
    waits = builders.rank_times(1, data_wait_ms=50.0, step_ms=60.0)

    cost = measured_cost(builders.step_report(ranks=(slow, waits), first_step=100, num_steps=50))

    assert (cost.total_microseconds, cost.compute_microseconds) == (9000, 6000)
    assert (cost.step_microseconds, cost.steps) == (60_000, 150)


def test_waiting_counts_as_far_as_longer_lookups_explain_it() -> None:
    """A plan predicts the wait for uneven lookups; ranks that come later by anything else are in no total."""
    waits = (
        MeasuredCollective(kind=CollectiveKind.INDICES, forward_ms=1.0, forward_wait_ms=0.5),
        MeasuredCollective(
            kind=CollectiveKind.ALL_TO_ALL,
            family=Family.COLUMNS,
            forward_ms=8.0,
            forward_wait_ms=6.0,
            backward_ms=5.0,
            backward_wait_ms=3.0,
        ),
    )
    times = {"backward_compute_ms": 9.0, "forward_communication_ms": 8.0, "backward_communication_ms": 5.0}
    waiting = builders.rank_times(0, forward_compute_ms=2.0, collectives=waits, **times)
    late = builders.rank_times(1, forward_compute_ms=4.0)
    report = builders.step_report(ranks=(waiting, late))

    first, _ = planned_times(report.ranks)
    measured = measured_cost(report)

    assert (first.input_communication_ms, first.forward_communication_ms, first.backward_communication_ms) == (
        0.5,
        8.0 - (6.0 - 2.0),
        2.0,
    )
    assert measured.total_microseconds == 1000 * (2 + 9 + 0.5 + 4 + 2)
    assert measured.forward_communication_microseconds == 4500
    assert measured.peer_wait_microseconds == 1000 * (0.5 + 4 + 3)


def test_a_trainer_that_does_not_tell_waits_has_them_in_its_exchanges() -> None:
    """As reports of earlier releases do."""
    measured = measured_cost(builders.step_report())

    assert (measured.backward_communication_microseconds, measured.peer_wait_microseconds) == (1000, None)


def test_the_error_is_measured_above_predicted_in_percent() -> None:
    """Below 0: it was faster than predicted."""
    measured = measured_cost(builders.step_report())
    predicted = predicted_cost(builders.plan())

    def error_of(total: int | None) -> int | None:
        return error_percent(predicted.model_copy(update={"total_microseconds": total}), measured)

    assert (error_of(2500), error_of(6250), error_of(0), error_of(None)) == (100, -20, None, None)


@pytest.mark.parametrize(
    ("predicted", "measured", "is_told"),
    [
        pytest.param("simulated:NVIDIA-H200", "measured:NVIDIA H200", True, id="the same GPU, as its driver writes it"),
        pytest.param("measured:NVIDIA H200", "measured:NVIDIA H200", True, id="the same GPU"),
        pytest.param("simulated:NVIDIA-H200", "cpu:Intel(R) Xeon(R) Processor", False, id="a CPU in place of a GPU"),
        pytest.param("simulated:NVIDIA-H200", "measured:NVIDIA-H100-80GB-HBM3", False, id="another GPU"),
    ],
)
def test_an_error_is_told_of_the_device_that_was_predicted_for(predicted: str, measured: str, *, is_told: bool) -> None:
    """Next to another device's time the difference would say nothing of the prediction."""
    before = predicted_cost(builders.plan()).model_copy(update={"source": predicted})
    after = measured_cost(builders.step_report()).model_copy(update={"source": measured})

    assert (error_percent(before, after) is not None) is is_told


@pytest.mark.parametrize(
    ("predicted", "measured", "is_said"),
    [
        ("simulated:NVIDIA-H100", "cpu:Xeon", True),
        ("simulated:NVIDIA-H100", "measured:NVIDIA-H100", True),
        ("simulated:NVIDIA-H100", "simulated:NVIDIA-H100", False),
        ("cpu:Xeon", "cpu:Xeon", False),
        ("simulated:NVIDIA-H100", None, False),
    ],
)
def test_a_simulated_prediction_of_real_steps_is_told_in_words(
    predicted: str, measured: str | None, *, is_said: bool
) -> None:
    """Its error may be thousands of percent, and is the simulation's alone."""
    note = simulation_note(
        predicted_cost(builders.plan()).model_copy(update={"source": predicted}),
        measured_cost(builders.step_report()).model_copy(update={"source": measured}),
    )

    assert (note is not None) is is_said
    assert note is None or (predicted in note and str(measured) in note)


def test_the_dense_part_is_next_to_both_totals() -> None:
    """Predicted with its layout or replicated, measured on the rank that is slowest in its passes, in no total."""
    dense = {"dense_forward_ms": 1.0, "dense_backward_ms": 2.0, "dense_collectives_ms": 0.5}
    ranks = (builders.rank_times(0, **dense), builders.rank_times(1, **{**dense, "dense_forward_ms": 2.0}))
    plan = builders.plan().model_copy(
        update={"replicated_dense": DenseCost(compute_ms=2.0, exposed_ms=0.5, source="simulated:test")}
    )

    predicted, measured = predicted_cost(plan), measured_cost(builders.step_report(ranks=ranks))

    assert (predicted.dense_microseconds, measured.dense_microseconds) == (2500, 4500)
    assert predicted.total_microseconds == predicted_cost(builders.plan()).total_microseconds
    assert measured.total_microseconds == measured_cost(builders.step_report()).total_microseconds
    assert dense_note(predicted, measured).startswith("Dense part, not in the totals: 2.500 ms predicted, ")
    assert "4.500 ms measured" in dense_note(predicted, measured)
    assert "not predicted" in dense_note(predicted_cost(builders.plan()), measured)
    assert measured_cost(builders.step_report()).dense_microseconds is None


def test_the_expansion_of_repeats_is_in_both_totals() -> None:
    """Predicted and measured have it next to their other parts; without repeats left out there is none."""
    slow = builders.device_cost(forward_compute_ms=1.0, expansion_ms=0.5)
    plan = builders.plan()
    plan = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"devices": (slow,)})})
    repeats = (MeasuredDuplication(group="user", factor=2.0),)
    times = builders.rank_times(0)
    report = builders.step_report(ranks=(times.model_copy(update={"expansion_ms": 0.25}),), duplication=repeats)

    assert predicted_cost(plan).expansion_microseconds == 500
    measured, plain = measured_cost(report), measured_cost(builders.step_report(ranks=(times,)))
    assert (measured.expansion_microseconds, plain.expansion_microseconds) == (250, None)
    assert measured.total_microseconds is not None
    assert plain.total_microseconds is not None
    assert measured.total_microseconds - plain.total_microseconds == 250


def test_the_wait_for_servers_is_in_both_totals() -> None:
    """It is a part of the forward exchange, as the wait for slower devices is."""
    cost, alone = builders.device_cost(server_ms=3.0, server_hidden_ms=1.0), builders.device_cost()
    with_servers, without = (
        predicted_cost(
            builders.plan(
                predicted=PlanCost(total_ms=each.total_ms, source="simulated:test", devices=(each,)), memory=()
            )
        )
        for each in (cost, alone)
    )

    assert with_servers.total_microseconds is not None
    assert without.total_microseconds is not None
    assert with_servers.total_microseconds == without.total_microseconds + 2000
    assert with_servers.forward_communication_microseconds is not None
    assert without.forward_communication_microseconds is not None
    assert with_servers.forward_communication_microseconds == without.forward_communication_microseconds + 2000
    plain, waiting = (
        measured_cost(builders.step_report(ranks=(builders.rank_times(0, server_ms=waited_ms),)))
        for waited_ms in (None, 2.0)
    )
    assert waiting.total_microseconds is not None
    assert plain.total_microseconds is not None
    assert waiting.total_microseconds == plain.total_microseconds + 2000


def test_what_lookahead_hides_is_told_apart_from_the_totals() -> None:
    """Of both, where anything is looked up ahead."""
    plain, ahead = (
        measured_cost(builders.step_report(ranks=(builders.rank_times(0, server_ms=2.0, server_hidden_ms=hidden_ms),)))
        for hidden_ms in (None, 5.0)
    )
    predicted = PredictedCost(server_hidden_microseconds=6000)

    assert ahead.total_microseconds == plain.total_microseconds
    assert ahead.server_hidden_microseconds == 5000
    assert "6.000 ms predicted, 5.000 ms measured" in (lookahead_note(predicted, ahead) or "")
    assert lookahead_note(PredictedCost(), plain) is None


def test_a_part_that_the_host_bound_is_no_error_of_the_prediction() -> None:
    """It is named in one sentence; only parts of most steps of the slowest rank count, and the dense part of any."""
    predicted = predicted_cost(builders.plan())
    seldom, mostly = HostBoundShares(forward_compute=0.4), HostBoundShares(forward_compute=0.6, dense_backward=1.0)
    slow = builders.rank_times(1, forward_compute_ms=9.0, host_bound=mostly)
    bound = measured_cost(builders.step_report(ranks=(builders.rank_times(0), slow)))
    free = measured_cost(builders.step_report(ranks=(slow.model_copy(update={"host_bound": seldom}),)))
    elsewhere = measured_cost(
        builders.step_report(
            ranks=(builders.rank_times(0, host_bound=mostly), slow.model_copy(update={"host_bound": None}))
        )
    )

    assert bound.host_bound_parts == (HostBoundPart.COMPUTE, HostBoundPart.DENSE)
    assert error_percent(predicted, bound) is None
    [note] = measurement_notes(bound)
    assert "later than the device could run them" in note
    assert "(compute, dense part)" in note
    assert (free.host_bound_parts, measurement_notes(free)) == (None, [])
    assert error_percent(predicted, free) is not None
    assert elsewhere.host_bound_parts == (HostBoundPart.DENSE,)
    assert not is_host_bound(elsewhere)
    assert error_percent(predicted, elsewhere) is not None
    planned = predicted.model_copy(update={"dense_microseconds": 1000})
    assert "%" not in dense_note(planned, bound.model_copy(update={"dense_microseconds": 3000}))


def test_times_of_a_worker_that_waited_for_a_processor_are_told() -> None:
    """By the one that waited most; below a quarter there is no sentence."""
    shares = {"busy": (0.02, 0.552), "usual": (0.02, 0.2), "unknown": (None, None)}
    costs = {
        name: measured_cost(
            builders.step_report(
                ranks=tuple(builders.rank_times(rank, processor_wait_share=share) for rank, share in enumerate(each))
            )
        )
        for name, each in shares.items()
    }

    [note] = measurement_notes(costs["busy"])
    assert [cost.processor_wait_percent for cost in costs.values()] == [55, 20, None]
    assert note.startswith("A worker waited for a processor for 55 %")
    assert not measurement_notes(costs["usual"])
    assert not measurement_notes(costs["unknown"])
