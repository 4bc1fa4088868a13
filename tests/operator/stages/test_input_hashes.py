"""What a change of each field of the spec changes: one table says it, and the hashes follow it."""

from typing import Any

import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.spec import AFFECTS, Spec
from neuroshard_api.job.status import HardwareStatus
from neuroshard_decisions.stages.input_hashes import plan_inputs_hash, workers_hash
from support import builders

HARDWARE = HardwareStatus(fingerprint="sha256:1")
TABLE = {"name": "user", "numEmbeddings": 7, "embeddingDim": 16}
CHANGES: dict[str, tuple[str, Any]] = {
    "suspend": ("suspend", True),
    "managed_by": ("managedBy", "kueue.x-k8s.io/multikueue"),
    "launch_policy": ("launchPolicy", "Manual"),
    "variants": ("variants", [{"name": "base"}, {"name": "wide", "model": {"embeddingDim": 64}}]),
    "model": ("model", {"embeddingTables": [TABLE]}),
    "profiler": ("profiler", {"policy": "Never", "deviceType": "h100-80gb"}),
    "planner": ("planner", {"algorithm": "DimGreedy"}),
    "plan_ref": ("planRef", {"name": "plan"}),
    "trainer": ("trainer", {"numNodes": 3}),
    "pod_template": ("podTemplate", {"spec": {"nodeSelector": {"a": "b"}}}),
    "data": ("data", {"numSamples": 7}),
    "training": ("training", {"epochs": 7}),
    "checkpoint": ("checkpoint", {"keep": 7}),
    "failure_policy": ("failurePolicy", {"maxRestarts": 7}),
    "run_policy": ("runPolicy", {"cleanPodPolicy": "All"}),
    "replanning": ("replanning", {"mode": "Auto"}),
    "experimental": ("experimental", {"watchDrift": False, "planner": {"seed": 7}}),
}
"""Another value of every field, by its name in Python and in the resource."""


def test_the_table_names_every_field() -> None:
    """A field that is added must say what it changes."""
    assert set(AFFECTS) == set(Spec.model_fields) == set(CHANGES)


@pytest.mark.parametrize("name", sorted(AFFECTS))
def test_a_change_of_a_field_changes_what_the_table_says(name: str) -> None:
    """The plan, the workers, both or nothing: a field can be changed while workers run only if it changes neither."""
    key, value = CHANGES[name]
    before, after = builders.job().spec, builders.job(**{key: value}).spec

    plans = [plan_inputs_hash(spec, HARDWARE, replans=0) for spec in (before, after)]
    assert (plans[0] != plans[1]) == AFFECTS[name].plan
    workers = [workers_hash(spec, "plan") for spec in (before, after)]
    assert (workers[0] != workers[1]) == AFFECTS[name].workers


@pytest.mark.parametrize(
    "change",
    [
        {"profiler": {"resources": {"limits": {"cpu": "2"}}, "timeoutSeconds": 7000}},
        {"planner": {"image": "mine", "backoffLimit": 7, "seed": 7}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_how_others_measure_and_plan_changes_no_workers(change: dict[str, Any]) -> None:
    """A job that resumes with another image of its planner, and an equal plan, keeps its workers."""
    before, after = builders.job().spec, builders.job(experimental=change).spec

    assert workers_hash(before, "plan") == workers_hash(after, "plan")
    assert workers_hash(before, "plan") != workers_hash(before, "another plan")


@pytest.mark.parametrize("name", sorted(AFFECTS))
def test_what_changes_plan_or_workers_waits_for_suspension(name: str) -> None:
    """The API server refuses it while the job runs."""
    key, _ = CHANGES[name]
    frozen = any(rule.cel.startswith("oldSelf.suspend") and f"self.{key} ==" in rule.cel for rule in Spec.cel_rules)

    assert frozen == (AFFECTS[name].plan or AFFECTS[name].workers)


@pytest.mark.parametrize(
    ("choices", "units", "changes"),
    [({"policy": "Auto"}, {}, False), ({"policy": "Shard"}, {}, True), ({}, {"operatorSplitting": "Always"}, True)],
)
def test_how_the_dense_part_is_kept_decides_the_plan(
    choices: dict[str, str], units: dict[str, str], *, changes: bool
) -> None:
    """A job whose choice was changed while it was suspended is planned again."""
    before, after = (
        builders.job().spec,
        builders.job(training={"denseParallelism": choices}, experimental={"denseParallelism": units}).spec,
    )

    plans = {plan_inputs_hash(spec, HARDWARE, replans=0) for spec in (before, after)}

    assert (len(plans) == 2) == changes


def test_embedding_servers_decide_the_plan() -> None:
    """Their number, memory, and tables: a run that goes on with others is planned again."""
    servers = {"resources": {"limits": {"memory": "8Gi"}}, "tables": ["user"]}
    jobs: list[dict[str, Any]] = [
        {},
        *(
            {"experimental": {"pipeline": "None", "embeddingServers": {**servers, "replicas": count}}}
            for count in (1, 2)
        ),
    ]

    assert len({plan_inputs_hash(builders.job(**each).spec, HARDWARE, replans=0) for each in jobs}) == len(jobs)


DRAWN = {"syntheticSessions": {"groups": [{"features": ["user"], "changeProbability": "0.1"}]}}
SESSIONS: dict[str, Any] = {"experimental": {"data": DRAWN}}


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ({}, False),
        ({"experimental": {"data": {"sessionRun": 4}}}, False),
        (SESSIONS, True),
        ({"experimental": {"data": {**DRAWN, "sessionRun": 4}}}, True),
        ({**SESSIONS, "data": {"deduplication": "Off"}}, True),
    ],
    ids=["nothing", "run without sessions", "sessions", "run", "off"],
)
def test_sessions_decide_the_plan(spec: dict[str, Any], *, changes: bool) -> None:
    """How long runs are, and whether repeats may be left out; other jobs keep the hash of earlier releases."""
    hashes = {plan_inputs_hash(builders.job(**each).spec, HARDWARE, replans=0) for each in ({}, SESSIONS, spec)}
    before = plan_inputs_hash(builders.job().spec, HARDWARE, replans=0)
    after = plan_inputs_hash(builders.job(**spec).spec, HARDWARE, replans=0)

    assert (before != after) == changes
    assert len(hashes) == (3 if changes and spec != SESSIONS else 2)


OTHER_ALLOCATOR = {"env": [{"name": "PYTORCH_ALLOC_CONF", "value": "max_split_size_mb:64"}]}


@pytest.mark.parametrize(
    ("spec", "change"),
    [
        ({}, {"trainer": {"command": ["python"]}}),
        ({}, {"trainer": OTHER_ALLOCATOR}),
        ({}, {"experimental": {"pipeline": "None"}}),
        ({}, {"training": {"precision": "BF16"}}),
        ({}, {"training": {"communication": {"policy": "Auto"}}}),
        ({}, {"planner": {"hostMemoryPerNode": "64Gi"}}),
        ({}, {"experimental": {"planner": {"denseMemoryPerDevice": "1Gi"}}}),
        (SESSIONS, {"data": {"shuffle": False}}),
    ],
    ids=lambda each: "-".join(each) or "plain",
)
def test_what_changes_the_request_changes_the_plan(spec: dict[str, Any], change: dict[str, Any]) -> None:
    """A job that resumes with another trainer is not started under a plan for the one before."""
    jobs = [builders.job(**{"trainer": {}, **spec}), builders.job(**{"trainer": {}, **spec, **change})]
    topology = preset("h100-80gb").topology(devices_per_node=jobs[0].spec.trainer.devices_per_node)
    tables = jobs[0].spec.model.inline_tables("shop")
    assert tables is not None
    asked = [plan_request(job, tables=tables, topology=topology) for job in jobs]

    assert asked[0] != asked[1]
    assert len({plan_inputs_hash(job.spec, HARDWARE, replans=0) for job in jobs}) == len(jobs)
