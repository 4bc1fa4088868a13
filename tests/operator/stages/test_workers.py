"""Workers: how they are started, what they report, and what follows when they fail."""

from itertools import pairwise
from typing import Any

import pytest
from neuroshard_api.documents.progress import GuardRecord, GuardState
from neuroshard_operator import names
from neuroshard_operator.children.pods import KEEPING_SIGTERM
from neuroshard_operator.pace import COUNTS_EVERY_S
from support import builders
from support.operator.operator_process import SETTINGS, TWO_NODES, Story


def test_workers_are_an_indexed_job_that_finds_itself() -> None:
    """All pods or none, host names by a Service, torchrun's settings in its variables, shared memory, time to stop."""
    story = Story().planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == "job-workers"
    assert pod["terminationGracePeriodSeconds"] == 300
    [container] = pod["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["PET_RDZV_ENDPOINT"] == "job-worker-0-0.job-workers:29500"
    assert env["PET_NNODES"] == "2"
    [node_rank] = [each["valueFrom"] for each in container["env"] if each["name"] == "PET_NODE_RANK"]
    index = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert node_rank == {"fieldRef": {"fieldPath": index}}
    assert "dshm" in [mount["name"] for mount in container["volumeMounts"]]
    [service] = story.world.of_kind("Service", names.WORKER)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [({}, "285"), ({"terminationGracePeriodSeconds": 1800}, "1785"), ({"terminationGracePeriodSeconds": "x"}, "285")],
    ids=["default", "pod template", "not a number"],
)
def test_ranks_have_the_grace_period_for_their_checkpoint(template: dict[str, Any], expected: str) -> None:
    """Torchrun would kill them 30 s after SIGTERM."""
    story = Story(podTemplate={"spec": template}).planned()

    assert environment(trainer_container(story))["PET_SHUTDOWN_TIMEOUT"] == expected


def test_the_pod_template_is_merged_over_the_security_of_pods() -> None:
    """Another group for a volume leaves the user as it is; null takes a field away."""
    security = {"fsGroup": 5, "runAsGroup": None}
    story = Story(podTemplate={"spec": {"securityContext": security, "enableServiceLinks": None}}).planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    pod = job["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsUser": 65532, "fsGroup": 5, "runAsNonRoot": True}
    assert "enableServiceLinks" not in pod


@pytest.mark.parametrize("role", [names.PROFILER, names.PLANNER, names.WORKER])
def test_clusters_that_assign_users_get_pods_without_one(role: str) -> None:
    """OpenShift's restricted-v2 refuses any other user than its own choice."""
    story = Story(SETTINGS.model_copy(update={"fixed_user": False})).planned()

    [job] = story.world.of_kind("Job", role)
    assert job["spec"]["template"]["spec"]["securityContext"] == {"runAsNonRoot": True}


def trainer_container(story: Story) -> dict[str, Any]:
    """Return the container that the workers train in."""
    [job] = story.world.of_kind("Job", names.WORKER)
    containers: list[dict[str, Any]] = job["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if each["name"] == "trainer")


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables."""
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_a_worker_is_ready_once_it_trains() -> None:
    """Its trainer makes a file, on a volume that goes with the pod; a slow start is nobody's failure."""
    container = trainer_container(Story().planned())

    file = environment(container)["NEUROSHARD_READY_FILE"]
    probe = container["startupProbe"]
    assert probe["exec"]["command"] == ["test", "-e", file]
    assert probe["failureThreshold"] == 2**31 - 1
    assert {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")} >= {"/tmp"}  # noqa: S108
    assert file.startswith("/tmp/")  # noqa: S108
    assert "readinessProbe" not in container


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param({"startupProbe": {"httpGet": {"port": 80}}}, {"httpGet": {"port": 80}}, id="its own probe"),
        pytest.param({"startupProbe": None}, None, id="no probe"),
        pytest.param({"command": ["train"]}, None, id="another command"),
    ],
)
def test_the_pod_template_has_the_last_word_on_the_probe(said: dict[str, Any], expected: object) -> None:
    """A probe of ours next to it would be none that Kubernetes takes, or would hold the workers up for ever."""
    story = Story(trainer=TWO_NODES, podTemplate={"spec": {"containers": [{"name": "trainer", **said}]}}).planned()

    assert trainer_container(story).get("startupProbe") == expected


@pytest.mark.parametrize("containers", ["trainer", ["trainer"], [{"image": "x"}]], ids=["text", "texts", "no name"])
def test_a_pod_template_that_makes_no_sense_is_left_to_the_api_server(containers: object) -> None:
    """It knows best what is wrong."""
    story = Story(podTemplate={"spec": {"containers": containers}}).planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    assert job["spec"]["template"]["spec"]["containers"] == containers


def test_commands_name_large_files_as_their_config_maps_hold_them() -> None:
    """Compressed: job, tables, request and plan of 500 tables with the longest names are above half a megabyte each."""
    features = [f"{'x' * 120}_{letter}" for letter in "abcdefgh"]
    tables = [
        {"name": f"{'t' * 120}_{index}", "numEmbeddings": 1000, "embeddingDim": 16, "featureNames": features}
        for index in range(500)
    ]
    story = Story(model={"embeddingTables": tables}).planned()

    named = set()
    for job in story.world.of_kind("Job"):
        pod = job["spec"]["template"]["spec"]
        [container] = pod["containers"]
        folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        held = set()
        for volume in pod["volumes"]:
            if "configMap" in volume and volume["name"] != "bundle":
                config_map = story.world.objects["ConfigMap", volume["configMap"]["name"]]
                held |= {f"{folders[volume['name']]}/{key}" for key in [*config_map["data"], *config_map["binaryData"]]}
        words = {word for each in (container, *pod.get("initContainers", ())) for word in each["command"]}
        named |= held & words
        assert held - words <= {"/neuroshard/files/tables.json.gz"}
    assert named == {
        f"/neuroshard/{name}.json.gz"
        for name in ("files/job", "files/tables", "request/job", "request/request", "plan/plan")
    }


@pytest.mark.parametrize("role", [names.PROFILER, names.PLANNER, names.WORKER])
def test_the_pods_of_every_stage_pull_with_the_secrets_of_operator_and_job(role: str) -> None:
    """Their service accounts name none."""
    settings = SETTINGS.model_copy(update={"image_pull_secrets": ("ours", "both")})
    said = [{"name": "both"}, {"name": "jobs"}]
    story = Story(settings, podTemplate={"spec": {"imagePullSecrets": said}}).planned()

    [job] = story.world.of_kind("Job", role)
    found = job["spec"]["template"]["spec"]["imagePullSecrets"]
    assert [each["name"] for each in found] == ["ours", "both", "jobs"]


def test_a_trainer_of_ones_own_is_ready_when_it_runs() -> None:
    """It need not know of the file; a probe of its own may ask for it."""
    story = Story(trainer={"numNodes": 1, "image": "mine", "command": ["torchrun", "train.py"]}).planned()

    container = trainer_container(story)
    assert "startupProbe" not in container
    assert environment(container)["NEUROSHARD_READY_FILE"].startswith("/tmp/")  # noqa: S108


def test_a_trainer_of_ones_own_gets_a_sidecar_that_publishes() -> None:
    """Its image need not know our command."""
    story = Story(trainer={"numNodes": 1, "image": "mine", "command": ["torchrun", "train.py"]}).planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["torchrun", "train.py"]
    [sidecar] = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"][:6] == [*KEEPING_SIGTERM, "neuroshard", "publish"]


def test_all_reports_of_the_workers_are_published() -> None:
    """Steps, progress, drift, and inputs, from the folder that outlives the pod."""
    story = Story().planned()

    command = trainer_container(story)["command"]
    published = [after for word, after in pairwise(command) if word == "--from"]
    assert published == [
        f"/checkpoints/job/{name}.json" for name in ("step-report", "progress", "drift-report", "input-statistics")
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, ("False", "NoCheckpointVolume"), id="none"),
        pytest.param(
            {"checkpoint": {"persistentVolumeClaim": {"claimName": "c"}}}, ("True", "CheckpointVolume"), id="claim"
        ),
        pytest.param(
            {
                "podTemplate": {
                    "spec": {"containers": [{"name": "trainer", "volumeMounts": [{"mountPath": "/checkpoints"}]}]}
                }
            },
            ("True", "CheckpointVolume"),
            id="pod template",
        ),
    ],
)
def test_a_job_whose_checkpoints_die_with_its_pods_says_so(spec: dict[str, Any], expected: tuple[str, str]) -> None:
    """A lost node would cost the whole training."""
    condition = Story(**spec).running().condition("CheckpointsKept")

    assert (condition["status"], condition["reason"]) == expected


def test_a_trainer_of_ones_own_may_keep_checkpoints_elsewhere() -> None:
    """Nothing is known of them, so nothing is reported."""
    story = Story(trainer={"numNodes": 1, "image": "mine", "command": ["torchrun", "train.py"]}).running()

    assert "CheckpointsKept" not in [each["type"] for each in story.status["conditions"]]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, "/checkpoints/job", id="the job's name"),
        pytest.param({"checkpoint": {"folder": "shop/v2", "mountPath": "/ckpt"}}, "/ckpt/shop/v2", id="folder"),
        pytest.param({"checkpoint": {"folder": "."}}, "/checkpoints", id="the volume itself"),
        pytest.param({"trainer": {"command": ["torchrun", "x"]}}, "/checkpoints", id="own trainer"),
        pytest.param({"trainer": {"command": ["x"]}, "checkpoint": {"folder": "a"}}, "/checkpoints/a", id="own folder"),
    ],
)
def test_jobs_on_one_volume_have_folders_of_their_own(spec: dict[str, Any], expected: str) -> None:
    """They would go on from each other's checkpoints, and delete them."""
    container = trainer_container(Story(**spec).planned())

    assert environment(container)["NEUROSHARD_RUN_DIR"] == expected
    mount_path = spec.get("checkpoint", {}).get("mountPath", "/checkpoints")
    assert mount_path in [each["mountPath"] for each in container["volumeMounts"]]


@pytest.mark.parametrize(
    ("checkpoint", "path", "expected"),
    [
        pytest.param({}, "/checkpoints/checkpoints/step-00000200", "/checkpoints", id="of an earlier release"),
        pytest.param({}, "/checkpoints/job/checkpoints/step-00000200", "/checkpoints/job", id="of this release"),
        pytest.param({"folder": "a"}, "/checkpoints/checkpoints/step-00000200", "/checkpoints/a", id="another folder"),
    ],
)
def test_a_job_goes_on_from_the_folder_of_its_newest_checkpoint(
    checkpoint: dict[str, str], path: str, expected: str
) -> None:
    """Earlier releases wrote to the mount path itself: a restart after an upgrade must not begin at step 0."""
    story = Story(checkpoint=checkpoint).running()
    progress = builders.progress(step=200, checkpoint_step=200, checkpoint_path=path)
    story.world.publish("job-report", {"progress.json": progress.to_json().encode()})
    story.settle()
    story.fail(names.WORKER, 1)

    container = story.world.objects["Job", "job-worker-1"]["spec"]["template"]["spec"]["containers"][0]
    assert environment(container)["NEUROSHARD_RUN_DIR"] == expected


def test_a_job_that_trains_succeeds() -> None:
    """All workers succeeded."""
    story = Story().running()
    assert story.seen == ("Running", "AllWorkersReady")
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 0)
    story.settle()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert story.status["completionTime"]
    assert story.reasons() == ["Profiled", "Planned", "Running", "Succeeded"]


def attempts(story: Story) -> dict[str, int]:
    """Return the number of attempts of each stage."""
    return {stage["name"]: stage["attempts"] for stage in story.status["stages"]}


def test_workers_that_end_one_after_another_are_still_running() -> None:
    """Also in the moment in which a worker's container has ended and its pod has not."""
    story = Story().running()
    first, second = story.pods(names.WORKER)
    story.world.end_pod(first, 0)
    first["status"]["phase"] = "Running"
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")
    story.world.end_pod(first, 0)
    story.settle()
    assert story.status["message"] == "2 of 2 workers are ready"
    story.later(COUNTS_EVERY_S)
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["message"] == "1 of 2 workers are ready, 1 succeeded"
    story.world.end_pod(second, 0)
    story.settle()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert (attempts(story)["Launching"], attempts(story)["Running"]) == (1, 1)


def test_a_worker_that_is_not_ready_for_a_while_is_told_and_not_launched_again() -> None:
    """Its node may be out of reach for a moment."""
    story = Story().running()
    [pod, _] = story.pods(names.WORKER)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    story.world.touch(pod)
    story.settle()
    assert story.seen == ("Running", "WorkersNotReady")
    assert story.condition("PodsReady")["status"] == "False"
    assert story.condition("Running")["status"] == "True"
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert attempts(story)["Launching"] == 1
    assert story.reasons() == ["Profiled", "Planned", "Running"]


def test_what_the_workers_measure_is_held_beside_the_prediction() -> None:
    """Once at once, then at most every 30 s, and the last word in any case."""
    story = Story().running()
    digest = story.status["plan"]["hash"].removeprefix("sha256:")

    def report(compute_ms: float) -> None:
        ranks = (builders.rank_times(0, forward_compute_ms=compute_ms), builders.rank_times(1))
        document = builders.step_report(plan_sha256=digest, ranks=ranks)
        story.world.publish("job-report", {"step-report.json": document.to_json().encode()})
        story.settle()

    report(2.0)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 6000
    predicted = story.status["cost"]["predicted"]["totalMicroseconds"]
    assert story.status["cost"]["errorPercent"] == round(100 * (6000 - predicted) / predicted)
    report(3.0)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 6000
    story.later(31)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 7000


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        pytest.param(None, "True", "SameDevice", id="as planned"),
        pytest.param("measured:NVIDIA T4", "False", "OtherDevice", id="another one"),
    ],
)
def test_workers_on_another_device_than_the_planned_one_are_shown(source: str | None, status: str, reason: str) -> None:
    """Nodes without product labels, or a pool of mixed GPUs: the plan's costs do not hold there."""
    story = Story().running()
    plan = story.status["plan"]["hash"].removeprefix("sha256:")
    planned = story.status["cost"]["predicted"]["source"]
    report = builders.step_report(plan_sha256=plan, source=source or planned)
    story.world.publish("job-report", {"step-report.json": report.to_json().encode()})
    story.settle()

    found = story.condition("DeviceAsPlanned")
    assert (found["status"], found["reason"]) == (status, reason)
    assert ("errorPercent" in story.status["cost"]) == (status == "True")
    assert source is None or (source in found["message"] and planned in found["message"])


def test_a_report_under_another_plan_is_not_believed() -> None:
    """It was measured by workers of an earlier plan."""
    story = Story().running()
    story.world.publish("job-report", {"step-report.json": builders.step_report().to_json().encode()})
    story.settle()

    assert "measured" not in story.status["cost"]


@pytest.mark.parametrize(
    ("run_id", "is_believed"),
    [
        ("{uid}-0", False),
        ("{uid}-1", True),
        ("7a1f0a1e-6d1c-4c7e-9d0b-5a3c2f1e8b90-1", False),
        (None, True),
        ("of-a-user-7", True),
    ],
    ids=[
        "of the attempt before",
        "of this attempt",
        "of a deleted job of the same name",
        "of an older trainer",
        "of a torchrun of one's own",
    ],
)
def test_a_report_that_an_earlier_attempt_left_on_the_volume_is_not_believed(
    run_id: str | None, *, is_believed: bool
) -> None:
    """The publisher of the next attempt finds it there before the trainer writes its own."""
    story = Story().running()
    run_id = run_id and run_id.format(uid=story.world.training_job("job")["metadata"]["uid"])
    story.fail(names.WORKER, 1)
    story.start_workers()
    digest = story.status["plan"]["hash"].removeprefix("sha256:")
    progress = builders.progress(run_id=run_id, checkpoint_step=200, checkpoint_path="/checkpoints/step-00000200")
    report = builders.step_report(plan_sha256=digest, run_id=run_id)
    files = {"progress.json": progress.to_json().encode(), "step-report.json": report.to_json().encode()}
    story.world.publish("job-report", files)
    story.settle()

    assert [name in story.status for name in ("trainerStatus", "checkpoint")] == [is_believed] * 2
    assert ("measured" in story.status["cost"]) == is_believed


def reported_by(story: Story, run_id: str, step: int = 200) -> None:
    """Let the workers of a run report, with a checkpoint, and the operator read it."""
    digest = story.status["plan"]["hash"].removeprefix("sha256:")
    path = f"/checkpoints/step-{step:08}"
    progress = builders.progress(step=step, run_id=run_id, checkpoint_step=step, checkpoint_path=path)
    source = story.status["cost"]["predicted"]["source"]
    report = builders.step_report(plan_sha256=digest, run_id=run_id, source=source)
    files = {"progress.json": progress.to_json().encode(), "step-report.json": report.to_json().encode()}
    story.world.publish("job-report", files)
    story.later(31)


def test_a_restart_clears_what_the_attempt_before_reported() -> None:
    """Until the next attempt reports, nothing is known of its progress, cost, and device; the checkpoint stays."""
    story = Story().running()
    uid = story.world.training_job("job")["metadata"]["uid"]
    reported_by(story, f"{uid}-0")
    assert "trainerStatus" in story.status
    assert {"measured", "errorPercent"} <= story.status["cost"].keys()
    assert story.condition("DeviceAsPlanned")["status"] == "True"
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.later(40)

    assert story.seen == ("Running", "AllWorkersReady")
    assert "trainerStatus" not in story.status
    assert not {"measured", "errorPercent"} & story.status["cost"].keys()
    assert "predicted" in story.status["cost"]
    found = story.condition("DeviceAsPlanned")
    assert (found["status"], found["reason"]) == ("Unknown", "NotReported")
    assert story.status["checkpoint"]["step"] == 200
    reported_by(story, f"{uid}-1", step=300)
    assert "trainerStatus" in story.status
    assert "measured" in story.status["cost"]
    assert story.condition("DeviceAsPlanned")["status"] == "True"


def test_a_report_that_names_no_attempt_keeps_its_time_over_a_restart() -> None:
    """Cleared, it would be read again from its ConfigMap and shown as one of the next attempt."""
    story = Story().running()
    reported_by(story, "of-a-user-7")
    before = story.status["trainerStatus"], story.status["cost"]["measured"]
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.later(40)

    assert (story.status["trainerStatus"], story.status["cost"]["measured"]) == before


def test_a_failure_restarts_all_workers_with_the_same_plan() -> None:
    """The restart is recorded with its cause, then the next attempt starts."""
    story = Story().running()
    plan = story.status["plan"]
    story.fail(names.WORKER, 137)

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert story.seen == ("Launching", "WorkersStarting")
    assert attempts(story)["Launching"] == 2
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    assert story.status["lastFailure"]["exitCode"] == 137
    assert story.status["plan"] == plan
    assert len(story.jobs(names.PLANNER)) == 1
    assert "WorkersRestarted" in story.reasons()


def test_new_workers_wait_until_the_old_ones_are_gone() -> None:
    """A pod that still ends holds GPUs and a checkpoint."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    assert story.seen == ("Launching", "WaitingForOldPods")
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]


def test_a_pod_on_a_lost_node_holds_nobody_up_for_ever() -> None:
    """A minute past its grace period it counts as gone."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    story.later(91)

    assert "job-worker-1" in story.jobs(names.WORKER)


def test_a_drained_node_does_not_count() -> None:
    """The pod says that the cluster took it away."""
    story = Story().running()
    story.fail(names.WORKER, 143, disruption="EvictionByEvictionAPI")

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert story.status["lastFailure"]["reason"] == "EvictionByEvictionAPI"


def test_workers_that_never_met_do_not_count() -> None:
    """A worker whose image or node comes late makes the others give up; the attempts after it are free, and end."""
    story = Story(failurePolicy={"maxRestarts": 0}).planned()
    for _ in range(3):
        story.fail(names.WORKER, 7)
        story.later(400)

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (3, 0)
    assert story.seen == ("Launching", "WorkersStarting")
    story.start_workers()
    story.fail(names.WORKER, 7)
    assert story.seen == ("Failed", "MaxRestartsExceeded")


def test_a_trainer_that_breaks_before_it_is_ready_counts() -> None:
    """A bug at the start is not lateness of another worker."""
    story = Story(failurePolicy={"maxRestarts": 0}).planned()
    story.fail(names.WORKER, 1)

    assert story.seen == ("Failed", "MaxRestartsExceeded")


def test_wrong_input_is_not_tried_twice() -> None:
    """Exit code 2 ends the job."""
    story = Story().running()
    story.fail(names.WORKER, 2)

    assert story.seen == ("Failed", "WorkersFailed")


def test_restarts_end_at_their_limit() -> None:
    """Each pause is longer than the one before; the failure after the last restart ends the job."""
    story = Story(failurePolicy={"maxRestarts": 2}).running()
    for _ in range(2):
        story.fail(names.WORKER, 1)
        story.later(400)
        story.start_workers()
    story.fail(names.WORKER, 1)

    assert story.seen == ("Failed", "MaxRestartsExceeded")
    assert story.status["restarts"] == 2


def test_the_second_restart_waits_a_little() -> None:
    """A job that fails at once does not fill the cluster with pods."""
    story = Story().running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.fail(names.WORKER, 1)
    assert story.seen == ("Launching", "WaitingToRestart")
    assert (story.status["workers"]["ready"], story.status["workers"]["failed"]) == (0, 0)
    story.later(11)

    assert "job-worker-2" in story.jobs(names.WORKER)


def test_a_rule_can_ask_for_another_plan() -> None:
    """ReplanAndRestart plans with more memory held back, since equal questions have equal answers."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [9]}}
    story = Story(failurePolicy={"rules": [rule]}).running()
    story.fail(names.WORKER, 9)

    assert story.seen == ("Planning", "PlannerRunning")
    requests = [each["data"]["request.json"] for each in story.world.of_kind("ConfigMap", names.REQUEST)]
    assert len({text for text in requests if '"reserve_fraction": 0.15' in text}) == 1


def test_a_security_context_of_the_template_is_merged_over_the_restricted_one() -> None:
    """A group for volumes does not take the user away that restricted namespaces ask for."""
    story = Story(podTemplate={"spec": {"securityContext": {"fsGroup": 1000}}}).planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    context = job["spec"]["template"]["spec"]["securityContext"]
    assert context["fsGroup"] == 1000
    assert context["runAsNonRoot"]


GROUPS = [
    pytest.param(
        {"labels": {"scheduling.x-k8s.io/pod-group": "shop"}}, "scheduler-plugins-scheduler", id="coscheduling plug-in"
    ),
    pytest.param({"annotations": {"scheduling.k8s.io/group-name": "shop"}}, "volcano", id="volcano"),
]


@pytest.mark.parametrize(("metadata", "scheduler"), GROUPS)
def test_a_pod_group_of_the_template_reaches_the_workers_of_every_attempt(
    metadata: dict[str, dict[str, str]], scheduler: str
) -> None:
    """The profiler's pod meets the same scheduler and is not a member: it would wait for workers that come after it."""
    story = Story(podTemplate={"metadata": metadata, "spec": {"schedulerName": scheduler}}).running()
    story.fail(names.WORKER, 1)

    for attempt in (0, 1):
        template = story.world.objects["Job", f"job-worker-{attempt}"]["spec"]["template"]
        assert template["spec"]["schedulerName"] == scheduler
        assert all(template["metadata"][kind].items() >= entries.items() for kind, entries in metadata.items())
    [profiler] = story.world.of_kind("Job", names.PROFILER)
    template = profiler["spec"]["template"]
    assert template["spec"]["schedulerName"] == scheduler
    assert "shop" not in str(template["metadata"])


def guarded_by(story: Story, gradients: dict[str, Any] | None = None, **fields: Any) -> None:
    """Let the workers report what their guards of narrow types found, and wait until that may be recorded."""
    of_gradients = None if gradients is None else GuardRecord.model_validate(gradients)
    progress = builders.progress(guard=GuardRecord.model_validate(fields), gradient_guard=of_gradients)
    story.world.publish("job-report", {"progress.json": progress.to_json().encode()})
    story.later(31)


def test_narrow_types_that_a_guard_suspends_are_shown_with_one_event() -> None:
    """The condition has the last change and the limit; a further report of the same suspension is not an event."""
    story = Story().running()
    guarded_by(story, num_checks=1, change_percent=0.01)
    kept = story.condition("NarrowExchange")
    guarded_by(story, state=GuardState.SUSPENDED, since_step=400, num_checks=4, change_percent=0.2, times_suspended=1)
    suspended = story.condition("NarrowExchange")
    guarded_by(story, state=GuardState.SUSPENDED, since_step=400, num_checks=4, change_percent=0.2, checks_suspended=3)

    assert (kept["status"], kept["reason"]) == ("True", "AccuracyKept")
    assert "0.01 % in the last check, at most 0.05 % (checks: 1)" in kept["message"]
    assert (suspended["status"], suspended["reason"]) == ("False", "CompressionSuspended")
    assert suspended["message"].startswith("exchange is exact since step 400")
    assert [event["reason"] for event in story.world.events].count("CompressionSuspended") == 1


def test_each_guard_that_suspends_narrow_types_has_an_event() -> None:
    """That of gradients is announced although pooled embeddings were exact before, and neither is announced twice."""
    story = Story().running()
    embeddings: dict[str, Any] = {
        "state": GuardState.SUSPENDED,
        "since_step": 400,
        "num_checks": 4,
        "change_percent": 0.2,
    }
    gradients = {"state": GuardState.SUSPENDED, "since_step": 40, "num_checks": 3, "change_percent": 100.0}
    guarded_by(story, **embeddings)
    for checks in (4, 5):
        guarded_by(story, gradients, **{**embeddings, "num_checks": checks})

    told = [event["message"] for event in story.world.events if event["reason"] == "CompressionSuspended"]
    assert [message.split("; ")[0] for message in told] == [
        "exchange is exact since step 400",
        "gradients travel whole since step 40",
    ]
    shown = story.condition("NarrowExchange")["message"]
    assert shown.startswith("exchange is exact since step 400; gradients travel whole since step 40; ")


def test_a_guard_that_only_reports_shows_changed_accuracy() -> None:
    """Pooled embeddings travel on in narrow types, and the condition does not call the accuracy kept."""
    story = Story().running()
    guarded_by(story, num_checks=4, change_percent=0.2, exceeded_in_a_row=4)

    changed = story.condition("NarrowExchange")
    assert (changed["status"], changed["reason"]) == ("True", "AccuracyChanged")
    assert "0.2 % in the last check, at most 0.05 % (checks: 4)" in changed["message"]
