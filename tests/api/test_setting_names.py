"""Specification of the names of a request's settings in messages."""

from collections.abc import Iterator

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.field_names import models_of
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.setting_names import JOB_FIELDS, in_names_of_job
from neuroshard_api.job.training_job import DLRMTrainingJob
from pydantic import BaseModel
from support import builders


def followed(model: type[BaseModel], path: str) -> Iterator[str]:
    """Yield the parts of a path that a document of that model has."""
    kind: type[BaseModel] | None = model
    for name in path.split("."):
        assert kind is not None, f"{path}: nothing is below"
        fields = {field.alias or key: field.annotation for key, field in kind.model_fields.items()}
        assert name in fields, path
        kind = next(models_of(fields[name], of_entries=False), None)
        yield name


@pytest.mark.parametrize(("of_request", "of_job"), JOB_FIELDS.items())
def test_each_setting_is_a_field_of_both_documents(of_request: str, of_job: str) -> None:
    """So that a hint names a field that its reader can set."""
    assert ".".join(followed(PlanRequest, of_request)) == of_request
    assert ".".join(followed(DLRMTrainingJob, of_job)) == of_job


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("constraints.data_types: is wrong", "spec.planner.dataTypes: is wrong"),
        ("lower batch_size_per_device, or", "lower spec.model.batchSizePerDevice, or"),
        ("replication: has groups; hint: leave replication out", "spec.planner.shardingGroups: has groups; hint: "),
        ("communication: does not go with servers", "spec.training.communication.policy: does not go with servers"),
        ("the communication is slow", "the communication is slow"),
        ("constraints.tables.user.devices: only on 0", "constraints.tables.user.devices: only on 0"),
        ("the wire is slow, memory.dense_bytes_more", "the wire is slow, memory.dense_bytes_more"),
    ],
)
def test_paths_become_fields_of_the_job_and_words_stay(message: str, named: str) -> None:
    """Constraints of single tables come from a file that has the request's names."""
    assert in_names_of_job(message).startswith(named)


def test_a_request_of_a_job_is_refused_in_names_of_the_job() -> None:
    """The same value in a request of the user's own is refused by the request's field."""
    request = builders.request(topology=builders.topology()).model_dump(mode="json", exclude_none=True)
    request["constraints"]["max_shard_width"] = 4096

    with pytest.raises(DocumentError, match=r"constraints\.max_shard_width: is 4,096"):
        PlanRequest.from_data(request, where="request")
    with pytest.raises(DocumentError, match=r"spec\.experimental\.planner\.maxShardWidth: is 4,096"):
        PlanRequest.from_data({**request, "settings_of": "job"}, where="request")
