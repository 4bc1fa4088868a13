"""What watches lose, and how the periodic list of everything finds it."""

import asyncio
from typing import Any

import pytest
from neuroshard_operator import names
from neuroshard_operator.cluster.api import ApiError
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.resync import Resync, reachable
from operator_process import JOB, KEY, Story
from operator_world import NAMESPACE, World


def vanish(story: Story, kind: str) -> list[str]:
    """Delete all children of a kind while every watch is away; return their names."""
    gone = [name for each, name in sorted(story.world.objects) if each == kind]
    for name in gone:
        story.world.objects.pop((kind, name))
    story.world.watches.lose_deletions()
    return gone


def test_a_pod_whose_deletion_no_watch_brought_holds_up_no_restart() -> None:
    """The resync finds that the API server no longer has it."""
    story = Story().running()
    vanish(story, "Pod")
    vanish(story, "Job")
    story.settle()
    assert story.seen[0] == "Running"  # as the watches show it
    asyncio.run(story.operator.resync())
    story.settle()

    assert story.jobs(names.WORKER) == ["job-worker-0"]
    story.start_workers()
    assert story.seen == ("Running", "AllWorkersReady")


def test_a_job_whose_deletion_no_watch_brought_is_forgotten() -> None:
    """Otherwise each of its passes would end in an object that is not there."""
    story = Story().running()
    vanish(story, "DLRMTrainingJob")
    asyncio.run(story.operator.resync())
    writes = story.world.writes

    assert asyncio.run(story.operator.look(KEY))
    assert story.world.writes == writes


@pytest.mark.parametrize("kind", ["Service", "ServiceAccount", "Role", "RoleBinding"])
def test_a_child_whose_deletion_no_watch_brought_is_made_again(kind: str) -> None:
    """Whatever its kind."""
    story = Story().running()
    gone = vanish(story, kind)
    asyncio.run(story.operator.resync())
    story.settle()

    needed = [name for name in gone if name.startswith((f"{JOB}-worker", f"{JOB}-workers"))]
    assert needed
    assert all((kind, name) in story.world.objects for name in needed)


def test_an_object_made_during_the_list_is_not_dropped() -> None:
    """Only what the watches showed before the list began can be found missing in it."""
    story = Story().running()
    done = asyncio.run(story.operator.resync())
    story.settle()

    assert done.jobs == {KEY}
    assert story.seen == ("Running", "AllWorkersReady")


def test_a_watch_that_brings_nothing_for_a_whole_interval_is_stalled() -> None:
    """Two lists see a change that the watch of its kind has not brought; the first may be just ahead of it."""
    story = Story().running()
    story.world.touch(story.pods(names.WORKER)[0])
    first = asyncio.run(story.operator.resync())
    second = asyncio.run(story.operator.resync())
    story.settle()
    third = asyncio.run(story.operator.resync())

    assert (first.stalled, second.stalled, third.stalled) == ((), ("Pod",), ())


def lists(world: World, *namespaces: str) -> Resync:
    """Return the resync of an operator for these namespaces."""
    return Resync(world, Caches(world.watches.indices()), namespaces)


def forbid(world: World, namespace: str) -> None:
    """Take all rights in a namespace away, as its deletion does with the Role in it."""
    for path in ("/apis/training.neuroshard.dev/v1alpha1", "/apis/batch/v1", "/api/v1"):
        for plural in ("dlrmtrainingjobs", "jobs", "pods", "configmaps", "services", "serviceaccounts"):
            world.refuse[f"{path}/namespaces/{namespace}/{plural}"] = ApiError(403, "Forbidden", "no rights")
    for plural in ("roles", "rolebindings"):
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}"
        world.refuse[path] = ApiError(403, "Forbidden", "no rights")


def test_a_deleted_namespace_does_not_stop_the_others() -> None:
    """Its 403 is its own: jobs elsewhere are listed and woken."""
    world = World()
    world.submit(JOB)
    forbid(world, "deleted")
    done = asyncio.run(lists(world, "deleted", NAMESPACE).run())

    assert done.jobs == {KEY}
    assert done.unreachable == ("deleted",)
    assert asyncio.run(reachable(world, ["deleted", NAMESPACE])) == (NAMESPACE,)


def test_a_refusal_that_passes_hides_nothing() -> None:
    """An API server that has just started may refuse a list; what runs is not taken for gone."""
    story = Story().running()
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    story.world.refuse[path] = ApiError(403, "Forbidden", "not ready yet")
    caches = Caches(story.world.watches.indices())
    before = caches.versions("Job")
    asyncio.run(Resync(story.world, caches, namespaces=[NAMESPACE, "other"]).run())

    assert before
    assert {job.meta.uid for job in caches.jobs(KEY)} == set(before)


def test_what_is_listed_again_is_shown_again() -> None:
    """An object whose label was away for a while is there, whatever a list said before."""
    story = Story().running()
    caches = Caches(story.world.watches.indices())
    shown = set(caches.versions("Job"))
    caches.drop(shown)
    assert not caches.jobs(KEY)

    caches.drop([], shown)

    assert {job.meta.uid for job in caches.jobs(KEY)} == shown


def test_an_operator_without_any_rights_is_an_error() -> None:
    """There is nothing left to work on; readiness and liveness show it."""
    world = World()
    forbid(world, "deleted")

    with pytest.raises(ApiError, match="no rights"):
        asyncio.run(lists(world, "deleted").run())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodeSelector", ["a"]),
        ("nodeSelector", "a"),
        ("nodeSelector", {"a": 1}),
        ("volumes", [{"name": ["a"]}]),
        ("tolerations", "all"),
        ("affinity", []),
        ("imagePullSecrets", ["a"]),
        ("securityContext", "root"),
    ],
)
def test_a_pod_template_of_wrong_types_fails_with_the_field(field: str, value: Any) -> None:
    """It used to end every pass in a traceback, with no word in the status."""
    story = Story(podTemplate={"spec": {field: value}})

    assert story.seen == ("Failed", "InvalidPodTemplate")
    assert f"spec.podTemplate.spec.{field}" in story.status["message"]
