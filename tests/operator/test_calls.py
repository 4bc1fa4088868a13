"""Which calls of the API server one job costs: what was read or made is not asked for again."""

import asyncio
from collections import Counter
from copy import deepcopy

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError, Json
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.cluster import Cluster
from neuroshard_operator.controller import decided, gathered
from support.operator.operator_process import JOB, SETTINGS, TWO_NODES, OperatorProcess, Story
from support.operator.operator_world import NAMESPACE, World


class CountingWorld(World):
    """A cluster that counts reads."""

    def __init__(self) -> None:
        """Make it empty."""
        super().__init__()
        self.reads: Counter[str] = Counter()

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        """See Api."""
        self.reads[name] += 1
        await asyncio.sleep(0)
        return await super().get(kind, namespace, name)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stories happen in a cluster that counts reads."""
    monkeypatch.setattr("support.operator.operator_process.World", CountingWorld)


@pytest.mark.usefixtures("counting")
def test_every_config_map_is_read_once() -> None:
    """The plan and the profile are copies: neither the copy nor, for copying, the source is read again."""
    story = Story().running()
    assert isinstance(story.world, CountingWorld)
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    [plan] = story.world.of_kind("ConfigMap", names.PLAN)
    results = [f"{name}-result" for role in (names.PROFILER, names.PLANNER) for name in story.jobs(role)]

    assert [story.world.reads[name] for name in results] == [1, 1]
    assert story.world.reads[plan["metadata"]["name"]] == 0
    assert story.world.reads[profile["metadata"]["name"]] <= 1  # once by its key among the namespace's


@pytest.mark.usefixtures("counting")
def test_a_pod_that_only_looks_like_a_worker_asks_for_no_job_that_is_seen() -> None:
    """Such as a copy that somebody debugs with: the plan is read after a restart as before."""
    story = Story().running()
    assert isinstance(story.world, CountingWorld)
    [pod, *_] = story.world.of_kind("Pod", names.WORKER)
    copied = deepcopy(pod)
    copied["metadata"] |= {"name": "debug", "uid": "uid-debug", "ownerReferences": []}
    story.world.put(copied)
    story.operator = OperatorProcess(story.world)
    story.settle()
    [plan] = story.world.of_kind("ConfigMap", names.PLAN)

    assert story.world.reads["job-worker-0"] == 0
    assert story.world.reads[plan["metadata"]["name"]] == 1


@pytest.mark.usefixtures("counting")
def test_what_is_known_of_a_copy_is_what_reading_it_says() -> None:
    """Another process of the operator, which has to read the plan, changes nothing."""
    story = Story().running()
    before = story.world.writes
    story.operator = OperatorProcess(story.world)
    story.settle()
    [plan] = story.world.of_kind("ConfigMap", names.PLAN)

    assert isinstance(story.world, CountingWorld)
    assert story.world.reads[plan["metadata"]["name"]] == 1
    assert story.world.writes == before


def test_jobs_that_begin_together_read_their_namespaces_profile_once() -> None:
    """It has up to a mebibyte, and says the same to all of them."""
    story = Story().running()
    world = CountingWorld()
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    world.put(profile)
    keys = [world.submit(f"job-{number}", trainer=TWO_NODES) for number in range(5)]
    world.watches.catch_up()
    cluster = Cluster(world, Caches(world.watches.brought), SETTINGS)

    async def look(key: tuple[str, str]) -> None:
        observed = cluster.observe(key)
        assert observed is not None
        context = await gathered(cluster, observed, now=world.now, settings=SETTINGS)
        await cluster.apply(context.observed, decided(context, SETTINGS))

    async def all_look() -> None:
        await asyncio.gather(*map(look, keys))

    asyncio.run(all_look())

    assert [world.status(name)["stage"] for _, name in keys] == ["Planning"] * 5
    assert world.reads[profile["metadata"]["name"]] == 1


@pytest.mark.usefixtures("counting")
def test_an_edited_profile_is_read_again() -> None:
    """Another version of it may say something else."""
    story = Story().running()
    world = story.world
    assert isinstance(world, CountingWorld)
    [profile] = world.of_kind("ConfigMap", names.PROFILE)
    world.touch(profile)
    world.submit("second", trainer=TWO_NODES)
    world.watches.catch_up()
    before = world.reads[profile["metadata"]["name"]]
    asyncio.run(story.operator.look((NAMESPACE, "second")))

    assert world.reads[profile["metadata"]["name"]] == before + 1


def test_an_event_is_written_though_the_action_beside_it_fails() -> None:
    """The pass after it has no news of the status any more."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    story.bury()

    async def gone(*_: object, **__: object) -> None:
        raise ApiError(0, "NoAnswer", "the API server is away")

    story.world.delete = gone  # type: ignore[method-assign]
    story.world.change_spec(JOB, suspend=True)
    story.world.watches.catch_up()
    with pytest.raises(ApiError, match="away"):
        story.look()

    assert story.status["stage"] == "Suspended"
    assert story.reasons()[-1] == "Suspended"
