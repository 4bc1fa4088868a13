"""Names of children within the limits of Kubernetes."""

import pytest
from neuroshard_api.job.training_job import MAX_NAME_LENGTH
from neuroshard_decisions import names
from neuroshard_decisions.stages.queueing import MOST_NAME_CHARACTERS

LONGEST = "j" * MAX_NAME_LENGTH
LONGEST_OF_SET = names.job_set("j" * MOST_NAME_CHARACTERS, 9_999)
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "name",
    [
        names.profiler_job(LONGEST, DIGEST),
        names.planner_job(LONGEST, DIGEST),
        names.job_of_attempt(names.WORKER, LONGEST, 99_999),
        names.service(LONGEST),
        names.request(LONGEST, DIGEST),
        names.plan(LONGEST, DIGEST),
        names.host(names.job_of_attempt(names.WORKER, LONGEST, 99_999), 1023, names.service(LONGEST)).split(".")[0],
        f"{names.job_of_set(names.PARTS_OF_SET[names.SERVER], LONGEST_OF_SET)}-999-abcde",
    ],
)
def test_children_of_the_longest_job_name_have_valid_names(name: str) -> None:
    """Names of Jobs and Services, and host names, have at most 63 characters."""
    assert len(name) <= 63
