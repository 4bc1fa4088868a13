"""What workers report: progress, measured steps, devices, and the guards of narrow types."""

from typing import Any

import pytest
from neuroshard_api.documents.finding import DataFinding, FindingKind
from neuroshard_api.documents.progress import GuardRecord, GuardState
from neuroshard_decisions import names
from support import builders
from support.operator.operator_process import Story


def test_what_the_workers_measure_is_held_beside_the_prediction() -> None:
    """Once at once, then at most every 30 s, and the last word in any case."""
    story = Story().running()
    digest = story.status["plan"]["hash"].removeprefix("sha256:")

    def report(compute_ms: float) -> None:
        ranks = (builders.rank_times(0, forward_compute_ms=compute_ms), builders.rank_times(1))
        document = builders.step_report(plan_sha256=digest, ranks=ranks)
        story.world.publish("job-report", {"step-report.json": document.to_json().encode()})
        story.settle()

    report(2.0)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 6000
    predicted = story.status["cost"]["predicted"]["totalMicroseconds"]
    assert story.status["cost"]["errorPercent"] == round(100 * (6000 - predicted) / predicted)
    report(3.0)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 6000
    story.later(31)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 7000


@pytest.mark.parametrize(
    "source", [pytest.param(None, id="as planned"), pytest.param("measured:NVIDIA T4", id="another one")]
)
def test_workers_on_another_device_than_the_planned_one_are_shown(source: str | None) -> None:
    """Nodes without product labels, or a pool of mixed GPUs: the plan's costs do not hold there."""
    story = Story().running()
    plan = story.status["plan"]["hash"].removeprefix("sha256:")
    planned = story.status["cost"]["predicted"]["source"]
    report = builders.step_report(plan_sha256=plan, source=source or planned)
    story.world.publish("job-report", {"step-report.json": report.to_json().encode()})
    story.settle()

    found = story.warnings.get("OtherDevice", "")
    assert ("errorPercent" in story.status["cost"]) == (source is None)
    assert bool(found) == (source is not None)
    assert source is None or (source in found and planned in found)


def test_a_report_under_another_plan_is_not_believed() -> None:
    """It was measured by workers of an earlier plan."""
    story = Story().running()
    story.world.publish("job-report", {"step-report.json": builders.step_report().to_json().encode()})
    story.settle()

    assert "measured" not in story.status["cost"]


@pytest.mark.parametrize(
    ("run_id", "is_believed"),
    [
        ("{uid}-0", False),
        ("{uid}-1", True),
        ("7a1f0a1e-6d1c-4c7e-9d0b-5a3c2f1e8b90-1", False),
        (None, True),
        ("of-a-user-7", True),
    ],
    ids=[
        "of the attempt before",
        "of this attempt",
        "of a deleted job of the same name",
        "of an older trainer",
        "of a torchrun of one's own",
    ],
)
def test_a_report_that_an_earlier_attempt_left_on_the_volume_is_not_believed(
    run_id: str | None, *, is_believed: bool
) -> None:
    """The publisher of the next attempt finds it there before the trainer writes its own."""
    story = Story().running()
    run_id = run_id and run_id.format(uid=story.world.training_job("job")["metadata"]["uid"])
    story.fail(names.WORKER, 1)
    story.start_workers()
    digest = story.status["plan"]["hash"].removeprefix("sha256:")
    progress = builders.progress(run_id=run_id, checkpoint_step=200, checkpoint_path="/checkpoints/step-00000200")
    report = builders.step_report(plan_sha256=digest, run_id=run_id)
    files = {"progress.json": progress.to_json().encode(), "step-report.json": report.to_json().encode()}
    story.world.publish("job-report", files)
    story.settle()

    assert [name in story.status for name in ("trainerStatus", "checkpoint")] == [is_believed] * 2
    assert ("measured" in story.status["cost"]) == is_believed


def reported_by(story: Story, run_id: str, step: int = 200) -> None:
    """Let the workers of a run report, with a checkpoint, and the operator read it."""
    digest = story.status["plan"]["hash"].removeprefix("sha256:")
    path = f"/checkpoints/step-{step:08}"
    progress = builders.progress(step=step, run_id=run_id, checkpoint_step=step, checkpoint_path=path)
    source = story.status["cost"]["predicted"]["source"]
    report = builders.step_report(plan_sha256=digest, run_id=run_id, source=source)
    files = {"progress.json": progress.to_json().encode(), "step-report.json": report.to_json().encode()}
    story.world.publish("job-report", files)
    story.later(31)


def test_a_restart_clears_what_the_attempt_before_reported() -> None:
    """Until the next attempt reports, nothing is known of its progress, cost, and device; the checkpoint stays."""
    story = Story().running()
    uid = story.world.training_job("job")["metadata"]["uid"]
    reported_by(story, f"{uid}-0")
    assert "trainerStatus" in story.status
    assert {"measured", "errorPercent"} <= story.status["cost"].keys()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.later(40)

    assert story.seen == ("Running", "AllWorkersReady")
    assert "trainerStatus" not in story.status
    assert not {"measured", "errorPercent"} & story.status["cost"].keys()
    assert "predicted" in story.status["cost"]
    assert story.status["checkpoint"]["step"] == 200
    reported_by(story, f"{uid}-1", step=300)
    assert "trainerStatus" in story.status
    assert "measured" in story.status["cost"]


def test_a_report_that_names_no_attempt_keeps_its_time_over_a_restart() -> None:
    """Cleared, it would be read again from its ConfigMap and shown as one of the next attempt."""
    story = Story().running()
    reported_by(story, "of-a-user-7")
    before = story.status["trainerStatus"], story.status["cost"]["measured"]
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.later(40)

    assert (story.status["trainerStatus"], story.status["cost"]["measured"]) == before


def guarded_by(story: Story, gradients: dict[str, Any] | None = None, **fields: Any) -> None:
    """Let the workers report what their guards of narrow types found, and wait until that may be recorded."""
    of_gradients = None if gradients is None else GuardRecord.model_validate(gradients)
    progress = builders.progress(guard=GuardRecord.model_validate(fields), gradient_guard=of_gradients)
    story.world.publish("job-report", {"progress.json": progress.to_json().encode()})
    story.later(31)


def test_narrow_types_that_a_guard_suspends_are_shown_with_one_event() -> None:
    """The warning has the last change and the limit; a further report of the same suspension is not an event."""
    story = Story().running()
    guarded_by(story, num_checks=1, change_percent=0.01)
    kept = story.warnings
    shown = {
        each["name"]: each["value"] for each in story.status["trainerStatus"]["metrics"] if "change" in each["name"]
    }
    guarded_by(story, state=GuardState.SUSPENDED, since_step=400, num_checks=4, change_percent=0.2, times_suspended=1)
    suspended = story.warnings["CompressionSuspended"]
    guarded_by(story, state=GuardState.SUSPENDED, since_step=400, num_checks=4, change_percent=0.2, checks_suspended=3)

    assert (set(kept), shown) == ({"NoCheckpointVolume"}, {"narrow_types_change_percent": "0.01"})
    assert suspended.startswith("exchange is exact since step 400")
    assert "0.2 % in the last check, at most 0.05 % (checks: 4)" in suspended
    assert [event["reason"] for event in story.world.events].count("CompressionSuspended") == 1


def test_each_guard_that_suspends_narrow_types_has_an_event() -> None:
    """That of gradients is announced although pooled embeddings were exact before, and neither is announced twice."""
    story = Story().running()
    embeddings: dict[str, Any] = {
        "state": GuardState.SUSPENDED,
        "since_step": 400,
        "num_checks": 4,
        "change_percent": 0.2,
    }
    gradients = {"state": GuardState.SUSPENDED, "since_step": 40, "num_checks": 3, "change_percent": 100.0}
    guarded_by(story, **embeddings)
    for checks in (4, 5):
        guarded_by(story, gradients, **{**embeddings, "num_checks": checks})

    told = [event["message"] for event in story.world.events if event["reason"] == "CompressionSuspended"]
    assert [message.split("; ")[0] for message in told] == [
        "exchange is exact since step 400",
        "gradients travel whole since step 40",
    ]
    shown = story.warnings["CompressionSuspended"]
    assert shown.startswith("exchange is exact since step 400; gradients travel whole since step 40; ")


def test_a_guard_that_only_reports_shows_changed_accuracy() -> None:
    """Pooled embeddings travel on in narrow types, and a warning has the change."""
    story = Story().running()
    guarded_by(story, num_checks=4, change_percent=0.2, exceeded_in_a_row=4)

    assert "0.2 % in the last check, at most 0.05 % (checks: 4)" in story.warnings["AccuracyChanged"]
    assert "CompressionSuspended" not in story.warnings


def test_each_finding_has_one_event_and_what_lasts_is_a_warning() -> None:
    """Of more than five those that began first, and the number of the others; what has ended is in no warning."""
    story = Story().running()
    found = [
        DataFinding(
            kind=FindingKind.NULLS_ROSE, column=f"c{step}", first_step=step, last_step=step, before=0.0, now=0.5
        )
        for step in range(7)
    ]

    def report(*findings: DataFinding) -> None:
        progress = builders.progress(findings=findings)
        story.world.publish("job-report", {"progress.json": progress.to_json().encode()})
        story.later(31)

    report(found[0])
    report(*found[:2])
    first = story.warnings["DataAnomaly"]
    report(*found)
    many = story.warnings["DataAnomaly"]
    report(*(each.model_copy(update={"until_step": 9}) for each in found))

    assert first == " | ".join(each.text for each in found[:2])
    assert many == " | ".join([*(each.text for each in found[:5]), "2 more"])
    told = [event["message"] for event in story.world.events if event["reason"] == "DataAnomaly"]
    assert told == [each.text for each in found[:5]]
    assert "DataAnomaly" not in story.warnings


def test_a_variant_that_diverged_is_shown_with_its_step() -> None:
    """Next to the metrics of the others, by name."""
    story = Story().running()
    progress = builders.progress(metrics={"loss": 0.5, "base/loss": 0.5}, diverged={"fast": 40})
    story.world.publish("job-report", {"progress.json": progress.to_json().encode()})
    story.later(31)

    shown = {each["name"]: each["value"] for each in story.status["trainerStatus"]["metrics"]}
    assert shown == {"loss": "0.5", "base/loss": "0.5", "fast/diverged_at_step": "40"}
    assert story.status["trainerStatus"]["bestVariant"] == "base"
