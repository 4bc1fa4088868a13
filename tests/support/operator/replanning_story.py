"""What jobs with changed inputs or slow nodes have in common: what they report, and what follows in their world."""

from collections.abc import Mapping
from typing import Any

from neuroshard_api.documents.drift_report import DriftChange, DriftReport, Evidence, SlowdownCause, StepPart
from neuroshard_decisions import names
from neuroshard_decisions.observed.results import content_hash
from support import builders
from support.operator.operator_process import Story
from support.trainer import training_builders

VOLUME: dict[str, Any] = {"checkpoint": {"persistentVolumeClaim": {"claimName": "volume"}}}
AUTO: dict[str, Any] = {**VOLUME, "replanning": {"mode": "Auto"}}
EVIDENCE = (Evidence(part=StepPart.COMPUTE, rank=1, reference_ms=2.0, recent_ms=4.0),)
DRIFTED = DriftChange(cause=SlowdownCause.INPUTS_DRIFTED, tables=("t0",), since_step=600, evidence=EVIDENCE)
SLOW = DriftChange(cause=SlowdownCause.NODE_SLOW, ranks=(1,), since_step=600, evidence=EVIDENCE)


def plan_in_force(story: Story) -> str:
    """Return the hash of the plan that the newest workers mount."""
    workers = story.world.of_kind("Job", names.WORKER)[-1]
    volumes = {each["name"]: each for each in workers["spec"]["template"]["spec"]["volumes"]}
    return content_hash(story.world.objects["ConfigMap", volumes["plan"]["configMap"]["name"]])


def report(
    story: Story,
    *changes: DriftChange,
    step: int = 5_000,
    embedding_ms: float = 5.0,
    plan: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    **fields: Any,
) -> DriftReport:
    """Let the workers report steps, progress, drift, and inputs under the plan in force.

    Args:
        story: of the job.
        changes: that the drift report names.
        step: last one.
        embedding_ms: of a step.
        plan: hash of the plan. If unset: the one in force.
        inputs: fields of the input statistics.
        fields: of the drift report.
    """
    plan = plan or plan_in_force(story)
    drift = training_builders.drift_report(
        plan_sha256=plan,
        last_step=step,
        changes=changes,
        **{"checkpoint_ms": 1_000.0, "start_ms": 2_000.0, **fields},
    )
    ranks = tuple(builders.rank_times(rank, forward_compute_ms=embedding_ms - 4.0) for rank in (0, 1))
    files = {
        "step-report.json": builders.step_report(plan_sha256=plan, ranks=ranks, first_step=step - 100),
        "progress.json": builders.progress(step=step, num_steps=100_000),
        "drift-report.json": drift,
        "input-statistics.json": training_builders.input_statistics(**{"plan_sha256": plan, **(inputs or {})}),
    }
    story.world.publish("job-report", {name: each.to_json().encode() for name, each in files.items()})
    return drift


def replaced(story: Story) -> Story:
    """Let the old workers end, and the new ones start."""
    story.bury()
    story.start_workers()
    return story


def candidate(story: Story) -> Story:
    """Let the inputs of a job drift, and its candidate be planned."""
    report(story, DRIFTED)
    story.later(60)
    return story.do(names.PLANNER)
