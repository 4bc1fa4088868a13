"""Builders of documents: they supply everything that does not matter to a test."""

import json
from collections.abc import Sequence
from typing import Any

from neuroshard_api.documents.bundle import BundleManifest, ErrorReport, Network, Range
from neuroshard_api.documents.dense_profile import DenseOperator, DenseProfile, DenseUnit, features_sha256
from neuroshard_api.documents.document import Document, validated
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import (
    BundleReference,
    DeviceCost,
    DeviceMemory,
    PlanCost,
    SearchStatistics,
    ServedTables,
    Shard,
    TablePlacement,
)
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.records import ComputeSample, ProfileRecord
from neuroshard_api.documents.request import PlanRequest, SearchSettings
from neuroshard_api.documents.session_clustering import (
    ClusteredColumn,
    ClusteredWindow,
    ClusteringRequest,
    LogFile,
    SessionClustering,
)
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.documents.topology import DeviceType, HostLink, HostMemory, Link, Topology
from neuroshard_api.job.status import Condition, Status
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_api.sharding.kinds import ShardingType

GIB = 2**30
GB_PER_SECOND = 1e9
QUICK = SearchSettings(work_budget=3000)
"""A tenth of the search that small sets have by default: for tests that judge no plan's quality."""


def data_with(document: Document, path: str, value: object) -> dict[str, Any]:
    """Return a document as plain data, the value at a path such as ``tables.0.name`` replaced."""
    data: dict[str, Any] = json.loads(document.to_json())
    part: Any = data
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in parents:
        part = part[key]
    part[last] = value
    return data


def table(name: str = "user", **fields: Any) -> Table:
    """Return a table of a million rows, 64 columns and one lookup per sample, but for the given fields."""
    return Table(**{"name": name, "num_embeddings": 1_000_000, "embedding_dim": 64, **fields})


def tables(count: int, **fields: Any) -> tuple[Table, ...]:
    """Return ``count`` equal tables named t0, t1, ..."""
    return tuple(table(f"t{index}", **fields) for index in range(count))


def table_set(*members: Table, **fields: Any) -> TableSet:
    """Return a set of these tables, or of four equal ones if none are given."""
    return TableSet(**{"name": "test set", "tables": members or tables(4), **fields})


def device_type(**fields: Any) -> DeviceType:
    """Return a device with round numbers of an H100's order, but for the given fields."""
    defaults = {
        "name": "test-80gb",
        "product": "Test Device 80GB",
        "memory_bytes": 80 * GIB,
        "memory_bandwidth_bytes_per_second": 3000 * GB_PER_SECOND,
        "cache_bytes": 50 * 2**20,
        "cache_bandwidth_bytes_per_second": 6000 * GB_PER_SECOND,
        "num_multiprocessors": 128,
        "clock_hz": 1.8e9,
        "source": "made up for tests",
    }
    return DeviceType(**{**defaults, **fields})


def topology(num_devices: int = 4, *, num_nodes: int = 1, memory_bytes: int = 80 * GIB, **fields: Any) -> Topology:
    """Return ``num_devices`` devices spread over ``num_nodes`` nodes: 400 GB/s inside a node, 50 GB/s between nodes."""
    devices_per_node, rest = divmod(num_devices, num_nodes)
    assert not rest, f"{num_devices} devices do not fill {num_nodes} equal nodes"
    defaults = {
        "num_nodes": num_nodes,
        "devices_per_node": devices_per_node,
        "device": device_type(memory_bytes=memory_bytes),
        "intra_node": Link(bandwidth_bytes_per_second=400 * GB_PER_SECOND, latency_seconds=10e-6),
        "inter_node": Link(bandwidth_bytes_per_second=50 * GB_PER_SECOND, latency_seconds=20e-6),
    }
    return Topology(**{**defaults, **fields})


def host_memory(bytes_per_node: int = 2**40, *, gb_per_second: float = 60.0) -> HostMemory:
    """Return a terabyte per node for tables, behind links of equal rates in both directions."""
    rate = gb_per_second * GB_PER_SECOND
    link = HostLink(to_device_bytes_per_second=rate, from_device_bytes_per_second=rate)
    return HostMemory(bytes_per_node=bytes_per_node, link=link)


def request(*members: Table, num_devices: int = 4, **fields: Any) -> PlanRequest:
    """Return a quickly searched request for these tables (or four equal ones) on ``num_devices`` devices of a node."""
    defaults = {"tables": table_set(*members), "topology": topology(num_devices), "search": QUICK}
    return PlanRequest(**{**defaults, **fields})


def error_report(**fields: Any) -> ErrorReport:
    """Return a small hold-out error: 3 % on a thousand samples."""
    return ErrorReport(**{"num_samples": 1000, "mse_ms2": 0.01, "mape": 0.03, "kendall_tau": 0.97, **fields})


def network(**fields: Any) -> Network:
    """Return the description of a small network that looks at a shard's width."""
    defaults = {
        "name": "compute",
        "features": ("num_columns",),
        "hidden": (16,),
        "validity": {"num_columns": Range(low=4, high=512)},
        "hold_out": error_report(),
    }
    return Network(**{**defaults, **fields})


def bundle_manifest(**fields: Any) -> BundleManifest:
    """Return the manifest of a simulated bundle for the test device; it belongs to no weight file."""
    names = ("compute", "forward_communication", "backward_communication")
    defaults = {
        "name": "test bundle",
        "source": "simulated:test-80gb",
        "device": device_type(),
        "feature_version": 1,
        "networks": tuple(network(name=name) for name in names),
        "weights_sha256": "0" * 64,
    }
    return BundleManifest(**{**defaults, **fields})


def plan(answered: PlanRequest | None = None, **fields: Any) -> Plan:
    """Return a plan that gives whole tables to the devices in turn, with made-up costs and memory."""
    answered = answered or request()
    devices, pool = range(answered.topology.num_devices), answered.servers
    far = () if pool is None else pool.tables
    near = [member for member in answered.tables.tables if member.name not in far]
    served = [member for member in answered.tables.tables if member.name in far]
    source = "simulated:test-80gb"
    defaults = {
        "algorithm": answered.algorithm,
        "bundle": BundleReference(
            name="test bundle", source=source, weights_sha256="0" * 64, compute_mape=0.03, communication_mape=0.02
        ),
        "predicted": PlanCost(total_ms=5.0, source=source, devices=tuple(device_cost() for _ in devices)),
        "lower_bound_ms": 4.0,
        "gap": 0.25,
        "tables": whole_tables(near, len(devices)),
        "servers": None
        if pool is None or not served
        else ServedTables(tables=whole_tables(served, pool.num_processes)),
        "memory": tuple(device_memory() for _ in devices),
        "search": SearchStatistics(evaluations=10, placements=1, levels=0, improvements=0, budget_exhausted=False),
        "request": answered,
    }
    return Plan(**{**defaults, **fields})


def whole_tables(members: Sequence[Table], num_devices: int) -> tuple[TablePlacement, ...]:
    """Return placements of whole tables on devices in turn."""
    return tuple(
        TablePlacement(
            name=member.name,
            sharding_type=ShardingType.TABLE_WISE,
            shards=(
                Shard(
                    device=position % num_devices,
                    num_rows=member.num_embeddings,
                    num_columns=member.embedding_dim,
                ),
            ),
        )
        for position, member in enumerate(members)
    )


def device_cost(**fields: Any) -> DeviceCost:
    """Return a device's cost with one millisecond in each of the five terms."""
    defaults = {
        "forward_compute_ms": 1.0,
        "backward_compute_ms": 1.0,
        "wait_ms": 1.0,
        "forward_communication_ms": 1.0,
        "backward_communication_ms": 1.0,
        "embedding_dim_sum": 64,
    }
    return DeviceCost(**{**defaults, **fields})


def device_memory(**fields: Any) -> DeviceMemory:
    """Return a device's ledger: 10 GiB of weights on 80 GiB."""
    defaults = {
        "weights_bytes": 10 * GIB,
        "optimizer_state_bytes": GIB,
        "activation_bytes": GIB,
        "input_bytes": GIB,
        "dense_bytes": GIB,
        "reserve_bytes": 8 * GIB,
        "capacity_bytes": 80 * GIB,
    }
    return DeviceMemory(**{**defaults, **fields})


def dense_profile(*members: Table, **fields: Any) -> DenseProfile:
    """Return the dense part of a request's model, counted: 2 GiB, half of it activations."""
    return DenseProfile(
        **{
            "batch_size_per_device": 8192,
            "features_sha256": features_sha256(request(*members).tables.tables),
            "optimizer": "Adam",
            "torch_version": "2.14.1",
            "input_bytes": 4 * 13 * 8192,
            "weights_bytes": GIB // 4,
            "gradient_bytes": GIB // 4,
            "optimizer_state_bytes": GIB // 2,
            "working_bytes": GIB,
            "units": (
                DenseUnit(
                    module="over_arch",
                    num_parameters=GIB // 16,
                    forward_flops=2**40,
                    backward_flops=2**41,
                    activation_bytes=GIB // 2,
                    input_bytes=2**20,
                    output_bytes=2**20,
                    transient_bytes=2**21,
                ),
            ),
            **fields,
        }
    )


def dense_operators(num_parameters: int, *modules: str) -> tuple[DenseOperator, ...]:
    """Return equal operators of one tensor each, without activations, that have the parameters and some work."""
    return tuple(
        DenseOperator(
            module=module,
            num_parameters=num_parameters,
            largest_tensor_parameters=num_parameters,
            forward_flops=2**30,
            backward_flops=2**31,
            forward_bytes=0,
            backward_bytes=0,
            transient_bytes=0,
            left_bytes=0,
        )
        for module in modules
    )


def profile_record(**fields: Any) -> ProfileRecord:
    """Return a simulated measurement of one table's kernel."""
    sample = ComputeSample(tables=tables(1), batch_size=65536, optimizer=Optimizer.SGD)
    defaults = {"source": "simulated:test-80gb", "compute": sample, "forward_ms": 0.5, "backward_ms": 1.0}
    return ProfileRecord(**{**defaults, **fields})


def rank_times(rank: int = 0, **fields: Any) -> RankTimes:
    """Return a rank's times with one millisecond in each part of a step on all lists."""
    timed = {
        name for name, field in RankTimes.model_fields.items() if name.endswith("_ms") and field.default is not None
    }
    parts = timed - {"step_ms", "expansion_ms"}
    return RankTimes(**{"rank": rank, "step_ms": float(len(parts)), **dict.fromkeys(parts, 1.0), **fields})


def step_report(**fields: Any) -> StepReport:
    """Return the report of two simulated ranks over a hundred steps."""
    defaults = {
        "source": "simulated:test-80gb",
        "plan_sha256": "0" * 64,
        "first_step": 0,
        "num_steps": 100,
        "ranks": (rank_times(0), rank_times(1)),
    }
    return StepReport(**{**defaults, **fields})


def hardware(**fields: Any) -> Hardware:
    """Return a simulated node of four devices."""
    devices = topology()
    defaults = {
        "fingerprint": "0" * 64,
        "source": "simulated:test-80gb",
        "device": devices.device,
        "intra_node": devices.intra_node,
        "inter_node": devices.inter_node,
        "devices_per_node": 4,
    }
    return Hardware(**{**defaults, **fields})


def progress(**fields: Any) -> TrainingProgress:
    """Return a run halfway through a thousand steps."""
    return TrainingProgress(**{"step": 500, "num_steps": 1000, "metrics": {"loss": 0.5}, **fields})


def session_clustering(**fields: Any) -> SessionClustering:
    """Return the report of a log of one file and one window, but for the given fields."""
    request = ClusteringRequest(
        files=(LogFile(path="/data/log.parquet", size_bytes=1000, modified_ns=0),),
        session_column="session",
        time_column="time",
        window_width=100,
        row_group_rows=1000,
    )
    window = ClusteredWindow(file="window-000000.parquet", start=0, num_samples=8, num_sessions=2)
    columns = (ClusteredColumn(name="history", bytes_before=800, bytes_after=400),)
    return SessionClustering(**{"request": request, "windows": (window,), "columns": columns, **fields})


def job_data(name: str = "job", **spec: Any) -> dict[str, Any]:
    """Return a job of two tables as plain data, with these parts of its spec."""
    tables = [{"name": each, "numEmbeddings": 1000, "embeddingDim": 16} for each in ("user", "item")]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"model": {"embeddingTables": tables}, **spec},
    }


def job(name: str = "job", **spec: Any) -> DLRMTrainingJob:
    """Return a job of two tables with these parts of its spec."""
    return DLRMTrainingJob.from_data(job_data(name, **spec))


def condition(kind: str = "Planned", **fields: Any) -> Condition:
    """Return a condition that holds."""
    defaults = {
        "type": kind,
        "status": "True",
        "reason": "PlanWritten",
        "message": "2 tables",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    return validated(Condition, defaults | fields, where="condition")


def status(**fields: Any) -> Status:
    """Return the status of a running job, every field of it given."""
    time = "2026-01-02T03:04:05Z"
    cost = {
        "totalMicroseconds": 1500,
        "computeMicroseconds": 900,
        "forwardCommunicationMicroseconds": 350,
        "backwardCommunicationMicroseconds": 250,
        "expansionMicroseconds": 100,
        "serverHiddenMicroseconds": 400,
        "denseMicroseconds": 2000,
        "source": "simulated:test-80gb",
        "duplicationFactors": [{"group": "user", "factor": "7.92"}],
    }
    cost["stepMicroseconds"] = 3900
    measured = cost | {
        "totalMicroseconds": 1650,
        "stepMicroseconds": 4000,
        "hostBoundParts": ["Dense"],
        "peerWaitMicroseconds": 300,
        "processorWaitPercent": 4,
        "steps": 100,
        "lastUpdatedTime": time,
    }
    running = condition("Running", observedGeneration=1).model_dump(mode="json")
    stage = {
        "name": "Planning",
        "state": "Succeeded",
        "attempts": 1,
        "startTime": time,
        "completionTime": time,
        "jobName": "job-planner-1",
        "message": "2 tables on 2 devices",
    }
    defaults = {
        "observedGeneration": 1,
        "stage": "Running",
        "reason": "AllWorkersReady",
        "message": "2 of 2 workers are ready",
        "startTime": time,
        "completionTime": time,
        "restarts": 2,
        "restartsCountTowardsMax": 1,
        "nextStartTime": time,
        "replans": 1,
        "replansInputsHash": "a" * 64,
        "tableChanges": 1,
        "conditions": [running],
        "warnings": [{"reason": "OtherDevice", "message": "the workers run on another device", "time": time}],
        "stages": [stage],
        "workers": {"desired": 2, "active": 2, "ready": 2, "succeeded": 0, "failed": 0, "selector": "job=a"},
        "servers": {"desired": 1, "ready": 1},
        "hardware": {
            "gpuProduct": "NVIDIA-H100-80GB-HBM3",
            "gpuProductLabel": "nvidia.com/gpu.product",
            "gpusPerNode": 8,
            "gpuMemoryMiB": 81559,
            "nodeMemoryMiB": 2000000,
            "driverVersion": "580.65.06",
            "networkNodes": 2,
            "fingerprint": "0" * 64,
        },
        "profile": {
            "configMapRef": {"name": "profile-0", "key": "a"},
            "cached": True,
            "source": "measured:h100-80gb",
            "correctedBy": "corrected-0",
            "correctedErrorPercent": 6,
        },
        "correction": {
            "planHash": "0" * 64,
            "configMapRef": {"name": "corrected-1", "key": "corrected.json"},
            "errorPercent": 5,
            "message": "corrected by 100 steps; their error is 5 %",
        },
        "plan": {
            "configMapRef": {"name": "job-plan-0", "key": "plan.json"},
            "hash": "0" * 64,
            "inputsHash": "1" * 64,
            "algorithm": "neuroshard",
            "worldSize": 2,
        },
        "batch": {"samplesPerDevice": 4096, "embeddingLearningRate": "0.01", "denseLearningRate": "0.0005"},
        "cost": {
            "predicted": {**cost, "maxDeviceMemoryMiB": 4096},
            "baseline": {"algorithm": "size_greedy", "totalMicroseconds": 2000, "stepMicroseconds": 4400},
            "levers": [
                {
                    "name": "batch_size",
                    "text": "2,048 samples per device",
                    "totalMicroseconds": 2500,
                    "numSamples": 4096,
                    "savedPercent": 17,
                    "field": "spec.model.batchSizePerDevice: 2048",
                }
            ],
            "measured": measured,
            "errorPercent": 10,
        },
        "trainerStatus": {
            "progressPercentage": 40,
            "estimatedRemainingSeconds": 60,
            "metrics": [{"name": "auc", "value": "0.79"}, {"name": "normalized_entropy", "value": "0.83"}],
            "bestVariant": "fast",
            "lastUpdatedTime": time,
        },
        "checkpoint": {"path": "/checkpoints/step-100", "step": 100, "time": time},
        "elastic": {
            "numNodes": 2,
            "reason": "NodesLost",
            "message": "2 of at most 4 nodes: open nodes take 2 workers",
            "startTime": time,
            "attempt": 1,
            "resizes": 1,
            "leastNodes": 2,
            "missed": 1,
            "growth": {"numNodes": 2, "verdict": "NoNodes", "message": "open nodes take 2 workers", "time": time},
        },
        "replanning": {
            "replans": 1,
            "accepted": 1,
            "candidates": 2,
            "candidate": {
                "number": 2,
                "sinceStep": 600,
                "startTime": time,
                "planName": "job-plan-2",
                "hash": "sha256:2",
                "predictedMicroseconds": 1000,
                "incumbentMicroseconds": 1600,
                "gainMicroseconds": 300,
                "priceMilliseconds": 43000,
                "verdict": "CoolingDown",
                "message": "the last restart was 60 s ago, less than 1800 s",
            },
            "avoidedNodes": [{"name": "node-2", "time": time}],
            "history": [
                {
                    "hash": "sha256:1",
                    "placementHash": "3" * 64,
                    "reason": "InputsDrifted",
                    "message": "plan job-plan-1 takes the place of job-plan-0",
                    "startTime": time,
                    "fromStep": 50,
                    "predictedMicroseconds": 1500,
                    "measuredMicroseconds": 1650,
                    "predictedWhenMeasuredMicroseconds": 1100,
                    "predictedGainPercent": 31,
                    "candidate": 1,
                    "promisedGainPercent": 20,
                    "measuredGainPercent": 15,
                }
            ],
        },
        "lastFailure": {
            "stage": "Running",
            "podName": "job-worker-0-1",
            "nodeName": "node-2",
            "containerName": "trainer",
            "exitCode": 137,
            "reason": "OOMKilled",
            "message": "killed",
            "time": time,
        },
    }
    return validated(Status, defaults | fields, where="status")
