"""``neuroshard plan JOB`` asks for what the operator asks for."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from neuroshard_api.documents.config_map import contents_of, unpack_files
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.job_file import read_job_file
from neuroshard_decisions import names
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import build_request
from neuroshard_planner.workload_store import read_workload
from support.operator.operator_process import JOB, Story

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = [each for each in sorted(FOLDER.glob("*.yaml")) if read_job_file(each).job.spec.plan_ref is None]
"""Those that do not bring their plan."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda each: each.stem)
def test_the_request_of_every_example_is_the_operators_byte_for_byte(path: Path, tmp_path: Path) -> None:
    """On the devices that the profile names; tables of a ConfigMap are given as a file next to the job."""
    file = read_job_file(path)
    job = tmp_path / "job.yaml"
    document = {**deepcopy(dict(file.document)), "metadata": {"name": JOB}}
    model = document["spec"]["model"]
    if not file.has_tables:
        workload = read_workload("mlperf-dlrm-dcnv2")
        (tmp_path / "tables.json").write_text(workload.to_json())
        del model["embeddingTablesFrom"]
        model["embeddingTables"] = [
            {"name": each.name, "numEmbeddings": each.num_embeddings, "embeddingDim": each.embedding_dim}
            for each in workload.tables
        ]
    job.write_text(json.dumps(document))
    document["spec"].pop("suspend", None)
    story = Story(**document["spec"])
    if story.pods(names.PROFILER):
        story.do(names.PROFILER)
    [asked] = story.world.of_kind("ConfigMap", names.REQUEST)
    expected = unpack_files(contents_of(asked))["request.json"]
    topology = PlanRequest.from_json(expected).topology

    found = build_request(RequestOptions(tables=str(job), devices=topology), None)

    assert found.to_json().encode() == expected
