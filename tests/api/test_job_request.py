"""From a job to the request of its plan, and from a file or ConfigMap key to its tables."""

import gzip
from typing import Any

import pytest
from neuroshard_api.documents.document import UNPACKED_LIMIT_BYTES, DocumentError
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm, Pipeline
from neuroshard_api.documents.tables import DataType, Optimizer, TableSet
from neuroshard_api.job.plan_request import plan_request, tables_of_file
from neuroshard_api.job.sizes import batch_sizes
from neuroshard_api.job.training_job import DLRMTrainingJob
from support import builders

CSV = "name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\n"
JSON = builders.table_set(builders.table("user")).to_json()


def problem_of(name: str, content: bytes) -> str:
    """Return the message with which a file is refused."""
    with pytest.raises(DocumentError) as caught:
        tables_of_file(name, content, where=f"ConfigMap tables, {name}")
    return str(caught.value)


def test_a_request_says_what_the_job_says() -> None:
    """Sizes in bytes, shares as fractions, names of the other documents."""
    job = builders.job(
        planner={
            "algorithm": "DimGreedy",
            "maxMemoryPerDevice": "1.5Gi",
            "shardingTypes": ["TableWise", "RowWise", "DataParallel"],
        },
        experimental={"planner": {"seed": 7, "workBudget": 1000, "denseMemoryPerDevice": 2**30}},
    )
    tables = job.spec.model.inline_tables("job")
    assert tables is not None

    request = plan_request(job, tables=tables, topology=builders.topology(2))

    assert request.tables == tables
    assert request.topology == builders.topology(2)
    assert request.algorithm is Algorithm.DIM_GREEDY
    assert (request.batch_size_per_device, request.optimizer) == (8192, Optimizer.ROWWISE_ADAGRAD)
    assert request.memory.dense_bytes == 2**30
    assert request.constraints.max_memory_bytes_per_device == 3 * 2**29
    assert request.constraints.sharding_types == ("table_wise", "row_wise", "data_parallel")
    assert (request.search.seed, request.search.work_budget) == (7, 1000)


def test_a_batch_that_the_plan_chooses_is_asked_for_by_its_sizes() -> None:
    """The dense part is counted at each of them, and at none besides."""
    data = builders.job_data()
    data["spec"]["model"]["batchSizePerDevice"] = "Auto"
    job = DLRMTrainingJob.from_data(data)
    members = builders.table_set().tables

    found = plan_request(job, tables=builders.table_set(), topology=builders.topology())

    assert found.batch_sizes == batch_sizes(job.spec)
    profiles = [builders.dense_profile(*members, batch_size_per_device=size) for size in found.batch_sizes]
    counted = found.with_dense_of(profiles, where="dense.json")
    assert counted.batch_choices is not None
    assert counted.batch_choices.dense == tuple(profiles)
    with pytest.raises(DocumentError, match=r"dense.json: was counted for 512 samples per device, the request has 768"):
        found.with_dense_of(profiles[:1], where="dense.json")


@pytest.mark.parametrize(("pipeline", "expected"), [("SparseDist", Pipeline.SPARSE_DIST), ("None", Pipeline.NONE)])
def test_the_plan_is_priced_for_the_trainers_pipeline(pipeline: str, expected: Pipeline) -> None:
    """Only without one the step waits for the exchange of indices."""
    job = builders.job(experimental={"pipeline": pipeline})

    assert plan_request(job, tables=builders.table_set(), topology=builders.topology()).pipeline is expected


def test_the_fallback_is_asked_for_by_name() -> None:
    """All else stays as it was."""
    job = builders.job(planner={"fallbackAlgorithm": "SizeGreedy"})
    fallback = job.spec.planner.fallback_algorithm.algorithm
    tables = builders.table_set()

    request = plan_request(job, tables=tables, topology=builders.topology(), algorithm=fallback)

    assert request == plan_request(job, tables=tables, topology=builders.topology()).model_copy(
        update={"algorithm": Algorithm.SIZE_GREEDY}
    )


def test_host_memory_permits_its_kernels_and_comes_with_the_devices_link() -> None:
    """The job says how much of each node, the device type how fast."""
    job = builders.job(planner={"hostMemoryPerNode": "1Ti"})
    request = plan_request(job, tables=builders.table_set(), topology=preset("h100-80gb").topology(num_nodes=2))

    assert request.topology == preset("h100-80gb").topology(num_nodes=2, host_memory_bytes=2**40)
    assert request.constraints.compute_kernels == ("fused", "dense", "fused_uvm", "fused_uvm_caching")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("cpu-2", "the device is 'cpu-2', its processes have all tables in host memory already; hint: leave it out"),
        ("own", "the device is 'own', its link to host memory is not known; hint: leave it out"),
    ],
)
def test_host_memory_that_cannot_be_priced_is_refused(name: str, problem: str) -> None:
    """The sentence names the job's field."""
    job = builders.job(planner={"hostMemoryPerNode": "1Ti"})
    devices = builders.topology(device=builders.device_type(name=name))

    with pytest.raises(DocumentError, match=f"spec.planner.hostMemoryPerNode: {problem}"):
        plan_request(job, tables=builders.table_set(), topology=devices)


@pytest.mark.parametrize(
    ("trainer", "grows"),
    [
        ({}, True),
        ({"env": [{"name": "PYTORCH_ALLOC_CONF", "value": "max_split_size_mb:64"}]}, False),
        ({"env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True,backend:native"}]}, True),
        ({"command": ["python", "train.py"]}, False),
    ],
)
def test_gaps_are_those_of_the_trainers_allocator(trainer: dict[str, object], *, grows: bool) -> None:
    """NeuroShard's trainer lets segments grow unless the job configures them; another trainer must say so."""
    job = builders.job(trainer={"numNodes": 1, "numProcPerNode": 4, **trainer})

    request = plan_request(job, tables=builders.table_set(), topology=builders.topology())

    assert request.memory.expandable_segments is grows


@pytest.mark.parametrize(("precision", "found"), [("TF32", None), ("BF16", "half the time"), ("FP32", "6 to 8 times")])
def test_another_precision_than_that_of_the_price_is_said(precision: str, found: str | None) -> None:
    """The dense part is priced in TF32; on a CPU all are FP32, and a size that is given has no price."""
    job = builders.job(training={"precision": precision})
    devices = builders.topology()
    on_cpu = builders.topology(device=builders.device_type(name="cpu-any"))

    remarks = plan_request(job, tables=builders.table_set(), topology=devices).remarks

    assert (remarks is None) == (found is None)
    assert found is None or found in (remarks or ("",))[0]
    assert plan_request(job, tables=builders.table_set(), topology=on_cpu).remarks is None


def test_no_limits_leave_the_planner_free() -> None:
    """What a job does not say is the planner's default."""
    request = plan_request(builders.job(), tables=builders.table_set(), topology=builders.topology())

    assert request.constraints.max_memory_bytes_per_device is None
    assert (request.memory.dense_bytes, request.memory.reserve_fraction) == (None, None)
    assert builders.job().spec.planner.fallback_algorithm.algorithm is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tables.csv", CSV.encode()),
        ("tables.json", JSON.encode()),
        ("tables.yaml", JSON.encode()),
        ("tables.csv.gz", gzip.compress(CSV.encode())),
        ("tables.json.gz", gzip.compress(JSON.encode())),
    ],
    ids=["csv", "json", "yaml", "compressed-csv", "compressed-json"],
)
def test_tables_are_read_as_their_suffix_says(name: str, content: bytes) -> None:
    """The same forms as on the command line."""
    assert [table.name for table in tables_of_file(name, content, where=name).tables] == ["user"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tables", b"", "is not a readable table set: it has no suffix, expected .csv, .json, .yaml or .yml"),
        ("tables.txt", b"", "the suffix is '.txt', expected"),
        ("tables.csv", b"\xff\xfe", "is not text in UTF-8"),
        ("tables.csv", b"name,rows\n", "line 1, column num_embeddings: is missing"),
        ("tables.json", b"{}", "schema_version: is missing"),
        ("tables.json.gz", b"no gzip", "is not complete gzip data"),
        ("tables.json.gz", gzip.compress(JSON.encode())[:-9], "is not complete gzip data"),
        ("tables.json.gz", gzip.compress(bytes(UNPACKED_LIMIT_BYTES + 1), 1), "is larger than 67,108,864 bytes"),
    ],
    ids=["no-suffix", "text", "binary", "csv", "json", "not-compressed", "cut-off", "bomb"],
)
def test_a_broken_table_file_is_refused(name: str, content: bytes, problem: str) -> None:
    """The message names the ConfigMap and the key."""
    message = problem_of(name, content)

    assert message.startswith(f"ConfigMap tables, {name}: ")
    assert problem in message


SESSIONS = {
    "samplesPerSession": 10,
    "concurrency": 16,
    "groups": [{"features": ["user", "history"], "changeProbability": "0.1"}],
}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"experimental": {"data": {"syntheticSessions": SESSIONS}}}, ("user",)),
        ({"experimental": {"data": {"syntheticSessions": SESSIONS}}, "data": {"deduplication": "Off"}}, None),
        ({}, None),
    ],
    ids=["sessions", "off", "no sessions"],
)
def test_synthetic_sessions_tell_the_groups_and_their_factor(
    spec: dict[str, Any], wanted: tuple[str, ...] | None
) -> None:
    """A table of features that do not repeat together is in no group."""
    job = builders.job(**spec)
    tables = builders.table_set(
        builders.table("user"), builders.table("history"), builders.table("shop", feature_names=("a", "b"))
    )

    request = plan_request(job, tables=tables, topology=builders.topology(1))

    assert request.deduplicate == wanted
    if spec:
        sessions = job.spec.experimental.data.synthetic_sessions
        assert sessions is not None
        factor = sessions.factor(sessions.groups[0], run=8)
        assert [table.duplication_factor for table in request.tables.tables] == [factor, factor, None]
        assert 3 < factor < 6
    else:
        assert request.tables == tables


def test_synthetic_sessions_have_the_repeats_of_their_groups_alone() -> None:
    """What was measured elsewhere does not count, and in stored order sessions take turns: nothing repeats."""
    measured = builders.table("shop", duplication_group="shop", duplication_factor=6.0)
    tables = builders.table_set(builders.table("user"), measured, session_run=8)

    def factors(**data: Any) -> list[float | None]:
        job = builders.job(data=data, experimental={"data": {"syntheticSessions": SESSIONS}})
        found = plan_request(job, tables=tables, topology=builders.topology(1)).tables
        return [table.duplication_factor for table in found.tables]

    first, other = factors()
    assert first is not None
    assert first > 3
    assert other is None
    assert factors(shuffle=False) == [None, None]


def test_dcnv2_multiplies_all_features_by_the_rank_of_its_cross_layers_first() -> None:
    """The request has the rank where repeats may be left out; other models have no such product."""
    sessions = {"data": {"syntheticSessions": SESSIONS}}
    tables = builders.table_set(builders.table("user"), builders.table("history"))

    def columns(model: dict[str, Any], **spec: Any) -> int | None:
        job = builders.job(model={**builders.job_data()["spec"]["model"], **model}, **spec)
        return plan_request(job, tables=tables, topology=builders.topology(1)).joint_product_columns

    crossed = {"architecture": "DCNv2", "crossNetwork": {"lowRankDim": 64}}
    assert columns(crossed, experimental=sessions) == 64
    assert columns(crossed) is None
    assert columns({"architecture": "DLRM"}, experimental=sessions) is None


LOG = {"format": "Parquet", "path": "data"}
SESSIONS_OF_LOG = {**LOG, "sessionColumn": "visit"}
OFF = {**SESSIONS_OF_LOG, "deduplication": "Off"}


@pytest.mark.parametrize(
    ("measured", "spec", "wanted"),
    [
        (8, {"data": SESSIONS_OF_LOG}, ("user",)),
        (8, {"data": OFF}, None),
        (None, {"data": LOG}, None),
        (4, {"data": SESSIONS_OF_LOG}, ()),
        (8, {"data": LOG}, ()),
        (8, {"data": SESSIONS_OF_LOG, "trainer": {"command": ["train"]}}, ()),
        (8, {"data": OFF, "variants": [{"name": "a"}, {"name": "b"}]}, ()),
    ],
    ids=["kept", "off", "no factors", "other runs", "no sessions", "own trainer", "variants"],
)
def test_repeats_are_left_out_of_the_runs_at_which_they_were_measured(
    measured: int | None, spec: dict[str, Any], wanted: tuple[str, ...] | None
) -> None:
    """Unset where they are not wanted, and empty where no setting of repeats would leave them out."""
    table = builders.table("user", duplication_group="user", duplication_factor=None if measured is None else 4.0)
    tables = builders.table_set(table, session_run=measured)

    request = plan_request(builders.job(**spec), tables=tables, topology=builders.topology(1))

    assert request.deduplicate == wanted


@pytest.mark.parametrize(
    ("own", "is_refused"), [(None, False), (Optimizer.ROWWISE_ADAGRAD, False), (Optimizer.ADAM, True)]
)
def test_tables_with_an_optimizer_that_the_trainer_does_not_give_them_are_refused(
    own: Optimizer | None,
    is_refused: bool,  # noqa: FBT001 - the case
) -> None:
    """NeuroShard's trainer has one for all tables; a trainer of the user's own may have several."""
    tables = builders.table_set(builders.table("user", optimizer=own))
    script = builders.job(trainer={"command": ["python", "train.py"]})

    assert plan_request(script, tables=tables, topology=builders.topology()).tables == tables
    if is_refused:
        with pytest.raises(DocumentError, match=r"embeddingOptimizer: is RowWiseAdagrad, and table 'user' has .* adam"):
            plan_request(builders.job(), tables=tables, topology=builders.topology())
    else:
        assert plan_request(builders.job(), tables=tables, topology=builders.topology()).tables == tables


def test_types_that_the_devices_cannot_train_are_a_sentence_about_the_job() -> None:
    """Tables may be in a ConfigMap, so that only the request knows both them and the devices."""
    job = builders.job(model={**builders.job_data()["spec"]["model"], "embeddingOptimizer": "Adam"})
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=2)
    tables = builders.table_set(builders.table("user", data_type=DataType.FP16))

    with pytest.raises(
        DocumentError, match=r"^job: table 'user': FBGEMM's kernel with adam refuses .*; hint: use FP32"
    ):
        plan_request(job, tables=tables, topology=topology)


def test_tables_with_names_that_cannot_be_trained_are_refused() -> None:
    """Before anything is measured; a trainer of your own may have them."""
    tables = builders.table_set(builders.table("user.id"), builders.table("type"), builders.table("user"))
    topology = builders.request(num_devices=1).topology
    own = builders.job(trainer={"command": ["python"]})

    with pytest.raises(DocumentError, match=r"table 'user\.id' cannot be trained(.|\n)*table 'type' cannot be trained"):
        plan_request(builders.job(), tables=tables, topology=topology)
    assert plan_request(own, tables=tables, topology=topology).tables == tables


@pytest.mark.parametrize(
    ("data", "session_run", "found"),
    [
        ({}, None, "the tables have no duplication factors"),
        ({"sessionRun": 4}, 8, "the duplication factors are of runs of 8, sessionRun is 4"),
        ({}, 8, None),
        ({"deduplication": "Off"}, None, None),
        ({"sessionColumn": None, "timeColumn": None}, None, None),
    ],
)
def test_sessions_without_factors_are_a_remark(
    data: dict[str, Any], session_run: int | None, found: str | None
) -> None:
    """With the command that measures them; the plan has it among its warnings."""
    factor = None if session_run is None else 2.0
    tables = TableSet(
        tables=(builders.table("user", duplication_group="user", duplication_factor=factor),), session_run=session_run
    )
    log = {
        "format": "Parquet",
        "path": "clicks",
        "labelColumn": "clicked",
        "sessionColumn": "visit",
        "timeColumn": "at",
    }
    given = {key: value for key, value in (log | data).items() if value is not None}
    run = given.pop("sessionRun", 8)
    job = builders.job(data=given, experimental={"data": {"sessionRun": run}})

    request = plan_request(job, tables=tables, topology=builders.request(num_devices=2).topology)

    if found is None:
        assert request.remarks is None
        return
    (remark,) = request.remarks or ()
    assert remark.startswith(
        f"spec.data.sessionColumn: {found}, so that the plan is for batches with all repeated lists"
    )
    assert "`neuroshard stats clicks --label clicked --session visit --time at --session-run" in remark
