"""The Kubernetes Job of the workers and its pods: containers, probes, volumes, security, and the pod template."""

from itertools import pairwise
from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.children.pods import KEEPING_SIGTERM
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
    ("spec", "are_lost"),
    [
        ({"checkpoint": {}}, True),
        ({"checkpoint": {"persistentVolumeClaim": {"claimName": "volume"}}}, False),
        ({"checkpoint": {}, "podTemplate": {"spec": {"volumes": [{"name": "checkpoints", "nfs": {}}]}}}, False),
        ({"checkpoint": {}, "trainer": {**TWO_NODES, "command": ["train"]}}, False),
    ],
    ids=["none", "a claim", "of the pod template", "a trainer of one's own"],
)
def test_workers_know_that_their_checkpoints_die_with_them(spec: dict[str, Any], *, are_lost: bool) -> None:
    """They then write none for the price of a restart, which would begin from the start."""
    container = trainer_container(Story(**spec).planned())

    assert ("NEUROSHARD_CHECKPOINTS_LOST" in environment(container)) is are_lost


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
        pytest.param({}, "/checkpoints/job", id="the job's name"),
        pytest.param({"checkpoint": {"folder": "shop/v2"}}, "/checkpoints/shop/v2", id="folder"),
        pytest.param({"checkpoint": {"folder": "."}}, "/checkpoints", id="the volume itself"),
        pytest.param({"trainer": {"command": ["torchrun", "x"]}}, "/checkpoints", id="own trainer"),
        pytest.param({"trainer": {"command": ["x"]}, "checkpoint": {"folder": "a"}}, "/checkpoints/a", id="own folder"),
    ],
)
def test_jobs_on_one_volume_have_folders_of_their_own(spec: dict[str, Any], expected: str) -> None:
    """They would go on from each other's checkpoints, and delete them."""
    container = trainer_container(Story(**spec).planned())

    assert environment(container)["NEUROSHARD_RUN_DIR"] == expected
    assert "/checkpoints" in [each["mountPath"] for each in container["volumeMounts"]]


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
