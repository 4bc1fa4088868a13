"""Variants of a model on a cluster: several in one job, and the jobs of a sweep."""

import json
import sys
from pathlib import Path

import pytest
from e2e import jobs
from e2e.client import neuroshard
from neuroshard_cluster.commands import run
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]

VARIANTS = [{"name": "base"}, {"name": "fast", "training": {"denseLearningRate": "0.02"}}]


def wide(kubectl: Kubectl, name: str) -> dict[str, str]:
    """Return the columns that kubectl shows of a job, some of them empty."""
    header, line = kubectl("get", jobs.KIND, name, "--output=wide").splitlines()
    begins = [place for place, letter in enumerate(header) if letter != " " and header[:place][-1:] in {"", " "}]
    ends = [*begins[1:], len(line)]
    return {header[begin:end].strip(): line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)}


def test_a_job_trains_its_variants_and_its_wide_columns_have_the_best(namespace: Namespace) -> None:
    """On two workers, under one plan for the tables of both; the status has the metrics of each."""
    kubectl = namespace.kubectl
    kubectl.apply(jobs.training_job("shop", variants=VARIANTS, profiler=jobs.BUNDLED))
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded")
    metrics = {each["name"]: each["value"] for each in seen["trainerStatus"]["metrics"]}
    columns = wide(kubectl, "shop")

    entropies = {name: metrics[f"{name}/normalized_entropy"] for name in ("base", "fast")}
    best = min(entropies, key=lambda name: float(entropies[name]))
    assert float(metrics["base/auc"]) > 0.5
    assert metrics["base/auc"] != metrics["fast/auc"]
    assert seen["trainerStatus"]["bestVariant"] == best
    assert (columns["NE"], columns["AUC"], columns["BEST"]) == (entropies[best], metrics[f"{best}/auc"], best)
    assert f"variant {best}: " in neuroshard(namespace, "status", "shop")


def test_the_folder_of_a_sweep_is_applied_and_listed_by_its_name(namespace: Namespace, tmp_path: Path) -> None:
    """Each variant is a job on its part of the devices, and the best one comes first."""
    kubectl, file, folder = namespace.kubectl, tmp_path / "shop.json", tmp_path / "sweep"
    file.write_text(json.dumps(jobs.training_job("shop", profiler=jobs.BUNDLED)))
    program = str(Path(sys.executable).with_name("neuroshard"))
    rates = ("--set", "spec.training.denseLearningRate=0.001,0.02")
    run([program, "sweep", str(file), "--devices", "2", *rates, "--out", str(folder)])
    kubectl("apply", f"--filename={folder}")
    for name in ("shop-00", "shop-01"):
        jobs.wait_for_stage(kubectl, name, "Succeeded")
    first, *_ = neuroshard(namespace, "status", "shop").splitlines()[1:]
    found = json.loads(neuroshard(namespace, "status", "shop", "--json"))

    assert {each["job"]: each["num_devices"] for each in found} == {"shop-00": 1, "shop-01": 1}
    assert {each["state"] for each in found} == {"Succeeded"}
    assert found[0]["normalized_entropy"] <= found[1]["normalized_entropy"]
    assert first.split()[0] == found[0]["job"]
