"""What holds in every history of a job, whatever happens in between: docs/concepts/operator.md lists it."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from neuroshard_decisions import names
from neuroshard_decisions.observed.results import content_hash
from neuroshard_operator.settings import Settings
from support.depth import depth
from support.operator.operator_process import JOB, KEY, SETTINGS, OperatorProcess
from support.operator.operator_world import CrashError, World, is_finished, owner_kinds, owners
from support.operator.server_story import CPUS, JOINING, SERVED, SERVERS

MAX_RESTARTS = 2
KINDS = ("DLRMTrainingJob", "Job", names.JOB_SET, "Pod", "ConfigMap", "Role")
LABELS = (
    names.MANAGED_BY_LABEL,
    names.JOB_LABEL,
    names.ROLE_LABEL,
    names.ATTEMPT_LABEL,
    names.INPUTS_HASH_LABEL,
)
EDGES = {"DELETABLE": ("Job", names.JOB_SET, "ConfigMap", "Role", "RoleBinding", "ServiceAccount", "Service")}


class Histories(RuleBasedStateMachine):
    """Every order of looks, watches that lag, failures, kills of the operator, and hands that meddle."""

    SPEC: ClassVar[Mapping[str, Any]] = {"trainer": {"numNodes": 2}}
    QUEUE: ClassVar[Mapping[str, str]] = {}
    """Labels of the job."""
    SETTINGS: ClassVar[Settings] = SETTINGS

    def __init__(self) -> None:
        """Start with one job and an operator that has seen nothing."""
        super().__init__()
        self.world = World()
        self.loop = asyncio.new_event_loop()
        self.operator = OperatorProcess(self.world, self.SETTINGS)
        self.restarts = 0
        self.end: tuple[str, str] | None = None
        self.made_before_end = 0
        self.flips: dict[str, tuple[str, str]] = {}
        self.read = 0
        self.dead: set[str] = set()
        """Pods, by uid, whose nodes died: nobody ends them, whatever they are asked."""

    def teardown(self) -> None:
        """Whatever happened before: once all goes well again, the job comes to its end."""
        try:
            if self.status().get("stage") is not None:
                self.come_to_an_end()
        finally:
            self.loop.close()

    @initialize(
        policy=st.sampled_from(["None", "Running", "All"]),
        fallback=st.sampled_from(["None", "DimGreedy"]),
        stages=st.integers(0, 3),
    )
    def submit(self, policy: str, fallback: str, stages: int) -> None:
        """A user submits the job, and it goes well for some stages."""
        self.world.submit(
            JOB,
            **self.SPEC,
            failurePolicy={"maxRestarts": MAX_RESTARTS},
            runPolicy={"cleanPodPolicy": policy},
            planner={"fallbackAlgorithm": fallback},
        )
        self.world.label(JOB, self.QUEUE)
        self.world.watches.catch_up()
        for _ in range(stages):
            self.all_goes_well_for_a_while()

    # The operator

    @rule(dies_after=st.sampled_from([None, None, None, 1, 2, 3, 5]))
    def look(self, dies_after: int | None) -> None:
        """The operator looks; it may be killed after any of its writes, and another one takes over."""
        self.world.crash_after = dies_after
        try:
            self.loop.run_until_complete(self.operator.look(KEY))
        except CrashError:
            self.operator = OperatorProcess(self.world, self.SETTINGS)
        self.world.crash_after = None

    @rule(kinds=st.sets(st.sampled_from(KINDS), min_size=1))
    def watch(self, kinds: set[str]) -> None:
        """Some watches bring what has happened; the others lag behind."""
        self.world.watches.catch_up({*kinds, "Service", "ServiceAccount", "RoleBinding"} if "Role" in kinds else kinds)

    @rule()
    def all_is_calm(self) -> None:
        """The watches bring everything, and the operator looks until it wants nothing more."""
        self.settle()

    @rule()
    def all_goes_well_for_a_while(self) -> None:
        """Everybody does what is due: the job moves on by about one stage."""
        self.settle()
        self.world.admit()
        self.world.run_job_controller()
        self.pods_start()
        for pod in self.pods("Running"):
            if pod["metadata"]["labels"][names.ROLE_LABEL] not in names.OF_AN_ATTEMPT:
                self.world.work(pod)
        self.world.run_job_controller()
        self.bury()
        self.settle()

    # The cluster

    @rule()
    def controllers(self) -> None:
        """The Job controller does its work."""
        self.world.run_job_controller()

    @rule()
    def pods_start(self) -> None:
        """All pending pods start."""
        for pod in self.pods("Pending"):
            self.world.start_pod(pod)

    @rule(
        data=st.data(),
        code=st.sampled_from([0, 1, 2, 3, 7, 137, 143]),
        disruption=st.sampled_from(["", "", "EvictionByEvictionAPI"]),
    )
    def a_pod_ends(self, data: st.DataObject, code: int, disruption: str) -> None:
        """A running pod ends, well or not."""
        pods = self.pods("Running")
        if not pods:
            return
        pod = data.draw(st.sampled_from(pods))
        if pod["metadata"]["labels"][names.ROLE_LABEL] in names.OF_AN_ATTEMPT:
            self.world.end_pod(pod, code, disruption=disruption if code else "")
        elif code:
            self.world.end_pod(pod, code)
        else:
            self.world.work(pod)

    @rule(code=st.sampled_from([1, 137]))
    def a_worker_fails_while_its_peers_take_their_time(self, code: int) -> None:
        """The peers were asked to go and are not gone yet when the operator looks."""
        running = self.pods("Running", names.WORKER)
        if running:
            self.world.end_pod(running[0], code)
        self.world.run_job_controller()
        self.settle()
        self.world.run_job_controller()

    @rule()
    def workers_finish(self) -> None:
        """All running workers end well."""
        for pod in self.pods("Running", *names.OF_AN_ATTEMPT):
            self.world.end_pod(pod, 0)

    @rule(data=st.data())
    def nodes_die(self, data: st.DataObject) -> None:
        """The cluster evicts the pods of nodes that do not answer, and no kubelet ends them."""
        running = self.pods("Running", *names.OF_AN_ATTEMPT)
        for index in data.draw(st.sets(st.sampled_from(range(len(running))), min_size=1)) if running else set():
            pod = running[index]
            taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, taken]
            self.world.touch(pod)
            self.world.remove("Pod", pod["metadata"]["name"])
            self.dead.add(pod["metadata"]["uid"])

    @rule()
    def dead_nodes_are_removed(self) -> None:
        """Their Node objects go, and with them their pods."""
        self.dead.clear()
        self.bury()

    @rule()
    def kubelets_bury(self) -> None:
        """Pods that were asked to go are gone."""
        self.bury()

    @rule(seconds=st.sampled_from([1, 12, 40, 700]))
    def time_passes(self, seconds: int) -> None:
        """The clock moves."""
        self.world.now += timedelta(seconds=seconds)

    # People

    @rule(suspend=st.booleans())
    def suspend(self, *, suspend: bool) -> None:
        """The job is suspended or resumed."""
        self.world.change_spec(JOB, suspend=suspend)

    @precondition(lambda self: self.world.training_job(JOB)["spec"].get("suspend"))
    @rule(nodes=st.sampled_from([1, 2, 3]))
    def resize(self, nodes: int) -> None:
        """The job gets another number of nodes while it is suspended."""
        self.world.change_spec(JOB, trainer={"numNodes": nodes})

    @rule(data=st.data())
    def somebody_deletes_a_child(self, data: st.DataObject) -> None:
        """A child is deleted by hand."""
        children = self.deletable()
        if children:
            self.world.remove(*data.draw(st.sampled_from(children)))

    @rule()
    def somebody_edits_a_role(self) -> None:
        """A Role is widened by hand."""
        for role in self.world.of_kind("Role"):
            role["rules"] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
            self.world.touch(role)

    @rule(data=st.data(), label=st.sampled_from(LABELS), value=st.sampled_from([None, "7"]))
    def somebody_edits_a_label(self, data: st.DataObject, label: str, value: str | None) -> None:
        """A child loses a label, or gets another value of it; without the first one no watch shows it any more."""
        children = [place for place in sorted(self.world.objects) if place[0] in EDGES["DELETABLE"]]
        if children:
            child = self.world.objects[data.draw(st.sampled_from(children))]
            if label == names.MANAGED_BY_LABEL and not owners(child):
                return  # a profile, which is nobody's without it: the operator says so, and waits
            labels = {key: each for key, each in child["metadata"]["labels"].items() if key != label}
            child["metadata"]["labels"] = labels | ({label: value} if value else {})
            self.world.touch(child)

    @rule(data=st.data())
    def watches_lose_deletions(self, data: st.DataObject) -> None:
        """Children go while every watch is away for longer than the API server's history."""
        children = self.deletable()
        for place in data.draw(st.sets(st.sampled_from(children), max_size=3)) if children else set():
            if place in self.world.objects:
                self.world.remove(*place)
        self.world.watches.lose_deletions()

    def deletable(self) -> list[tuple[str, str]]:
        """Return the children to delete: a Job of a JobSet is made again by JobSet's controller, at once."""
        children = [place for place in sorted(self.world.objects) if place[0] in EDGES["DELETABLE"]]
        return [place for place in children if names.JOB_SET not in owner_kinds(self.world.objects[place])]

    @rule()
    def the_plan_is_lost(self) -> None:
        """Somebody deletes the plan and what it was copied from: workers that run go on next to its search."""
        for role in (names.PLAN, names.PLANNER):
            for found in self.world.of_kind("ConfigMap", role):
                self.world.remove("ConfigMap", found["metadata"]["name"])

    @rule(newer=st.booleans())
    def the_definition_changes(self, *, newer: bool) -> None:
        """A newer definition fills in fields that the operator does not know; a rollback takes them away."""
        job = self.world.training_job(JOB)
        fields = {"newPart": {"enabled": True}} if newer else {}
        job["spec"] = {key: value for key, value in job["spec"].items() if key != "newPart"} | fields
        job["spec"]["trainer"] = {**job["spec"]["trainer"], **({"newField": 3} if newer else {})}
        if not newer:
            job["spec"]["trainer"].pop("newField", None)
        self.world.touch(job)

    @rule(queue=st.sampled_from(["", "default"]))
    def a_default_queue_comes_or_goes(self, queue: str) -> None:
        """Kueue's webhook suspends new Jobs from now on, or no more."""
        self.world.default_queue = queue

    @rule()
    def kueue_preempts(self) -> None:
        """Kueue suspends the workers; those that run stop in order."""
        jobs = [job for role in names.OF_AN_ATTEMPT for job in self.world.of_kind("Job", role)]
        for held in [*jobs, *self.world.of_kind(names.JOB_SET)]:
            if names.QUEUE_LABEL not in held["metadata"]["labels"] or is_finished(held):
                continue
            held["spec"]["suspend"] = True
            self.world.touch(held)
            uid = held["metadata"]["uid"]
            uids = [uid, *(job["metadata"]["uid"] for job in jobs if owners(job) == [uid])]
            for pod in self.pods("Running", *names.OF_AN_ATTEMPT):
                if owners(pod)[0] in uids:
                    self.world.end_pod(pod, 143)

    # What always holds

    @invariant()
    def there_is_one_set_of_workers(self) -> None:
        """Never do pods of two worker Jobs live at once, and never do two worker Jobs wait for pods."""
        assert self.world.doubled == []
        active = [
            job
            for job in self.world.of_kind("Job", names.WORKER)
            if not is_finished(job) and "deletionTimestamp" not in job["metadata"]
        ]
        assert len(active) <= 1

    @invariant()
    def every_child_has_its_owner(self) -> None:
        """All that was made goes with the job, but for profiles, which jobs share."""
        if ("DLRMTrainingJob", JOB) not in self.world.objects:
            return
        uid = self.world.training_job(JOB)["metadata"]["uid"]
        for made in self.world.created:
            assert owners(made) == [uid] or made["metadata"]["name"].startswith(names.profile(""))  # labels are edited

    @invariant()
    def the_end_is_the_end(self) -> None:
        """A job that has succeeded or failed stays so, and nothing is made for it any more."""
        status = self.status()
        ended = [
            each
            for each in status.get("conditions", [])
            if each["type"] in {"Succeeded", "Failed"} and each["status"] == "True"
        ]
        if self.end is not None:
            assert (status["stage"], status["completionTime"]) == self.end
            assert len(self.world.created) == self.made_before_end
        elif ended:
            assert len(ended) == 1
            assert status["stage"] == ended[0]["type"]
            self.end = (status["stage"], status["completionTime"])
            self.made_before_end = len(self.world.created)

    @invariant()
    def restarts_only_grow(self) -> None:
        """Restarts are never lost, and those that count stay within the limit."""
        status = self.status()
        assert status.get("restarts", 0) >= self.restarts
        assert status.get("restarts", 0) <= self.restarts + 1
        self.restarts = status.get("restarts", 0)
        assert status.get("restartsCountTowardsMax", 0) <= min(MAX_RESTARTS, self.restarts)

    @invariant()
    def transition_times_move_with_the_status_alone(self) -> None:
        """From one write to the next, a condition's lastTransitionTime stays unless its status flips."""
        for status in self.world.statuses[self.read :]:
            for condition in status["conditions"]:
                now = (condition["status"], condition["lastTransitionTime"])
                before = self.flips.get(condition["type"], now)
                assert before[0] != now[0] or before == now
                self.flips[condition["type"]] = now
        self.read = len(self.world.statuses)

    @invariant()
    def workers_train_under_the_plan_of_the_name(self) -> None:
        """What workers mount is what its name says."""
        for job in self.world.of_kind("Job", names.WORKER):
            volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
            name = volumes["plan"]["configMap"]["name"]
            plan = self.world.objects.get(("ConfigMap", name))
            assert plan is None or names.plan(JOB, content_hash(plan)) == name
            assert plan is None or plan["immutable"]

    def status(self) -> Mapping[str, Any]:
        """Return the job's status."""
        return self.world.status(JOB) if ("DLRMTrainingJob", JOB) in self.world.objects else {}

    def bury(self) -> None:
        """Let every pod be gone that was asked to go."""
        for pod in self.world.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"] and pod["metadata"]["uid"] not in self.dead:
                self.world.finish_deletion(pod)

    def pods(self, phase: str, *roles: str) -> list[dict[str, Any]]:
        """Return the pods in a phase whose nodes answer."""
        found = [pod for role in roles or ("",) for pod in self.world.of_kind("Pod", role)]
        return [pod for pod in found if pod["status"]["phase"] == phase and pod["metadata"]["uid"] not in self.dead]

    def come_to_an_end(self) -> None:
        """Let all go well until the job has ended."""
        self.world.change_spec(JOB, suspend=False)
        for _ in range(10):
            self.world.now += timedelta(seconds=700)  # longer than any pause, shorter than the profiler's deadline
            self.all_goes_well_for_a_while()
            self.workers_finish()
            if self.status()["stage"] in {"Succeeded", "Failed"}:
                return
        raise AssertionError(f"the job does not end: {self.status()['stage']}, {self.status()['message']}")

    def settle(self) -> None:
        """Look until nothing is wanted, and see that the next look changes nothing: status moves only with cause."""
        self.world.watches.catch_up()
        self.loop.run_until_complete(self.operator.resync())
        for _ in range(20):
            self.world.watches.catch_up()
            if self.loop.run_until_complete(self.operator.look(KEY)):
                break
        else:
            raise AssertionError("the operator does not come to rest")
        self.world.watches.catch_up()
        before = self.world.writes
        assert self.loop.run_until_complete(self.operator.look(KEY))
        assert self.world.writes == before
        self.check_that_workers_are_watched()

    def check_that_workers_are_watched(self) -> None:
        """No failure of the present workers goes unseen, whatever the job is at: planning, approval, a new size."""
        status = self.status()
        if status.get("stage") in {None, "Suspended", "Succeeded", "Failed"}:
            return
        for job in self.world.of_kind("Job", names.WORKER):
            attempt = int(job["metadata"]["labels"][names.ATTEMPT_LABEL])
            is_present = attempt == status.get("restarts", 0) and "deletionTimestamp" not in job["metadata"]
            pods = [pod for role in names.OF_AN_ATTEMPT for pod in self.world.of_kind("Pod", role)]
            pods = [pod for pod in pods if pod["metadata"]["labels"][names.ATTEMPT_LABEL] == str(attempt)]
            is_clear = all(pod["status"]["phase"] in {"Succeeded", "Failed"} for pod in pods)
            assert not (is_present and is_clear and is_finished(job)), "failed workers that nobody restarts"


class ServerHistories(Histories):
    """The same of a job with embedding servers, whose Job is a part of each attempt."""

    SPEC = SERVED

    def __init__(self) -> None:
        """Start on nodes of CPUs."""
        super().__init__()
        self.world.hardware = CPUS

    @precondition(lambda self: self.world.training_job(JOB)["spec"].get("suspend"))
    @rule(nodes=st.sampled_from([1, 2, 3]))
    def resize(self, nodes: int) -> None:
        """The job gets another number of servers while it is suspended, or none."""
        servers = {"embeddingServers": {**SERVERS, "replicas": nodes}} if nodes < 3 else {}
        self.world.change_spec(JOB, experimental={"pipeline": "None", **servers})

    @rule(code=st.sampled_from([1, 7, 137]))
    def a_server_fails_and_its_peers_notice(self, code: int) -> None:
        """The trainers end with 7, and the operator may look before the server's own pod has ended."""
        servers = self.pods("Running", names.SERVER)
        for pod in self.pods("Running", names.WORKER) if servers else ():
            self.world.end_pod(pod, 7)
        self.settle()
        if servers:
            self.world.end_pod(servers[0], code)

    @invariant()
    def there_is_one_set_of_servers(self) -> None:
        """Never do two Jobs of servers wait for pods."""
        active = [
            job
            for job in self.world.of_kind("Job", names.SERVER)
            if not is_finished(job) and "deletionTimestamp" not in job["metadata"]
        ]
        assert len(active) <= 1

    def come_to_an_end(self) -> None:
        """Let all go well until the job has ended, and see that no server runs on."""
        super().come_to_an_end()
        self.world.now += timedelta(seconds=31)
        for _ in range(2):
            self.settle()
            self.world.run_job_controller()
            self.bury()
        assert self.pods("Running", names.SERVER) == self.pods("Pending", names.SERVER) == []


class QueuedServerHistories(ServerHistories):
    """The same in a queue of Kueue, where a JobSet joins the Jobs of an attempt."""

    QUEUE: ClassVar[Mapping[str, str]] = {names.QUEUE_LABEL: "queue"}
    SETTINGS = JOINING

    @invariant()
    def an_attempt_in_the_queue_is_one(self) -> None:
        """Kueue admits no Job of it alone."""
        alone = (job for role in names.OF_AN_ATTEMPT for job in self.world.of_kind("Job", role))
        for job in alone:
            has_servers = bool(self.status().get("servers"))
            assert not has_servers or names.JOB_SET in owner_kinds(job) or is_finished(job)


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("histories", [Histories, ServerHistories, QueuedServerHistories])
def test_the_invariants_hold_in_every_history(histories: type[Histories]) -> None:
    """Thousands of steps in random order: lagging watches, killed operators, failing pods, meddling hands."""
    run_state_machine_as_test(histories, settings=settings(max_examples=depth(15, 80), stateful_step_count=40))
