"""``neuroshard submit``, ``status`` and ``logs`` against a real API server. It runs no pods, so no logs come of it."""

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.kubectl import Kubectl
from support.builders import job_data, step_report
from support.planner.plan_builders import plan_of
from support.trainer import training_builders

pytestmark = [pytest.mark.slow, pytest.mark.api_server]
CRD = Path(__file__).parents[2] / "crds" / "dlrmtrainingjobs.yaml"
T0, T1 = "2026-11-21T10:00:00Z", "2026-11-21T10:02:03Z"
RUNNING: Mapping[str, Any] = {
    "stage": "Running",
    "reason": "AllWorkersReady",
    "message": "2 of 2 workers are ready",
    "restarts": 1,
    "restartsCountTowardsMax": 0,
    "stages": [
        {
            "name": "Profiling",
            "state": "Succeeded",
            "attempts": 1,
            "startTime": T0,
            "completionTime": T1,
            "jobName": "p",
        },
        {"name": "Running", "state": "Active", "jobName": "job-worker-0"},
    ],
    "plan": {"configMapRef": {"name": "job-plan-1", "key": "plan.json"}, "algorithm": "NeuroShard", "worldSize": 16},
    "cost": {
        "predicted": {"totalMicroseconds": 41200, "computeMicroseconds": 22100, "source": "simulated:h100-80gb"},
        "baseline": {"algorithm": "SizeLookupGreedy", "totalMicroseconds": 50300},
        "measured": {"totalMicroseconds": 43900, "source": "cpu:test"},
        "errorPercent": 6,
    },
    "trainerStatus": {"progressPercentage": 45, "metrics": [{"name": "auc", "value": "0.71"}]},
    "lastFailure": {
        "podName": "job-worker-0-1",
        "nodeName": "n1",
        "exitCode": 137,
        "reason": "OOMKilled",
        "message": "x",
    },
}


@pytest.fixture(scope="module")
def cluster_with_jobs(bare_api: BareApi) -> Kubectl:
    """A client for a cluster that knows the resource."""
    bare_api.kubectl.define("dlrmtrainingjobs.training.neuroshard.dev", CRD.read_text())
    return bare_api.kubectl


@pytest.fixture
def kubectl(cluster_with_jobs: Kubectl, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubectl]:
    """A client for a new namespace, and KUBECONFIG for the command under test."""
    name = f"jobs-{uuid.uuid4().hex[:8]}"
    cluster_with_jobs.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    monkeypatch.setenv("KUBECONFIG", str(cluster_with_jobs.kubeconfig))
    yield cluster_with_jobs.in_namespace(name)
    cluster_with_jobs.delete("namespace", name, "--wait=false")


def submitted(kubectl: Kubectl, status: Mapping[str, Any] | None = None, **spec: Any) -> str:
    """Create a job with this status and return its name."""
    kubectl.create(job_data("job", **spec))
    if status is not None:
        kubectl.patch("dlrmtrainingjob", "job", {"status": status}, subresource="status")
    return "job"


def test_a_submitted_job_is_what_the_file_says(neuroshard: Any, kubectl: Kubectl, tmp_path: Path) -> None:
    """The file's own words: what it leaves out gets the cluster's defaults."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_data("shop", trainer={"numNodes": 2})))
    result = neuroshard("submit", file, "--namespace", kubectl.namespace)
    made = kubectl.get("dlrmtrainingjob", "shop")

    assert (result.code, result.out, result.err) == (0, f"shop created in namespace {kubectl.namespace}\n", "")
    assert made["spec"]["trainer"]["numNodes"] == 2
    assert made["spec"]["launchPolicy"] == "Auto"


def test_the_config_maps_of_a_file_are_made_with_its_job(neuroshard: Any, kubectl: Kubectl, tmp_path: Path) -> None:
    """As `kubectl apply` does; a job that the cluster refuses leaves none behind."""
    tables = "name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\n"
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "shop-tables"},
        "data": {"tables.csv": tables},
    }
    source = {"embeddingTablesFrom": {"configMapKeyRef": {"name": "shop-tables", "key": "tables.csv"}}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([job_data("shop", model=source), config_map]))
    result = neuroshard("submit", file, "--namespace", kubectl.namespace)

    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0] == f"ConfigMap shop-tables created in namespace {kubectl.namespace}"
    assert kubectl.get("configmap", "shop-tables")["data"] == {"tables.csv": tables}
    kubectl.delete("configmap", "shop-tables")
    assert neuroshard("submit", file, "--namespace", kubectl.namespace).code == 2
    assert "shop-tables" not in kubectl("get", "configmaps", "-o", "name")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"file": "tables.csv"}, "spec.model.embeddingTablesFrom: file is read on one machine alone"),
        ({"configMapKeyRef": {"name": "shop", "key": "tables.csv"}}, "line 1, column embedding_dim: is missing"),
    ],
    ids=["file", "broken tables"],
)
def test_tables_that_no_cluster_could_plan_are_refused_here(
    neuroshard: Any, tmp_path: Path, source: dict[str, Any], message: str
) -> None:
    """Before the cluster is asked."""
    config_map = {
        "kind": "ConfigMap",
        "metadata": {"name": "shop"},
        "data": {"tables.csv": "name,num_embeddings\na,1\n"},
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([job_data("shop", model={"embeddingTablesFrom": source}), config_map]))
    result = neuroshard("submit", file)

    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_broken_file_is_refused_before_the_cluster_is_asked(neuroshard: Any, tmp_path: Path) -> None:
    """By file and field."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_data("shop", trainer={"numNodes": 0})))
    result = neuroshard("submit", file)

    assert (result.code, result.out) == (2, "")
    assert f"error: {file}: spec.trainer.numNodes: " in result.err


def test_a_job_that_is_there_already_is_left_alone(neuroshard: Any, kubectl: Kubectl, tmp_path: Path) -> None:
    """Submitting twice is most often a mistake."""
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job_data(submitted(kubectl))))
    result = neuroshard("submit", file, "--namespace", kubectl.namespace)

    assert result.code == 2
    assert "already exists" in result.err


def test_two_namespaces_contradict(neuroshard: Any, tmp_path: Path) -> None:
    """That of the file and that of the option."""
    job = job_data("job")
    job["metadata"]["namespace"] = "one"
    (tmp_path / "job.json").write_text(json.dumps(job))
    result = neuroshard("submit", tmp_path / "job.json", "--namespace", "two")

    assert result.code == 2
    assert "metadata.namespace: is 'one', and --namespace 'two'" in result.err


def test_the_status_tells_stages_costs_and_the_last_failure(neuroshard: Any, kubectl: Kubectl) -> None:
    """What was predicted, what it costs, and what went wrong."""
    result = neuroshard("status", submitted(kubectl, RUNNING), "--namespace", kubectl.namespace)
    lines = [line.split() for line in result.out.splitlines()]

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("job: Running (AllWorkersReady): 2 of 2 workers are ready\n")
    assert ["Profiling", "Succeeded", "1", "0:02:03"] in lines
    assert ["predicted", "41.2", "22.1", "-", "-", "-", "simulated:h100-80gb"] in lines
    assert ["baseline", "50.3", "-", "-", "-", "-", "SizeLookupGreedy"] in lines
    assert ["measured", "43.9", "-", "-", "-", "-", "cpu:test"] in lines
    assert "measured is 6 % above what was predicted" in result.out
    assert "Predicted by simulated cost models (simulated:h100-80gb), measured on a real device" in result.out
    assert "plan: ConfigMap job-plan-1 (NeuroShard, 16 devices)" in result.out
    assert "trainer: 45 % done, auc 0.71" in result.out
    assert "last failure: OOMKilled of pod job-worker-0-1 on n1, exit code 137" in result.out


def test_the_status_shows_the_slow_down_that_lasts(neuroshard: Any, kubectl: Kubectl) -> None:
    """In one line, as the workers reported it under the job's plan; a report of another plan is passed over."""
    name = submitted(kubectl, {**RUNNING, "plan": {**RUNNING["plan"], "hash": f"sha256:{'a' * 64}"}})
    shown = {}
    for plan in ("a", "b"):
        report = training_builders.drift_report(plan_sha256=plan * 64).to_json()
        metadata = {"name": f"{name}-report"}
        kubectl.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"drift-report.json": report}}
        )
        shown[plan] = neuroshard("status", name, "--namespace", kubectl.namespace).out.splitlines()[-1]

    assert shown["a"] == "drift: since step 600 steps take 29 % longer: DeviceSlow, rank 1"
    assert "drift" not in shown["b"]


def test_a_job_becomes_a_page_of_what_its_workers_measured(neuroshard: Any, kubectl: Kubectl, tmp_path: Path) -> None:
    """From the ConfigMaps of its plan and its reports; steps of another plan are left out, and a live page ends."""
    plan, sha256 = plan_of(num_devices=2), "a" * 64
    ended = {"stage": "Succeeded", "completionTime": T1, "plan": {**RUNNING["plan"], "hash": f"sha256:{sha256}"}}
    name = submitted(kubectl, {**RUNNING, **ended})
    own, other = (step_report(plan_sha256=each, samples_per_second=41_234.0).to_json() for each in (sha256, "b" * 64))
    progress = TrainingProgress(step=40, metrics={"loss": 0.5236}).to_json()

    def apply(name: str, **files: str) -> None:
        data = {key.replace("_json", ".json").replace("_", "-"): text for key, text in files.items()}
        kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})

    where = ("--namespace", kubectl.namespace)
    unplanned = neuroshard("report", name, *where)
    apply("job-plan-1", plan_json=plan.to_json())
    unmeasured = neuroshard("report", name, *where)
    apply(f"{name}-report", step_report_json=own, progress_json=progress)
    watched = neuroshard("report", name, *where, "--watch", "--out", tmp_path / "job.html")
    apply(f"{name}-report", step_report_json=other, progress_json=progress)
    replanned = neuroshard("report", name, *where)

    assert unplanned.code == 2
    assert "ConfigMap job-plan-1" in unplanned.err
    assert "No steps were measured" in unmeasured.out
    assert watched.code == 0
    page = (tmp_path / "job.html").read_text()
    assert "refresh" not in page
    for text in ("41,234", "0.5236", "Rank by rank", "Profiling", "2 min 3 s"):
        assert text in page
    assert "41,234" not in replanned.out
    assert "0.5236" in replanned.out


def test_a_job_without_a_plan_has_no_page(neuroshard: Any, kubectl: Kubectl) -> None:
    """The command that shows when it has one is named."""
    result = neuroshard("report", submitted(kubectl), "--namespace", kubectl.namespace)

    assert result.code == 2
    assert "job: has no plan yet, it has no status yet" in result.err
    assert "neuroshard status job --watch" in result.err


def test_a_job_that_nobody_looked_at_says_so(neuroshard: Any, kubectl: Kubectl) -> None:
    """The operator does not run, most often."""
    result = neuroshard("status", submitted(kubectl), "--namespace", kubectl.namespace)

    assert result.out == "job: no status yet; is the operator running?\n"


def test_the_status_as_json_is_the_resources_own(neuroshard: Any, kubectl: Kubectl) -> None:
    """For programs."""
    result = neuroshard("status", submitted(kubectl, RUNNING), "--namespace", kubectl.namespace, "--json")

    assert json.loads(result.out) == RUNNING


def test_the_variants_of_a_sweep_are_listed_best_first(neuroshard: Any, kubectl: Kubectl) -> None:
    """By the label that `neuroshard sweep` gives their jobs, with the metrics of their trainers, of each in a set."""
    entropies = {"shop-00": "0.9", "shop-01": None, "shop-02": "0.8", "shop-03": "0.5"}
    for name, entropy in {**entropies, "other": "0.1"}.items():
        job = job_data(name, trainer={"numProcPerNode": 2})
        if name != "other":
            job["metadata"]["labels"] = {"training.neuroshard.dev/sweep": "shop"}
            job["metadata"]["annotations"] = {"training.neuroshard.dev/variant": f"seed={name[-1]}"}
        metrics = [] if entropy is None else [{"name": "normalized_entropy", "value": entropy}]
        if name == "shop-03":
            job["spec"]["variants"] = [{"name": "v03"}, {"name": "v04"}, {"name": "v05"}]
            job["metadata"]["annotations"] = {"training.neuroshard.dev/variant": "seed=3\nseed=4\nseed=5"}
            own = {"v03": "0.5", "v04": "0.7"}
            metrics += [{"name": f"{each}/normalized_entropy", "value": value} for each, value in own.items()]
            metrics.append({"name": "v05/diverged_at_step", "value": "20"})
        kubectl.create(job)
        running = {"name": "Running", "state": "Succeeded", "startTime": T0, "completionTime": T1}
        status = {
            "stage": "Failed" if entropy is None else "Succeeded",
            "message": "the loss is not finite",
            "trainerStatus": {"metrics": metrics},
            "stages": [running],
        }
        kubectl.patch("dlrmtrainingjob", name, {"status": status}, subresource="status")

    where = ("--namespace", kubectl.namespace)
    text, data = (
        neuroshard("status", "shop", *where),
        neuroshard("status", "shop", *where, "--json"),
    )
    lines = [line.split() for line in text.out.splitlines()]

    assert (text.code, text.err) == (0, "")
    assert lines[1:7] == [
        ["shop-03/v03", "seed=3", "0.5000", "123", "Succeeded"],
        ["shop-03/v04", "seed=4", "0.7000", "123", "Succeeded"],
        ["shop-02", "seed=2", "0.8000", "123", "Succeeded"],
        ["shop-00", "seed=0", "0.9000", "123", "Succeeded"],
        ["shop-01", "seed=1", "123", "Failed"],
        ["shop-03/v05", "seed=5", "123", "Diverged"],
    ]
    assert "shop-03/v05  its loss was not finite after step 20" in text.out
    assert "shop-01      the loss is not finite" in text.out
    found = json.loads(data.out)
    assert [each["number"] for each in found] == [3, 4, 2, 0, 1, 5]
    assert (found[2]["normalized_entropy"], found[2]["num_devices"], found[2]["auc"]) == (0.8, 2, None)

    kubectl.create(job_data("shop"))
    both = neuroshard("status", "shop", *where).out

    assert both.startswith("shop")
    assert both.endswith(text.out)
    assert json.loads(neuroshard("status", "shop", *where, "--json").out) == {"variants": found}


@pytest.mark.parametrize(("stage", "code"), [("Succeeded", 0), ("Failed", 10)])
def test_watching_ends_with_the_job(neuroshard: Any, kubectl: Kubectl, stage: str, code: int) -> None:
    """The exit code tells whether it succeeded."""
    job = submitted(kubectl, {"stage": stage, "reason": "Because"})
    result = neuroshard("status", job, "--namespace", kubectl.namespace, "--watch")

    assert result.code == code
    assert result.out.splitlines()[0].endswith(f" job: {stage} (Because)")


@pytest.mark.parametrize(("stage", "code"), [("Succeeded", 0), ("Failed", 10)])
def test_watching_a_sweep_ends_with_its_jobs(neuroshard: Any, kubectl: Kubectl, stage: str, code: int) -> None:
    """Each change of a variant's state has a line; the job that the sweep was made of is not waited for."""
    for name, own in (("hats-00", "Succeeded"), ("hats-01", stage)):
        job = job_data(name)
        job["metadata"]["labels"] = {"training.neuroshard.dev/sweep": "hats"}
        kubectl.create(job)
        kubectl.patch("dlrmtrainingjob", name, {"status": {"stage": own, "message": "ended"}}, subresource="status")
    kubectl.create(job_data("hats"))
    where = ("--namespace", kubectl.namespace)

    result = neuroshard("status", "hats", *where, "--watch")

    lines = [line.split(" ", 1)[1] for line in result.out.splitlines()[:2]]
    assert (result.code, lines) == (code, ["hats-00: Succeeded", f"hats-01: {stage}"])
    table = "\n".join(result.out.splitlines()[2:])
    assert neuroshard("status", "hats", *where).out.rstrip().endswith(table)


def test_a_job_without_pods_has_no_logs(neuroshard: Any, kubectl: Kubectl) -> None:
    """It is new, or the operator does not run."""
    result = neuroshard("logs", submitted(kubectl), "--namespace", kubectl.namespace)

    assert (result.code, result.out) == (2, "")
    assert "error: job: no pod has run yet\nhint: see `neuroshard status job`" in result.err


def test_logs_need_a_stage_that_has_run(neuroshard: Any, kubectl: Kubectl) -> None:
    """Those that have are named."""
    job = submitted(kubectl, RUNNING)
    never = neuroshard("logs", job, "--stage", "planning", "--namespace", kubectl.namespace)
    gone = neuroshard("logs", job, "--namespace", kubectl.namespace)

    assert (never.code, gone.code) == (2, 2)
    assert "no pod has run in stage planning; there are logs of profiling, running" in never.err
    assert "job-worker-0: the pod has been deleted" in gone.err


@pytest.mark.parametrize("command", ["status", "logs"])
def test_a_job_that_does_not_exist_is_named(neuroshard: Any, kubectl: Kubectl, command: str) -> None:
    """With its namespace: it is most often the wrong one."""
    result = neuroshard(command, "lost", "--namespace", kubectl.namespace)

    assert (result.code, result.out) == (2, "")
    assert (
        f'error: lost in namespace {kubectl.namespace}: dlrmtrainingjobs.training.neuroshard.dev "lost" not found'
        in (result.err)
    )


def test_without_a_kubeconfig_it_says_what_to_set(
    neuroshard: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is guessed."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = neuroshard("status", "job")

    assert result.code == 2
    assert "there is no usable kubeconfig" in result.err


def test_an_api_server_that_does_not_answer_is_a_sentence(
    neuroshard: Any, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No traceback for a network that is down."""
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    result = neuroshard("status", "job")

    assert result.code == 8
    assert "the API server does not answer" in result.err


def test_a_plan_that_waits_is_approved(neuroshard: Any, kubectl: Kubectl) -> None:
    """The annotation names the plan of the status, or the candidate that is suggested for changed inputs."""
    submitted(kubectl, RUNNING, launchPolicy="Manual")
    first = neuroshard("approve", "job", "--namespace", kubectl.namespace)
    approved = [annotation(kubectl)]
    candidate = {"number": 1, "sinceStep": 9, "startTime": T0, "verdict": "BetterPlanFound", "planName": "job-plan-2"}
    record = {"candidates": 1, "candidate": candidate}
    kubectl.patch("dlrmtrainingjob", "job", {"status": {"replanning": record}}, subresource="status")
    neuroshard("approve", "job", "--namespace", kubectl.namespace)
    approved.append(annotation(kubectl))

    assert (first.code, first.err) == (0, "plan job-plan-1 is approved\n")
    assert approved == ["job-plan-1", "job-plan-2"]


def test_a_job_that_waits_for_nothing_is_not_approved(neuroshard: Any, kubectl: Kubectl) -> None:
    """Its launchPolicy is named, and nothing is changed."""
    submitted(kubectl, RUNNING)
    result = neuroshard("approve", "job", "--namespace", kubectl.namespace)

    assert result.code == 2
    assert "job in namespace" in result.err
    assert "no plan waits for approval" in result.err
    assert annotation(kubectl) is None


def annotation(kubectl: Kubectl) -> str | None:
    """Return the name of the plan that the job's annotation approves."""
    annotations = kubectl.get("dlrmtrainingjob", "job")["metadata"].get("annotations", {})
    found: str | None = annotations.get("training.neuroshard.dev/approved-plan")
    return found
