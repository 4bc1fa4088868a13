"""Objects of one tenant that wish the operator ill: the job of another one is served throughout, and after a start."""

import asyncio
import contextlib
import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from neuroshard_operator.cluster.watched import WATCHED, WatchedObjects
from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.bounded import OBJECT_BYTES, SPEC_BYTES, bounded
from support import builders
from support.depth import generated
from support.operator.hostile import FRAGMENTS, HERE, hostile_object, places
from support.operator.operator_process import JOB, OperatorProcess, Story
from support.operator.operator_world import NAMESPACE

OBJECTS = st.sampled_from([*WATCHED, names.JOB_SET]).flatmap(
    lambda kind: st.tuples(st.just(kind), st.sampled_from(list(places(kind))), st.sampled_from(sorted(FRAGMENTS)))
)


def bring(watched: WatchedObjects, kind: str, text: bytes) -> None:
    """Bring an object as a watch does."""
    cut = bounded(kind, text)
    assert cut is not None
    assert len(cut) <= 2 * SPEC_BYTES + 3 * OBJECT_BYTES
    watched.bring(kind, json.loads(cut))


@generated(25, 800, deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=4))
def test_every_object_is_brought_and_the_good_job_is_served(objects: list[tuple[str, dict[str, Any], str]]) -> None:
    """Next to it, to a job that does not exist, and with its own key; an operator that starts then is ready too."""
    story = Story()
    watched = story.world.watches.brought
    for number, (kind, place, fragment) in enumerate(objects):
        name = f"hostile-{number}"
        bring(watched, kind, hostile_object(kind, place, fragment, name=name, job="other"))
        assert f"uid-{name}" in watched.versions(kind)
        if kind == KIND:
            reconcile_alone(story, name)
    story.operator = OperatorProcess(story.world)
    story.running()

    assert story.seen == ("Running", "AllWorkersReady")


def reconcile_alone(story: Story, name: str) -> None:
    """Reconcile a hostile job, in a cluster that has it in the version that the watch has brought."""
    story.world.submit(name)
    story.world.training_job(name)["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "7"}
    with contextlib.suppress(Exception):  # its own pass may fail: the queue comes back to it later
        asyncio.run(story.operator.look((NAMESPACE, name)))
    del story.world.objects[KIND, name]


@pytest.mark.parametrize(
    ("place", "fragment", "found"),
    [
        ({"spec": {"podTemplate": {"spec": {"x": HERE}}}}, "nested 700 levels", "nests lists and mappings more than"),
        ({"spec": {"podTemplate": {"spec": {"x": HERE}}}}, "wide", "holds 1,200,"),
        ({"spec": {"trainer": {"env": [{"name": "a", "valueFrom": HERE}]}}}, "100,000 keys", "holds 1,"),
        ({"spec": {"podTemplate": {"spec": {"x": HERE}}}}, "half a character", "not Unicode"),
        ({"metadata": {"labels": HERE}}, "a number", "TypeError"),
    ],
)
def test_a_job_that_cannot_be_read_fails_and_says_why(place: dict[str, Any], fragment: str, found: str) -> None:
    """It is that job's failure, and needs no copy of what is wrong with it."""
    story = Story()
    bring(story.world.watches.brought, KIND, hostile_object(KIND, place, fragment, name="hostile", job=""))
    story.world.submit("hostile")
    story.world.training_job("hostile")["metadata"] |= {"uid": "uid-hostile", "resourceVersion": "7"}
    asyncio.run(story.operator.look((NAMESPACE, "hostile")))
    status = story.world.status("hostile")

    assert (status["stage"], status["reason"]) == ("Failed", "InvalidSpec")
    assert found in status["message"]


def test_a_running_job_whose_spec_becomes_unreadable_trains_on() -> None:
    """Its workers were made from a spec that could be read; a warning says that this one cannot."""
    story = Story().running()
    story.world.change_spec(JOB, podTemplate={"spec": {"x": [{}] * 70_000}})
    story.settle()

    assert story.status["stage"] == "Running"
    assert story.warnings.keys() >= {"InvalidSpec"}
    assert len(story.pods(names.WORKER)) == 2


def test_what_is_kept_of_jobs_is_their_bytes() -> None:
    """A thousand values of a spec take no objects of Python while the job rests."""
    text = json.dumps({**builders.job_data("wide"), "metadata": {"name": "wide", "namespace": "a", "uid": "u"}})
    body = json.loads(text)
    body["spec"]["podTemplate"] = {"spec": {"x": [{"a": f"{number**3 % 65537}"} for number in range(10_000)]}}
    job = parsing.training_job(body)
    del body
    gc.collect()

    assert not [each for each in gc.get_referents(job) if isinstance(each, dict | list) and each]
    assert job.to_keep.stored_spec is None
    assert len(job.spec["podTemplate"]["spec"]["x"]) == 10_000


def test_a_job_whose_spec_is_too_large_to_be_kept_trains() -> None:
    """Each pass reads it again, in the version that the watch has brought."""
    tables = [
        {"name": f"t{number**5 % 99991}-{number}", "numEmbeddings": 1000, "embeddingDim": 16} for number in range(500)
    ]
    args = [f"{number**7 % 999983}" for number in range(128)]
    env = [{"name": f"N{number}", "value": str(pow(3, number + 900))} for number in range(128)]
    story = Story(
        model={"embeddingTables": tables}, trainer={"numNodes": 2, "command": ["train"], "args": args, "env": env}
    ).running()
    [kept] = story.world.watches.brought.indices().training_jobs[NAMESPACE, JOB]

    assert kept.stored_spec is None
    assert story.seen == ("Running", "AllWorkersReady")
