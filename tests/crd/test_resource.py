"""What the API server makes of a good job: defaults, columns, status, examples."""

import json
from pathlib import Path

import pytest
import yaml
from neuroshard_api.job.crd import PRINTER_COLUMNS
from neuroshard_api.job.status import Status, Workers
from neuroshard_api.job.training_job import KIND, DLRMTrainingJob
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.waiting import eventually
from support import builders
from support.jobs.stored_jobs import Jobs

pytestmark = pytest.mark.api_server
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9][0-9]-*.yaml"))


@pytest.fixture
def kubectl(jobs: Jobs, bare_api: BareApi) -> Kubectl:
    """A kubectl of that API server, which serves the resource."""
    assert jobs
    return bare_api.kubectl


def test_the_api_server_fills_in_the_defaults_of_the_models(jobs: Jobs) -> None:
    """A job means the same in a cluster and on one machine."""
    made = DLRMTrainingJob.from_data(jobs.create(builders.job_data("defaults")))

    assert made.spec == builders.job("defaults").spec


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_taken(jobs: Jobs, path: Path) -> None:
    """Anyone who copies an example has a job that works, and it is read as it was written."""
    for job in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if job["kind"] == KIND:
            made = DLRMTrainingJob.from_data(jobs.create(job, dry_run="All"))

            assert made.spec == DLRMTrainingJob.from_data(job).spec


def test_a_job_as_the_models_write_it_is_taken(jobs: Jobs) -> None:
    """Everything that to_json writes is in the definition."""
    job = builders.job(trainer={"env": [{"name": "A", "value": "$(B)"}]}, profiler={"deviceType": "h100-80gb"})

    assert jobs.refusal(json.loads(job.to_json())) == ""


def test_a_status_as_the_models_write_it_is_kept_whole(jobs: Jobs) -> None:
    """No field of the status models is unknown to the API server, which would drop it."""
    jobs.create(builders.job_data("status"))
    status = builders.status()
    written = status.model_dump(mode="json", exclude_none=True)

    assert Status.model_validate_json(json.dumps(jobs.change_status("status", written)["status"])) == status


def test_conditions_merge_by_type(jobs: Jobs, kubectl: Kubectl) -> None:
    """Two writers of different conditions do not overwrite each other."""
    jobs.create(builders.job_data("conditions"))
    for manager, kind in (("one", "Planned"), ("two", "Running")):
        condition = builders.condition(kind).model_dump(mode="json", exclude_none=True)
        data = builders.job_data("conditions") | {"status": {"conditions": [condition]}}
        kubectl(
            "apply",
            "--server-side",
            "--subresource=status",
            f"--field-manager={manager}",
            "--filename=-",
            stdin=yaml.safe_dump(data),
        )

    conditions = kubectl.get("dlrmjob", "conditions")["status"]["conditions"]
    assert [each["type"] for each in conditions] == ["Planned", "Running"]


def test_the_spec_is_not_changed_through_the_status(jobs: Jobs) -> None:
    """Who may write the status may not thereby change what is wanted."""
    jobs.create(builders.job_data("both"))
    changed = jobs.change_status("both", {"workers": Workers(desired=1).model_dump(exclude_none=True)})

    assert changed["metadata"]["generation"] == 1


@pytest.mark.parametrize("name", ["dlrmtrainingjobs", "dlrmtrainingjob", "dlrmjob", "dtj"])
def test_kubectl_knows_the_short_names(kubectl: Kubectl, name: str) -> None:
    """Nobody types the whole name."""
    assert kubectl("get", name, "--all-namespaces") is not None


def test_kubectl_shows_stage_and_cost(jobs: Jobs, kubectl: Kubectl) -> None:
    """One line says where a job is, what it should cost and what it costs; a wide one has its metrics."""
    jobs.create(builders.job_data("shown"))
    jobs.change_status("shown", builders.status().model_dump(mode="json", exclude_none=True))

    header, line = kubectl("get", "dtj", "shown", "--output=wide").splitlines()
    cells = dict(zip(header.split(), line.split(), strict=True))

    assert list(cells) == ["NAME", *(str(column["name"]).upper() for column in PRINTER_COLUMNS)]
    assert cells["STAGE"] == "Running"
    assert (cells["PREDICTED(US)"], cells["MEASURED(US)"]) == ("1500", "1650")
    assert (cells["NE"], cells["AUC"], cells["BEST"]) == ("0.83", "0.79", "fast")


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("spec.model.embeddingTables.poolingFactor", "Mean lookups per sample"),
        ("status.cost.errorPercent", "How far the measured total is above the predicted one"),
    ],
    ids=["spec", "status"],
)
def test_kubectl_explains_a_field(kubectl: Kubectl, field: str, sentence: str) -> None:
    """The reference is at hand in the terminal."""
    explain = ("explain", f"dlrmjob.{field}")  # published after the resource is served
    assert eventually("the field is explained", lambda: kubectl(*explain), accept=lambda text: sentence in text)
