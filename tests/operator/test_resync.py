"""What watches lose, and how the periodic list of everything finds it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError, Json
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.resync import Resync, reachable
from neuroshard_operator.cluster.watched import WatchedObjects
from support.operator.operator_process import JOB, KEY, Story
from support.operator.operator_world import NAMESPACE, World


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
    return Resync(world, world.watches.brought, namespaces)


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
    caches = Caches(story.world.watches.brought)
    before = caches.watched.versions("Job")
    asyncio.run(Resync(story.world, caches.watched, namespaces=[NAMESPACE, "other"]).run())

    assert before
    assert {job.meta.uid for job in caches.jobs(KEY)} == set(before)


def test_what_a_watch_brings_back_during_a_list_is_kept() -> None:
    """An object without its label is not in the list; it has it again before the list is done."""
    world = World()
    world.submit(JOB)
    world.watches.catch_up()
    hidden = world.objects.pop(("DLRMTrainingJob", JOB))
    lists = Resync(world, world.watches.brought, ())
    list_metadata = world.list_metadata

    async def list_then_bring(path: str, *, selector: str = "") -> list[Json]:
        found = await list_metadata(path, selector=selector)
        hidden["metadata"]["resourceVersion"] = "later"
        world.watches.brought.bring("DLRMTrainingJob", hidden)
        return found

    world.list_metadata = list_then_bring  # type: ignore[method-assign]
    asyncio.run(lists.run())

    assert Caches(world.watches.brought).known() == [KEY]


def test_what_is_forgotten_is_shown_again_with_its_next_event() -> None:
    """A label that comes back is an event like any other."""
    world = World()
    world.submit(JOB)
    world.watches.catch_up()
    body = world.objects.pop(("DLRMTrainingJob", JOB))
    asyncio.run(lists(world).run())
    forgotten = world.watches.brought.versions("DLRMTrainingJob")
    world.watches.brought.bring("DLRMTrainingJob", body)

    assert not forgotten
    assert Caches(world.watches.brought).known() == [KEY]


async def filled(resync: Resync, monkeypatch: pytest.MonkeyPatch, each: Callable[[], None]) -> bool:
    """Return whether a resync finds the watches filled, while `each` happens at every wait."""
    waits = 0

    async def wait(_: float) -> None:
        nonlocal waits
        waits += 1
        each()

    with monkeypatch.context() as patch:
        patch.setattr("neuroshard_operator.cluster.resync.asyncio.sleep", wait)
        await resync.run()
        return await resync.is_filled()


def test_a_start_waits_as_long_as_the_watches_bring_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer in all than it waits without anything new."""
    world = World()
    jobs = [f"job-{number}" for number in range(20)]
    for name in jobs:
        world.submit(name)
    brought = WatchedObjects()
    looks = iter([each for name in jobs for each in (None, None, name)])

    def bring() -> None:
        name = next(looks)
        if name:
            brought.bring("DLRMTrainingJob", world.objects["DLRMTrainingJob", name])

    assert asyncio.run(filled(Resync(world, brought, ()), monkeypatch, bring))
    assert len(Caches(brought).known()) == len(jobs)


def test_a_start_does_not_wait_for_objects_that_live_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is missing in each list; none is missing in two."""
    world = World()
    resync = Resync(world, WatchedObjects(), ())
    world.submit("first")
    first = asyncio.run(filled(resync, monkeypatch, lambda: None))
    world.objects.clear()
    world.submit("second")
    second = asyncio.run(filled(resync, monkeypatch, lambda: None))
    third = asyncio.run(filled(resync, monkeypatch, lambda: None))

    assert (first, second, third) == (False, True, False)


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
