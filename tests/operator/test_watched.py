"""The objects that the watches have brought, by the job that they belong to."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import kopf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from neuroshard_operator.cluster.watched import Index, WatchedObjects
from neuroshard_operator.cluster.watches import register

UIDS = ("a", "b", "c")


def child(uid: str = "uid", *, labels: Mapping[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    """Return a child of the job ``job``."""
    own = {names.JOB_LABEL: "job", **(labels or {})}
    return {"metadata": {"name": f"name-{uid}", "namespace": "models", "uid": uid, "labels": own}, **parts}


@given(st.lists(st.tuples(st.sampled_from(UIDS), st.integers(0, 2), st.booleans())))
def test_an_index_holds_the_last_value_of_each_object_under_its_last_key(
    events: list[tuple[str, int, bool]],
) -> None:
    """Whatever the order in which objects come, move, and go."""
    index, kept = Index(), dict[str, tuple[int, int]]()
    for number, (uid, key, is_deleted) in enumerate(events):
        if is_deleted:
            index.drop(uid)
            kept.pop(uid, None)
        else:
            index.put(uid, key, number)
            kept[uid] = (key, number)

    assert {(key, value) for key, values in index.items() for value in values} == set(kept.values())
    assert len(index) == len({key for key, _ in kept.values()})
    assert index.num_objects == len(kept)


def test_a_job_is_kept_under_its_own_name() -> None:
    """Its children are kept under the name in their label."""
    watched = WatchedObjects()
    watched.bring(
        KIND, {"metadata": {"name": "job", "namespace": "models", "uid": "1"}, "spec": {"launchPolicy": "Auto"}}
    )
    watched.bring("Pod", child("2"))
    indices = watched.indices()

    assert [each.spec for each in indices.training_jobs["models", "job"]] == [{"launchPolicy": "Auto"}]
    assert [each.meta.uid for each in indices.pods["models", "job"]] == ["2"]


def test_what_no_job_owns_is_under_an_empty_name() -> None:
    """Profiles belong to their namespace."""
    watched = WatchedObjects()
    watched.bring("ConfigMap", {"metadata": {"name": "profile", "namespace": "models", "uid": "1"}})

    assert [each.meta.name for each in watched.indices().config_maps["models", ""]] == ["profile"]


def test_a_deleted_object_is_shown_no_longer() -> None:
    """The job that it belonged to is woken, once."""
    watched = WatchedObjects()
    watched.bring("ConfigMap", child("1"))
    keys = watched.drop("ConfigMap", "1")

    assert keys == {("models", "job")}
    assert not watched.indices().config_maps
    assert not watched.drop("ConfigMap", "1")


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"spec": {"suspend": True}}, id="is suspended"),
        pytest.param({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, id="ends"),
    ],
)
def test_a_profiler_claims_its_profile_until_it(later: dict[str, Any]) -> None:
    """Another job may begin the profile then."""
    watched = WatchedObjects()
    labels = {names.ROLE_LABEL: names.PROFILER, names.PROFILE_KEY_LABEL: "key"}
    watched.bring("Job", child("1", labels=labels))
    claims = watched.indices().profilers
    claimed = {key: [each.job.owner for each in found] for key, found in claims.items()}
    watched.bring("Job", child("1", labels=labels, **later))

    assert claimed == {("models", "key"): ["job"]}
    assert not claims


class Woken:
    """What Kopf is asked to watch, and whom its events wake."""

    def __init__(self) -> None:
        """Register as the operator does."""
        registry = kopf.OperatorRegistry()
        self.watched = WatchedObjects()
        self.jobs: list[tuple[str, str]] = []
        self.namespaces: list[str] = []
        register(registry, self.watched, wake=self.jobs.append, wake_for_profile=self.namespaces.append)
        handlers = registry._watching.get_all_handlers()
        self._handlers: dict[str, Callable[..., Any]] = {handler.id: handler.fn for handler in handlers}

    def tell(self, kind: str, body: Mapping[str, Any], event: str | None = None) -> None:
        """Bring an event of a kind; None: the object was listed."""
        asyncio.run(self._handlers[f"{kind}_event"](body=kopf.Body(cast(kopf.RawBody, body)), type=event))


def test_a_deletion_is_seen_and_wakes_the_job() -> None:
    """Not only the next list finds it."""
    woken = Woken()
    woken.tell("Pod", child("1"))
    woken.tell("Pod", child("1"), "DELETED")

    assert not woken.watched.indices().pods
    assert woken.jobs == [("models", "job")] * 2


def test_a_child_that_moves_to_another_job_wakes_both() -> None:
    """The one that it belonged to has lost it."""
    woken = Woken()
    woken.tell("Job", child("1"))
    woken.tell("Job", child("1", labels={names.JOB_LABEL: "other"}), "MODIFIED")

    assert sorted(woken.jobs[1:]) == [("models", "job"), ("models", "other")]


def test_a_profile_of_nobody_wakes_its_namespace() -> None:
    """Any job there may wait for it."""
    woken = Woken()
    woken.tell("ConfigMap", {"metadata": {"name": "profile", "namespace": "models", "uid": "1"}}, "ADDED")

    assert (woken.jobs, woken.namespaces) == ([], ["models"])
