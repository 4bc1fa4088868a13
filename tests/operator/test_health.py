"""What probes and Prometheus ask the operator."""

import asyncio

import aiohttp
from neuroshard_api.job.status import StageName, StageState, StageStatus, Status
from neuroshard_decisions.status import read_status
from neuroshard_operator.cluster.watched import WATCHED
from neuroshard_operator.process.health import health_server
from neuroshard_operator.process.metrics import OperatorMetrics
from support.operator.operator_world import World


def ask(path: str, *, alive: bool = True, ready: bool = True) -> tuple[int, str]:
    """Return status and text of a page."""

    async def asked() -> tuple[int, str]:
        server = health_server(
            port=0, registry=OperatorMetrics().registry, is_alive=lambda: alive, is_ready=lambda: ready
        )
        async with (
            server as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    return asyncio.run(asked())


def test_a_live_operator_answers_ok() -> None:
    """Both probes."""
    assert ask("/healthz") == (200, "ok\n")
    assert ask("/readyz") == (200, "ok\n")


def test_a_hanging_operator_says_so() -> None:
    """The kubelet restarts it."""
    status, text = ask("/healthz", alive=False)

    assert status == 503
    assert "resync" in text
    assert ask("/readyz", ready=False)[0] == 503


def test_metrics_are_served() -> None:
    """In Prometheus' own format."""
    assert "neuroshard_queue_depth" in ask("/metrics")[1]


def test_a_stage_that_ends_is_counted_once() -> None:
    """From its start to its end, whatever is written afterwards."""
    metrics = OperatorMetrics()
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z"}
    done = read_status({"stages": [{"name": "Planning", "state": "Succeeded", **times}]})
    active = Status(stages=(StageStatus(name=StageName.PLANNING, state=StageState.ACTIVE),))
    metrics.status_written(active, done)
    metrics.status_written(done, done)

    labels = {"stage": "Planning", "outcome": "succeeded"}
    assert metrics.registry.get_sample_value("neuroshard_stage_seconds_count", labels) == 1
    assert metrics.registry.get_sample_value("neuroshard_stage_seconds_sum", labels) == 60


def test_restarts_and_gains_are_counted_from_statuses() -> None:
    """Counted restarts and disruptions apart; the plan's gain when a plan comes."""
    metrics = OperatorMetrics()
    cost = {"predicted": {"totalMicroseconds": 100}, "baseline": {"totalMicroseconds": 150}, "errorPercent": 10}
    after = {"restarts": 3, "restartsCountTowardsMax": 1, "plan": {"hash": "h"}, "cost": cost}
    metrics.status_written(Status(), read_status({**after, "stage": "Failed", "reason": "WorkersFailed"}))

    value = metrics.registry.get_sample_value
    assert value("neuroshard_worker_restarts_total", {"counted": "true"}) == 1
    assert value("neuroshard_worker_restarts_total", {"counted": "false"}) == 2
    assert value("neuroshard_plan_gain_ratio_sum") == 1.5
    assert value("neuroshard_prediction_error_ratio_bucket", {"le": "0.1"}) == 1
    assert value("neuroshard_prediction_error_ratio_bucket", {"le": "0.05"}) == 0
    assert value("neuroshard_jobs_ended_total", {"outcome": "Failed", "reason": "WorkersFailed"}) == 1


def test_the_objects_that_the_watches_show_are_counted_when_metrics_are_scraped() -> None:
    """A deletion that no watch brought shows as one object more than the API server has."""
    metrics, world = OperatorMetrics(), World()
    watched = world.watches.brought
    metrics.watch_objects(WATCHED, watched.count)
    world.submit("early")
    world.submit("late")
    world.watches.catch_up()

    def count(kind: str) -> float | None:
        return metrics.registry.get_sample_value("neuroshard_watched_objects", {"kind": kind})

    assert {kind: count(kind) for kind in WATCHED} == {**dict.fromkeys(WATCHED, 0), "DLRMTrainingJob": 2}
    world.remove("DLRMTrainingJob", "early")
    world.watches.lose_deletions()
    world.watches.catch_up()
    assert count("DLRMTrainingJob") == 2
    world.remove("DLRMTrainingJob", "late")
    world.watches.catch_up()
    assert count("DLRMTrainingJob") == 1
