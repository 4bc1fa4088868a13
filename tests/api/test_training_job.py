"""Jobs read from files and from the API server."""

import json
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import DataType, IdRule, Optimizer, Pooling
from neuroshard_api.job.status import Status
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.workers import Trainer
from support import builders
from support.jobs import broken_jobs, broken_rules, broken_schemas
from support.jobs.broken_jobs import BrokenJob

each_broken_job = pytest.mark.parametrize(
    "broken", [*broken_rules.RULES, *broken_schemas.SCHEMA], ids=lambda broken: broken.name
)


def problem_of(data: object) -> str:
    """Return the message with which a job is refused."""
    with pytest.raises(DocumentError) as caught:
        DLRMTrainingJob.from_data(data, where="job.yaml")
    return str(caught.value)


@each_broken_job
def test_a_broken_job_is_refused_with_path_and_reason(broken: BrokenJob) -> None:
    """People see the field's path, what was found and what is right."""
    path = broken.package_path or broken.path.replace("[cpu]", ".cpu")

    assert problem_of(broken.data).startswith(f"job.yaml: {path}: {broken.package}")


@pytest.mark.parametrize(("name", "message"), [pytest.param(*case[1:], id=case[0]) for case in broken_jobs.NAMES])
def test_a_name_that_children_could_not_bear_is_refused(name: str, message: str) -> None:
    """Host names of pods are made from it."""
    assert message in problem_of(builders.job_data(name))


@pytest.mark.parametrize(("spec", "path"), [pytest.param(*case[1:], id=case[0]) for case in broken_jobs.UNKNOWN])
def test_an_unknown_field_is_refused(spec: dict[str, Any], path: str) -> None:
    """A misspelt field must not be silently ignored."""
    assert problem_of(builders.job_data(**spec)).startswith(f"job.yaml: {path}: is not a known key; hint: ")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"trainer": {"numNode": 2}}, "did you mean numNodes"),
        ({"trainer": {"num_nodes": 2}}, "did you mean numNodes"),
        ({"planner": {"NumRows": 2}}, "check its spelling or remove it"),
        (
            {"failurePolicy": {"rules": [{"name": "a", "action": "FailJob", "onExitCode": {}}]}},
            "did you mean onExitCodes",
        ),
    ],
    ids=["letter", "case", "nothing near", "in a list"],
)
def test_the_nearest_field_is_named(spec: dict[str, Any], hint: str) -> None:
    """Of those at that place of the job."""
    assert problem_of(builders.job_data(**spec)).endswith(f"hint: {hint}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "must hold a DLRMTrainingJob, found nothing; hint: is this another kind of document?"),
        ([], "must hold a DLRMTrainingJob, found a list; hint: is this another kind of document?"),
        (
            {},
            (
                "apiVersion: is missing; kind: is missing; hint: add `apiVersion: training.neuroshard.dev/v1alpha1`"
                "; hint: add `kind: DLRMTrainingJob`"
            ),
        ),
        (
            builders.job_data() | {"apiVersion": "v1"},
            "apiVersion: is 'v1', expected 'training.neuroshard.dev/v1alpha1'",
        ),
        (builders.job_data() | {"kind": "Job"}, "kind: is 'Job', expected 'DLRMTrainingJob'"),
        (builders.job_data() | {"metadata": {}}, "metadata.name: is missing"),
    ],
    ids=["nothing", "list", "empty", "version", "kind", "nameless"],
)
def test_what_is_no_job_is_refused(data: object, message: str) -> None:
    """The message says what is there instead."""
    assert problem_of(data) == f"job.yaml: {message}"


GPUS = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
WIDE = {"embeddingTables": [{"name": "title", "numEmbeddings": 1000, "embeddingDim": 4096}], "batchSizePerDevice": 64}
ONLY_ROWS = {"shardingTypes": ["TableWise", "RowWise"]}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"planner": ONLY_ROWS}, r"model.embeddingTables\[0\].embeddingDim: is 4,096.*hint: add ColumnWise there"),
        ({"experimental": {"planner": {"maxShardWidth": 4096}}}, "experimental.planner.maxShardWidth: is 4,096.*2,048"),
    ],
    ids=["uncut", "wider-than-the-kernels"],
)
def test_what_no_kernel_of_a_gpu_takes_is_refused_before_any_plan(spec: dict[str, Any], path: str) -> None:
    """CPUs take any width, and a table that may be cut by columns is cut."""
    builders.job(model=WIDE, trainer={}, **spec)
    builders.job(model=WIDE, trainer=GPUS, planner={"shardingTypes": ["TableWise", "Grid"]})
    builders.job(model=WIDE, trainer=GPUS)

    with pytest.raises(DocumentError, match=rf"spec\.{path}"):
        builders.job(model=WIDE, trainer=GPUS, **spec)


def test_a_job_survives_json() -> None:
    """What was written is read back equal."""
    job = builders.job(trainer={"numProcPerNode": 2, "env": [{"name": "A", "value": "1"}]})

    assert DLRMTrainingJob.from_data(json.loads(job.to_json())) == job


def test_metadata_of_the_api_server_is_passed_over() -> None:
    """It adds fields, and later releases add more."""
    data = builders.job_data()
    data["metadata"] |= {"managedFields": [{"manager": "kubectl"}], "generation": 3, "uid": "1-2"}

    job = DLRMTrainingJob.from_data(data)

    assert (job.metadata.generation, job.metadata.uid) == (3, "1-2")


@pytest.mark.parametrize(
    ("trainer", "devices"),
    [
        ({}, 1),
        ({"numProcPerNode": 3}, 3),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}, 8),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}}, 8),
        ({"resourcesPerNode": {"limits": {"amd.com/gpu": 4}}, "numProcPerNode": "gpu"}, 4),
        ({"resourcesPerNode": {"limits": {"habana.ai/gaudi": 8}}}, 8),
        ({"resourcesPerNode": {"limits": {"nvidia.com/mig-3g.40gb": 2}}}, 2),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}, "numProcPerNode": 2}, 2),
        ({"resourcesPerNode": {"limits": {"example.com/a100": 4, "rdma/hca": 1}}}, 1),
        ({"resourcesPerNode": {"limits": {"example.com/a100": 4}}, "gpuResource": "example.com/a100"}, 4),
        ({"resourcesPerNode": {"limits": {"cpu": "1500m"}}, "numProcPerNode": "cpu"}, 2),
        ({"resourcesPerNode": {"limits": {"cpu": 4}}, "numProcPerNode": "cpu"}, 4),
        ({"resourcesPerNode": {"limits": {"cpu": "1k"}}, "numProcPerNode": "cpu"}, 1000),
        ({"resourcesPerNode": {"limits": {"cpu": "2e1"}}, "numProcPerNode": "cpu"}, 20),
        ({"resourcesPerNode": {"limits": {"cpu": "4"}}}, 1),
    ],
    ids=[
        "default",
        "number",
        "gpus",
        "gpus-as-text",
        "amd",
        "gaudi",
        "mig",
        "fewer-than-gpus",
        "a-resource-that-is-no-known-gpu",
        "a-named-resource",
        "part-of-a-cpu",
        "cpus",
        "1k",
        "2e1",
        "auto-cpu",
    ],
)
def test_processes_follow_from_number_and_resources(trainer: dict[str, Any], devices: int) -> None:
    """One process per device: the number that torchrun gets and that the plan is made for."""
    spec = builders.job(trainer=trainer | {"numNodes": 2}).spec

    assert (spec.trainer.devices_per_node, spec.trainer.world_size) == (devices, 2 * devices)


def test_tables_become_a_table_set() -> None:
    """Text with a fraction becomes a number, names and types stay."""
    user = {
        "name": "user",
        "numEmbeddings": 1000,
        "embeddingDim": 16,
        "poolingFactor": "2.5",
        "dataType": "FP16",
        "pooling": "MEAN",
        "zipfExponent": "1.05",
        "featureNames": ["u", "v"],
        "idRule": "Hash",
        "colocationGroup": "both",
    }
    model = builders.job(model={"embeddingTables": [user], "embeddingOptimizer": "Adam"}).spec.model

    tables = model.inline_tables("job")

    assert tables is not None
    assert tables.optimizer is Optimizer.ADAM
    assert tables.tables[0] == builders.table(
        "user",
        num_embeddings=1000,
        embedding_dim=16,
        pooling_factor=2.5,
        data_type=DataType.FP16,
        pooling=Pooling.MEAN,
        zipf_exponent=1.05,
        feature_names=("u", "v"),
        id_rule=IdRule.HASH,
        colocation_group="both",
    )


def test_tables_of_a_config_map_are_not_inline() -> None:
    """They are read by anyone who can reach the ConfigMap."""
    reference = {"embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.csv"}}}

    assert builders.job(model=reference).spec.model.inline_tables("job") is None


def test_a_part_is_made_in_python_by_its_own_names() -> None:
    """Code reads snake_case, files camelCase; a status is written with the API server's names."""
    status = Status(observed_generation=1, conditions=(builders.condition(),))

    assert status.model_dump(mode="json", exclude_none=True, exclude_defaults=True) == {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Planned",
                "status": "True",
                "reason": "PlanWritten",
                "message": "2 tables",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
    }
    assert Trainer(num_nodes=2).num_nodes == 2


def test_a_part_is_frozen() -> None:
    """Work returns new values."""
    job = builders.job()

    with pytest.raises(ValueError, match="frozen"):
        job.spec.suspend = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ({}, None),
        ({"persistentVolumeClaim": {"claimName": "c"}}, 900),
        ({"persistentVolumeClaim": {"claimName": "c"}, "everySteps": 10}, None),
        ({"persistentVolumeClaim": {"claimName": "c"}, "everySeconds": 60}, 60),
        ({"persistentVolumeClaim": {"claimName": "c"}, "everySeconds": 0}, None),
        ({"everySeconds": 60}, 60),
    ],
)
def test_checkpoints_on_a_volume_are_at_most_a_quarter_of_an_hour_apart(
    checkpoint: dict[str, Any], expected: int | None
) -> None:
    """Unless the job says how often by steps or by time."""
    assert builders.job(checkpoint=checkpoint).spec.checkpoint.interval_seconds == expected


def test_a_wrong_name_is_named_with_the_problems_of_the_spec() -> None:
    """One run finds all that is to be corrected; the unit that was meant is computed."""
    data = builders.job_data(planner={"maxMemoryPerDevice": 80}) | {"metadata": {"name": "Ads_Ranking"}}
    with pytest.raises(DocumentError) as caught:
        DLRMTrainingJob.from_data(data)
    [size, name] = caught.value.problems

    assert size.startswith("spec.planner.maxMemoryPerDevice: ")
    assert size.endswith("found 80; hint: write 80Gi for 80 GiB")
    assert name.startswith("metadata.name must be lower-case")
