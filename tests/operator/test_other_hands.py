"""What other people's hands do to a job's children and inputs, and what the API server refuses."""

import asyncio

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError
from support.operator.operator_process import JOB, KEY, ONE_NODE, SETTINGS, OperatorProcess, Story
from support.operator.operator_world import World


@pytest.mark.parametrize(("kind", "name"), [("Service", "job-workers"), ("RoleBinding", "job-worker")])
def test_a_foreign_object_is_never_adopted(kind: str, name: str) -> None:
    """It stays as it is, no workers are started next to it, and the job says why it cannot go on."""
    story = Story()
    foreign = story.world.put({"kind": kind, "metadata": {"name": name}, "spec": {"clusterIP": "10.0.0.1"}})
    story.planned()

    assert story.seen == ("Failed", "NameConflict")
    assert foreign["spec"] == {"clusterIP": "10.0.0.1"}
    assert not story.world.of_kind("Job", names.WORKER)


def test_labels_of_the_user_are_not_missed() -> None:
    """A label of the pod template with the operator's prefix belongs to the pods alone."""
    story = Story(podTemplate={"metadata": {"labels": {"training.neuroshard.dev/team": "ads"}}}).running()

    [job] = story.world.of_kind("Job", names.WORKER)
    assert "training.neuroshard.dev/team" not in job["metadata"]["labels"]
    assert "ChildRepaired" not in story.reasons()


def test_labels_of_the_operator_that_a_user_chooses_are_not_taken_for_its_own() -> None:
    """The pods of each stage have those that the stage gave them; no edit is reported that there was not."""
    lies = dict.fromkeys(names.MADE_LABELS, "7")
    said = {"labels": {**lies, "team": "ads"}}
    story = Story(
        podTemplate={"metadata": said},
        experimental={"planner": {"podMetadata": said}, "profiler": {"podMetadata": said}},
    ).running()

    assert "ChildRepaired" not in story.reasons()
    for role in (names.PROFILER, names.PLANNER, names.WORKER):
        for job in story.world.of_kind("Job", role):
            found = job["spec"]["template"]["metadata"]["labels"]
            assert found["team"] == "ads"
            assert "7" not in {found.get(label) for label in names.MADE_LABELS}


def test_a_widened_role_is_narrowed_again() -> None:
    """An edit by hand is restored, and an event reports it."""
    story = Story()
    [role] = story.world.of_kind("Role")
    rules = role["rules"]
    role["rules"] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    story.world.touch(role)
    story.planned()
    [worker] = [each for each in story.world.of_kind("Role") if each["metadata"]["name"] == "job-worker"]
    worker["rules"] = []
    story.world.touch(worker)
    story.settle()

    assert rules
    assert worker["rules"] == [{**rules[0], "resourceNames": ["job-report"]}]
    repaired = [event["message"] for event in story.world.events if event["reason"] == "ChildRepaired"]
    assert "Role job-worker was edited and is restored" in repaired


def test_an_edit_of_a_role_that_an_earlier_release_made_is_an_event() -> None:
    """It has no label that says which result it is for."""
    story = Story().planned()
    [role] = [each for each in story.world.of_kind("Role") if each["metadata"]["name"] == "job-worker"]
    del role["metadata"]["labels"][names.RESULT_LABEL]
    role["rules"] = []
    story.world.touch(role)
    story.settle()

    assert role["rules"]
    assert "ChildRepaired" in story.reasons()


LABELS = [
    names.MANAGED_BY_LABEL,
    names.JOB_LABEL,
    names.ROLE_LABEL,
    names.ATTEMPT_LABEL,
    names.INPUTS_HASH_LABEL,
]


@pytest.mark.parametrize("value", [None, "7"])
@pytest.mark.parametrize("label", LABELS)
def test_a_worker_job_gets_back_the_labels_that_it_was_made_with(label: str, value: str | None) -> None:
    """Also where no watch shows it any more: its pods train on, and no second set of workers is started."""
    story = Story().running()
    job = story.world.objects["Job", "job-worker-0"]
    made = dict(job["metadata"]["labels"])
    job["metadata"]["labels"] = {key: each for key, each in made.items() if key != label} | (
        {label: value} if value else {}
    )
    story.world.touch(job)
    story.settle()

    assert job["metadata"]["labels"] == made
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["restarts"] == 0
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    assert story.world.doubled == []
    assert "ChildRepaired" in story.reasons()


@pytest.mark.parametrize("role", [names.PROFILER, names.PLANNER])
def test_the_job_of_a_stage_gets_back_the_label_that_watches_select_by(role: str) -> None:
    """It is found under its name when it is to be made again."""
    story = Story(trainer=ONE_NODE)
    if role == names.PLANNER:
        story.do(names.PROFILER)
    [job] = story.world.of_kind("Job", role)
    made = dict(job["metadata"]["labels"])
    del job["metadata"]["labels"][names.MANAGED_BY_LABEL]
    story.world.touch(job)
    story.settle()

    assert job["metadata"]["labels"] == made
    story.later(30)
    assert len(story.jobs(role)) == 1
    story.do(role)
    assert story.status["stage"] in {"Planning", "Launching"}


@pytest.mark.parametrize("kind", ["ConfigMap", "Role", "RoleBinding", "Service"])
def test_a_child_gets_back_the_label_that_watches_select_by(kind: str) -> None:
    """Unlabeled it would be missed, and asked for every ten seconds."""
    story = Story().running()
    name = {"Service": "job-workers", "ConfigMap": "job-report"}.get(kind, "job-worker")
    child = story.world.objects[kind, name]
    made = dict(child["metadata"]["labels"])
    del child["metadata"]["labels"][names.MANAGED_BY_LABEL]
    story.world.touch(child)
    story.settle()

    assert child["metadata"]["labels"] == made
    assert story.seen == ("Running", "AllWorkersReady")


def test_a_job_that_was_suspended_stops_workers_whose_job_lost_its_labels() -> None:
    """They would train on, though the status says that no pods run."""
    story = Story().running()
    job = story.world.objects["Job", "job-worker-0"]
    job["metadata"]["labels"] = {}
    story.world.touch(job)
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()

    assert story.pods(names.WORKER) == []
    assert story.jobs(names.WORKER) == []


def test_a_job_of_a_workers_name_that_is_not_owned_is_left_alone() -> None:
    """A pod that names it by its attempt does not make it the job's."""
    story = Story().running()
    job = story.world.objects["Job", "job-worker-0"]
    job["metadata"]["labels"] = {}
    job["metadata"]["ownerReferences"] = []
    story.world.touch(job)
    story.settle()

    assert job["metadata"]["labels"] == {}
    assert story.seen == ("Launching", "WaitingForOldPods")


def test_another_rendezvous_port_reaches_the_service() -> None:
    """Server-side apply would keep the old port next to it, under one name, and the API server refuse both."""
    story = Story().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False, experimental={"rendezvous": {"port": 30000}})
    story.settle()

    [service] = story.world.of_kind("Service", names.WORKER)
    assert [port["port"] for port in service["spec"]["ports"]] == [30000]


def test_a_widened_selector_is_narrowed_again() -> None:
    """A key that was added goes: the map is set, not merged."""
    story = Story().running()
    [service] = story.world.of_kind("Service", names.WORKER)
    selector = dict(service["spec"]["selector"])
    service["spec"]["selector"]["app"] = "other"
    story.world.touch(service)
    story.settle()

    assert service["spec"]["selector"] == selector


def test_a_write_that_is_rejected_while_workers_run_is_told_and_tried_again() -> None:
    """The Service of a running job is gone, and a quota is in the way: the workers run on."""
    story = Story().running()
    story.world.refuse["Service"] = ApiError(403, "Forbidden", "exceeded quota: services")
    story.world.remove("Service", "job-workers")
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")
    assert "exceeded quota: services" in story.status["message"]
    assert story.operator.requeue_after_s is not None
    assert story.operator.requeue_after_s <= 31
    story.world.refuse.clear()
    story.later(30)

    assert ("Service", "job-workers") in story.world.objects
    assert "exceeded quota" not in story.status["message"]


@pytest.mark.parametrize("code", [400, 422])
def test_an_invalid_write_beside_running_workers_is_tried_again(code: int) -> None:
    """A ValidatingAdmissionPolicy answers 422, and anyone who wrote it may change it: the training goes on."""
    story = Story().running()
    story.world.refuse["Service"] = ApiError(code, "Invalid", "ValidatingAdmissionPolicy 'x' denied request")
    story.world.remove("Service", "job-workers")
    story.settle()
    story.later(31)
    assert story.seen == ("Running", "AllWorkersReady")
    assert "ValidatingAdmissionPolicy 'x' denied request" in story.status["message"]
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    story.world.refuse.clear()
    story.later(31)

    assert ("Service", "job-workers") in story.world.objects
    assert "denied" not in story.status["message"]


def test_a_foreign_object_beside_running_workers_is_left_alone_and_reported() -> None:
    """The Service is made again once the other one of its name is gone; the training goes on meanwhile."""
    story = Story().running()
    story.world.remove("Service", "job-workers")
    foreign = story.world.put(
        {"kind": "Service", "metadata": {"name": "job-workers"}, "spec": {"clusterIP": "10.0.0.1"}}
    )
    story.settle()
    story.later(31)
    assert story.seen == ("Running", "AllWorkersReady")
    assert "Service job-workers" in story.status["message"]
    assert foreign["spec"] == {"clusterIP": "10.0.0.1"}
    story.world.remove("Service", "job-workers")
    story.later(31)

    [service] = story.world.of_kind("Service", names.WORKER)
    assert service["metadata"]["ownerReferences"]


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_restart_that_the_api_server_rejects_is_tried_again(code: int) -> None:
    """An admission policy that came while the job trained may go: neither the checkpoint nor the job is given up."""
    story = Story().running()
    story.world.refuse["Job"] = ApiError(code, "Invalid", "ValidatingAdmissionPolicy 'x' denied request")
    story.fail(names.WORKER, 137)
    story.bury()
    assert story.seen == ("Launching", "ChildRefused")
    assert "denied request" in story.status["message"]
    story.world.refuse.clear()
    story.later(31)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["restarts"] == 1


def test_only_a_rejected_job_points_at_the_pod_template() -> None:
    """A Service that the API server rejects before there are workers ends the job, and no field of it is blamed."""
    story = Story()
    story.world.refuse["Service"] = ApiError(422, "Invalid", "ValidatingAdmissionPolicy 'x' denied request")
    story.planned()

    assert story.seen == ("Failed", "InvalidPodTemplate")
    assert "podTemplate" not in story.status["message"]


def test_a_worker_job_that_was_deleted_is_made_again() -> None:
    """The same attempt goes on once its pods are gone."""
    story = Story().running()
    story.world.remove("Job", "job-worker-0")
    story.settle()
    assert story.seen == ("Launching", "WaitingForOldPods")
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0"]
    assert story.status["restarts"] == 0


@pytest.mark.parametrize("role", [names.PROFILER, names.PLANNER, names.WORKER])
def test_what_pods_need_to_start_is_made_again(role: str) -> None:
    """The files that they mount, and the account that they run as."""
    story = Story()
    if role != names.PROFILER:
        story.do(names.PROFILER)
    if role == names.WORKER:
        story.do(names.PLANNER)
    stage, pods = story.seen, story.pods(role)
    volumes = [volume for pod in pods for volume in pod["spec"]["volumes"]]
    mounted = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    for place in [("ServiceAccount", f"{JOB}-{role}"), *(("ConfigMap", name) for name in mounted)]:
        story.world.remove(*place)
    for pod in pods:
        story.world.start_pod(pod)
    assert mounted
    assert [pod["status"]["phase"] for pod in pods] == ["Pending"] * len(pods)
    story.settle()

    assert story.seen == stage
    for pod in pods:
        story.world.start_pod(pod)
    assert [pod["status"]["phase"] for pod in pods] == ["Running"] * len(pods)
    assert ("ServiceAccount", f"{JOB}-{role}") in story.world.objects


def test_files_of_workers_that_run_are_not_missed() -> None:
    """A pod reads them when it starts."""
    story = Story().running()
    [files] = [each for each in story.world.of_kind("ConfigMap", "files") if "tables.json" not in each["data"]]
    story.world.remove("ConfigMap", files["metadata"]["name"])
    writes = story.world.writes
    story.settle()

    assert story.world.writes == writes


def test_a_refused_child_is_told_and_tried_again() -> None:
    """A quota that is full may have room later."""
    story = Story()
    story.world.refuse["Job"] = ApiError(403, "Forbidden", "exceeded quota: gpus")
    story.do(names.PROFILER)
    assert story.seen == ("Planning", "ChildRefused")
    assert "exceeded quota: gpus" in story.status["message"]
    assert story.operator.requeue_after_s is not None
    story.world.refuse.clear()
    story.later(30)

    assert story.seen == ("Planning", "PlannerRunning")


def test_a_pod_template_that_kubernetes_refuses_ends_the_job() -> None:
    """The API server's own words are the message."""
    story = Story(profiler={"policy": "Never", "deviceType": "h100-80gb"})
    story.world.refuse["Job"] = ApiError(422, "Invalid", "spec.template.spec.containers[0].image: Required value")
    story.do(names.PLANNER)

    assert story.seen == ("Failed", "InvalidPodTemplate")
    assert "image: Required value" in story.status["message"]


def test_a_job_of_another_manager_is_left_alone() -> None:
    """Kueue runs it in another cluster."""
    world = World()
    world.submit(JOB, managedBy="kueue.x-k8s.io/multikueue")
    world.watches.catch_up()

    assert asyncio.run(OperatorProcess(world).look(KEY))
    assert world.writes == 0


def test_tables_may_come_from_a_config_map() -> None:
    """The job waits for it, and a broken one ends it with the field's path."""
    reference = {"configMapKeyRef": {"name": "tables", "key": "tables.json"}}
    story = Story(model={"embeddingTablesFrom": reference})
    assert story.seen == ("Pending", "InputMissing")
    story.world.put({"kind": "ConfigMap", "metadata": {"name": "tables"}, "data": {"tables.json": '{"tables": 3}'}})
    story.later(15)

    assert story.seen == ("Failed", "InvalidInput")
    assert "schema_version" in story.status["message"]


def test_the_settings_are_the_images_of_pods_that_name_none() -> None:
    """A job need not know where the operator's images lie."""
    story = Story()

    [job] = story.world.of_kind("Job", names.PROFILER)
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == SETTINGS.profiler_image
