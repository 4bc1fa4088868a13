"""Job files that must be refused: what each breaks, where, and what the API server and this package say of it."""

from dataclasses import dataclass
from typing import Any

import builders

TABLE = {"name": "user", "numEmbeddings": 1000, "embeddingDim": 16}
GPUS = {"limits": {"nvidia.com/gpu": 8}}
SIZE = "must be a size of 1 byte to 8192Ti, such as 80Gi, 500M or 1073741824"
NUMBER = "must be a number above 0: an integer, or text such as '2.5' or '1e-3'"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenJob:
    """A job that breaks one thing."""

    name: str
    data: dict[str, Any]
    path: str
    """Of the value that is wrong."""
    server: str
    """What the API server says behind the path."""
    package: str
    """What DLRMTrainingJob.from_data says behind the path."""


def broken_rule(name: str, path: str, message: str, found: str = "", **spec: Any) -> BrokenJob:
    """Return a job that breaks a rule, of which both sides say the same words. ``found``: the value, in JSON."""
    value = f" {found}:" if found else ""
    package = f"{message}, found {found.replace(chr(34), chr(39))}" if found else message
    return BrokenJob(
        name=name,
        data=builders.job_data(**spec),
        path=path,
        server=f"Invalid value:{value} {message}",
        package=package,
    )


def broken_schema(name: str, path: str, server: str, package: str, **spec: Any) -> BrokenJob:
    """Return a job that breaks the schema, of which each side says its own words. A part that is None is left out."""
    data = builders.job_data(**spec)
    data["spec"] = {key: value for key, value in data["spec"].items() if value is not None}
    return BrokenJob(name=name, data=data, path=path, server=server, package=package)


def model(*tables: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a model with these tables, or with the usual one."""
    return {"embeddingTables": list(tables or (TABLE,)), **fields}


RULES = (
    broken_rule(
        "no-tables",
        "spec.model",
        "set exactly one of embeddingTables and embeddingTablesFrom",
        model={"batchSizePerDevice": 8},
    ),
    broken_rule(
        "two-sources-of-tables",
        "spec.model",
        "set exactly one of embeddingTables and embeddingTablesFrom",
        model=model(embeddingTablesFrom={"configMapKeyRef": {"name": "tables", "key": "tables.json"}}),
    ),
    broken_rule(
        "cross-network-without-dcn",
        "spec.model",
        "crossNetwork is for the architecture DCNv2 only",
        model=model(crossNetwork={"numLayers": 2}),
    ),
    broken_rule(
        "weights-without-a-kernel",
        "spec.model.embeddingTables[0]",
        "dataType BF16 and INT8 have no training kernel on any device; use FP32 or FP16",
        model=model(TABLE | {"dataType": "INT8"}),
    ),
    broken_rule(
        "plan-only-with-a-plan",
        "spec",
        "launchPolicy PlanOnly makes no plan where planRef brings one; remove one of them",
        launchPolicy="PlanOnly",
        planRef={"name": "mine"},
    ),
    broken_rule(
        "replanning-with-a-plan",
        "spec",
        "failurePolicy.rules: ReplanAndRestart makes no plan where planRef brings one; remove one of them",
        planRef={"name": "mine"},
        failurePolicy={"rules": [{"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [137]}}]},
    ),
    broken_rule(
        "unknown-manager",
        "spec.managedBy",
        "managedBy must be training.neuroshard.dev/operator or kueue.x-k8s.io/multikueue",
        '"me"',
        managedBy="me",
    ),
    broken_rule(
        "pooling-factor-of-words",
        "spec.model.embeddingTables[0].poolingFactor",
        NUMBER,
        '"many"',
        model=model(TABLE | {"poolingFactor": "many"}),
    ),
    broken_rule(
        "pooling-factor-of-zero",
        "spec.model.embeddingTables[0].poolingFactor",
        NUMBER,
        "0",
        model=model(TABLE | {"poolingFactor": 0}),
    ),
    broken_rule(
        "zipf-exponent-below-zero",
        "spec.model.embeddingTables[0].zipfExponent",
        NUMBER,
        '"-1.2"',
        model=model(TABLE | {"zipfExponent": "-1.2"}),
    ),
    broken_rule(
        "memory-without-a-unit-that-exists",
        "spec.planner.maxMemoryPerDevice",
        SIZE,
        '"80GiB"',
        planner={"maxMemoryPerDevice": "80GiB"},
    ),
    broken_rule(
        "no-memory",
        "spec.planner.denseMemoryPerDevice",
        SIZE,
        '"0Gi"',
        planner={"denseMemoryPerDevice": "0Gi"},
    ),
    broken_rule(
        "less-than-a-byte",
        "spec.planner.maxMemoryPerDevice",
        SIZE,
        '"0.0001Ki"',
        planner={"maxMemoryPerDevice": "0.0001Ki"},
    ),
    broken_rule(
        "more-memory-than-can-be-counted",
        "spec.planner.maxMemoryPerDevice",
        SIZE,
        '"99999999Ti"',
        planner={"maxMemoryPerDevice": "99999999Ti"},
    ),
    broken_rule(
        "learning-rate-of-zero",
        "spec.training.denseLearningRate",
        NUMBER,
        '"0.0"',
        training={"denseLearningRate": "0.0"},
    ),
    broken_rule(
        "shared-memory-of-words",
        "spec.trainer.sharedMemory.sizeLimit",
        SIZE,
        '"much"',
        trainer={"sharedMemory": {"sizeLimit": "much"}},
    ),
    broken_rule(
        "never-profiled",
        "spec.profiler",
        "policy Never needs costModelRef, or the deviceType whose bundled cost models are taken",
        profiler={"policy": "Never"},
    ),
    broken_rule(
        "nothing-to-simulate",
        "spec.profiler",
        "backend Simulated needs the deviceType that it simulates",
        profiler={"backend": "Simulated"},
    ),
    broken_rule(
        "budget-beyond-the-deadline",
        "spec.profiler",
        "budgetSeconds must be less than timeoutSeconds, which also covers the start and the fit",
        profiler={"budgetSeconds": 600, "timeoutSeconds": 600},
    ),
    broken_rule(
        "two-places-of-cost-models",
        "spec.profiler.costModelRef",
        "set exactly one of configMapName and claimName",
        profiler={"costModelRef": {"configMapName": "a", "claimName": "b"}},
    ),
    broken_rule(
        "a-path-without-a-volume",
        "spec.profiler.costModelRef",
        "path is a folder of the volume and needs claimName",
        profiler={"costModelRef": {"configMapName": "a", "path": "bundles/h100"}},
    ),
    broken_rule(
        "processes-of-words",
        "spec.trainer.numProcPerNode",
        "must be auto, gpu, cpu or an integer from 1 to 4096",
        '"all"',
        trainer={"numProcPerNode": "all"},
    ),
    broken_rule(
        "no-processes",
        "spec.trainer.numProcPerNode",
        "must be auto, gpu, cpu or an integer from 1 to 4096",
        "0",
        trainer={"numProcPerNode": 0},
    ),
    broken_rule(
        "gpu-processes-without-gpus",
        "spec.trainer",
        "numProcPerNode gpu needs a limit of GPUs in resourcesPerNode, such as nvidia.com/gpu",
        trainer={"numProcPerNode": "gpu"},
    ),
    broken_rule(
        "cpu-processes-without-cpus",
        "spec.trainer",
        "numProcPerNode cpu needs a limit of cpu in resourcesPerNode, of at most 4096",
        trainer={"numProcPerNode": "cpu", "resourcesPerNode": GPUS},
    ),
    broken_rule(
        "more-processes-than-a-node-has-cpus",
        "spec.trainer",
        "numProcPerNode cpu needs a limit of cpu in resourcesPerNode, of at most 4096",
        trainer={"numProcPerNode": "cpu", "resourcesPerNode": {"limits": {"cpu": "5k"}}},
    ),
    broken_rule(
        "more-processes-than-gpus",
        "spec.trainer",
        "numProcPerNode must not be more than the GPUs of resourcesPerNode",
        trainer={"numProcPerNode": 9, "resourcesPerNode": GPUS},
    ),
    broken_rule(
        "two-kinds-of-gpus",
        "spec.trainer.resourcesPerNode",
        "limits must name one kind of GPU",
        trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1}}},
    ),
    broken_rule(
        "half-a-gpu",
        "spec.trainer.resourcesPerNode",
        "limits of GPUs must be whole numbers from 1 to 9999",
        trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": "500m"}}},
    ),
    broken_rule(
        "gpus-with-a-leading-zero",
        "spec.trainer.resourcesPerNode",
        "limits of GPUs must be whole numbers from 1 to 9999",
        trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": "08"}}},
    ),
    broken_rule(
        "a-gpu-resource-without-a-limit",
        "spec.trainer",
        "gpuResource must be one of the limits of resourcesPerNode, a whole number from 1 to 9999",
        trainer={"gpuResource": "example.com/a100", "resourcesPerNode": {"limits": {"cpu": 8}}},
    ),
    broken_rule(
        "half-a-named-gpu",
        "spec.trainer",
        "gpuResource must be one of the limits of resourcesPerNode, a whole number from 1 to 9999",
        trainer={"gpuResource": "example.com/a100", "resourcesPerNode": {"limits": {"example.com/a100": "500m"}}},
    ),
    broken_rule(
        "gpus-beside-the-named-ones",
        "spec.trainer",
        "limits must name no GPUs but those of gpuResource",
        trainer={
            "gpuResource": "example.com/a100",
            "resourcesPerNode": {"limits": {"example.com/a100": 8, "nvidia.com/gpu": 1}},
        },
    ),
    broken_rule(
        "more-processes-than-named-gpus",
        "spec.trainer",
        "numProcPerNode must not be more than the GPUs of resourcesPerNode",
        trainer={
            "gpuResource": "example.com/a100",
            "numProcPerNode": 9,
            "resourcesPerNode": {"limits": {"example.com/a100": 8}},
        },
    ),
    broken_rule(
        "resources-of-words",
        "spec.trainer.resourcesPerNode.requests[cpu]",
        "must be a quantity, such as 8, 500m or 64Gi",
        '"plenty"',
        trainer={"resourcesPerNode": {"requests": {"cpu": "plenty"}}},
    ),
    broken_rule(
        "torchrun-settings-of-ones-own",
        "spec.trainer.env[0]",
        "PET_* variables are torchrun's own settings, which the operator makes; choose another name",
        trainer={"env": [{"name": "PET_NNODES", "value": "7"}]},
    ),
    broken_rule(
        "two-values-of-a-variable",
        "spec.trainer.env[0]",
        "set at most one of value and valueFrom",
        trainer={"env": [{"name": "A", "value": "7", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    ),
    broken_rule(
        "data-without-a-path",
        "spec.data",
        "path is needed for every format but Synthetic and Dataset",
        data={"format": "CriteoTSV"},
    ),
    broken_rule(
        "columns-of-a-text-file",
        "spec.data",
        "labelColumn is for the formats Parquet and NPZ only",
        data={"format": "CriteoTSV", "path": "day_0", "labelColumn": "clicked"},
    ),
    broken_rule(
        "dense-columns-of-an-archive",
        "spec.data",
        "denseColumns is for the format Parquet only",
        data={"format": "NPZ", "path": "part.npz", "denseColumns": ["age"]},
    ),
    broken_rule(
        "dataset-without-a-class",
        "spec.data",
        "dataset names the class of the format Dataset, and is for that format only",
        data={"format": "Dataset"},
    ),
    broken_rule(
        "evaluation-path-of-made-up-samples",
        "spec.data",
        "evaluationPath is for formats of files; Synthetic, MovieLens100K and Dataset have none",
        data={"evaluationPath": "day_23_*"},
    ),
    broken_rule(
        "number-of-real-samples",
        "spec.data",
        "numSamples is for the formats Synthetic and Dataset only; limit real data by training.maxSteps",
        data={"format": "Parquet", "path": "data", "numSamples": 10},
    ),
    broken_rule(
        "target-that-no-model-reaches",
        "spec.training",
        "targetAuc must be below 1",
        training={"targetAuc": 1},
    ),
    broken_rule(
        "half-a-decay",
        "spec.training.learningRateSchedule",
        "decayStartStep and decaySteps need each other",
        training={"learningRateSchedule": {"decaySteps": 5}},
    ),
    broken_rule(
        "decay-within-the-warm-up",
        "spec.training.learningRateSchedule",
        "decayStartStep must not be before the end of the warm-up",
        training={"learningRateSchedule": {"warmupSteps": 9, "decayStartStep": 5, "decaySteps": 5}},
    ),
    broken_rule(
        "failure-rule-for-nothing",
        "spec.failurePolicy.rules[0]",
        "set exactly one of onExitCodes and onPodConditions",
        failurePolicy={"rules": [{"action": "FailJob"}]},
    ),
)
SCHEMA = (
    broken_schema("no-model", "spec.model", "Required value", "is missing", model=None),
    broken_schema(
        "unnamed-table",
        "spec.model.embeddingTables[0].name",
        "Required value",
        "is missing",
        model=model({"numEmbeddings": 10, "embeddingDim": 8}),
    ),
    broken_schema(
        "a-table-twice",
        "spec.model.embeddingTables",
        '[1]: Duplicate value: {"name":"user"}',
        "name 'user' stands twice; remove or rename one",
        model=model(TABLE, TABLE),
    ),
    broken_schema(
        "hostile-table-name",
        "spec.model.embeddingTables[0].name",
        'Invalid value: "../../etc; rm -r": spec.model.embeddingTables[0].name in body should match ',
        "string should match pattern",
        model=model(TABLE | {"name": "../../etc; rm -r"}),
    ),
    broken_schema(
        "width-of-no-kernel",
        "spec.model.embeddingTables[0].embeddingDim",
        "Invalid value: 6: spec.model.embeddingTables[0].embeddingDim in body should be a multiple of 4",
        "must be a multiple of 4 (FBGEMM's kernels read vectors of 4), found 6; pad the table to 8",
        model=model(TABLE | {"embeddingDim": 6}),
    ),
    broken_schema(
        "no-rows",
        "spec.model.embeddingTables[0].numEmbeddings",
        "Invalid value: 0: spec.model.embeddingTables[0].numEmbeddings in body should be greater than or equal to 1",
        "input should be greater than or equal to 1, found 0",
        model=model(TABLE | {"numEmbeddings": 0}),
    ),
    broken_schema(
        "rows-of-words",
        "spec.model.embeddingTables[0].numEmbeddings",
        'Invalid value: "string": spec.model.embeddingTables[0].numEmbeddings in body must be of type integer',
        'input should be a valid integer, found "many"',
        model=model(TABLE | {"numEmbeddings": "many"}),
    ),
    broken_schema(
        "a-bare-fraction",
        "spec.model.embeddingTables[0].poolingFactor",
        'Invalid value: "number": spec.model.embeddingTables[0].poolingFactor in body must be of type integer,string',
        f"{NUMBER}, found 2.5",
        model=model(TABLE | {"poolingFactor": 2.5}),
    ),
    broken_schema(
        "unknown-data-type",
        "spec.model.embeddingTables[0].dataType",
        'Unsupported value: "FP8": supported values: "FP32", "FP16", "BF16", "INT8"',
        "input should be 'FP32', 'FP16', 'BF16' or 'INT8', found \"FP8\"",
        model=model(TABLE | {"dataType": "FP8"}),
    ),
    broken_schema(
        "sequences",
        "spec.model.embeddingTables[0].pooling",
        'Unsupported value: "NONE": supported values: "SUM", "MEAN"',
        "input should be 'SUM' or 'MEAN', found \"NONE\"",
        model=model(TABLE | {"pooling": "NONE"}),
    ),
    broken_schema(
        "an-empty-list-of-tables",
        "spec.model.embeddingTables",
        "Invalid value: 0: spec.model.embeddingTables in body should have at least 1 items",
        "needs at least 1 entries, found 0",
        model={"embeddingTables": []},
    ),
    broken_schema(
        "too-many-tables",
        "spec.model.embeddingTables",
        "Too many: 513: must have at most 512 items",
        "tuple should have at most 512 items after validation, not 513",
        model=model(*(TABLE | {"name": f"table_{index}"} for index in range(513))),
    ),
    broken_schema(
        "too-many-nodes",
        "spec.trainer.numNodes",
        "Invalid value: 1025: spec.trainer.numNodes in body should be less than or equal to 1024",
        "input should be less than or equal to 1024, found 1025",
        trainer={"numNodes": 1025},
    ),
    broken_schema(
        "a-number-as-text",
        "spec.trainer.numNodes",
        'Invalid value: "string": spec.trainer.numNodes in body must be of type integer: "string"',
        'input should be a valid integer, found "2"',
        trainer={"numNodes": "2"},
    ),
    broken_schema(
        "an-image-and-a-command",
        "spec.trainer.image",
        'Invalid value: "trainer; rm": spec.trainer.image in body should match',
        "string should match pattern",
        trainer={"image": "trainer; rm"},
    ),
    broken_schema(
        "a-variable-twice",
        "spec.trainer.env",
        '[1]: Duplicate value: {"name":"A"}',
        "name 'A' stands twice; remove or rename one",
        trainer={"env": [{"name": "A"}, {"name": "A"}]},
    ),
    broken_schema(
        "a-variable-with-its-value",
        "spec.trainer.env[0].name",
        'Invalid value: "A=B": spec.trainer.env[0].name in body should match',
        "string should match pattern",
        trainer={"env": [{"name": "A=B"}]},
    ),
    broken_schema(
        "an-endless-argument",
        "spec.trainer.args[0]",
        "Too long: may not be more than 8192 bytes",
        "string should have at most 8192 characters",
        trainer={"args": ["x" * 8193]},
    ),
    broken_schema(
        "a-privileged-port",
        "spec.rendezvous.port",
        "Invalid value: 80: spec.rendezvous.port in body should be greater than or equal to 1024",
        "input should be greater than or equal to 1024, found 80",
        rendezvous={"port": 80},
    ),
    broken_schema(
        "a-relative-mount",
        "spec.checkpoint.mountPath",
        'Invalid value: "checkpoints": spec.checkpoint.mountPath in body should match',
        "string should match pattern",
        checkpoint={"mountPath": "checkpoints"},
    ),
    broken_schema(
        "an-exit-code-twice",
        "spec.failurePolicy.rules[0].onExitCodes.values",
        "[1]: Duplicate value: 137",
        "137 stands twice; remove or rename one",
        failurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137, 137]}}]},
    ),
    broken_schema(
        "a-success-as-failure",
        "spec.failurePolicy.rules[0].onExitCodes.values[0]",
        "Invalid value: 0: spec.failurePolicy.rules[0].onExitCodes.values[0] in body should be greater than",
        "input should be greater than or equal to 1, found 0",
        failurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]},
    ),
    broken_schema(
        "gone-before-it-ended",
        "spec.runPolicy.ttlSecondsAfterFinished",
        "Invalid value: -1: spec.runPolicy.ttlSecondsAfterFinished in body should be greater than or equal to 0",
        "input should be greater than or equal to 0, found -1",
        runPolicy={"ttlSecondsAfterFinished": -1},
    ),
    broken_schema(
        "unknown-launch-policy",
        "spec.launchPolicy",
        'Unsupported value: "Now": supported values: "Auto", "PlanOnly", "Manual"',
        "input should be 'Auto', 'PlanOnly' or 'Manual', found \"Now\"",
        launchPolicy="Now",
    ),
    broken_schema(
        "suspended-by-words",
        "spec.suspend",
        'Invalid value: "string": spec.suspend in body must be of type boolean: "string"',
        'input should be a valid boolean, found "yes"',
        suspend="yes",
    ),
    broken_schema(
        "a-name-of-no-config-map",
        "spec.planRef.name",
        'Invalid value: "My_Plan": spec.planRef.name in body should match',
        "string should match pattern",
        planRef={"name": "My_Plan"},
    ),
    broken_schema(
        "a-key-of-no-config-map",
        "spec.planRef.key",
        'Invalid value: "a/b": spec.planRef.key in body should match',
        "string should match pattern",
        planRef={"name": "plan", "key": "a/b"},
    ),
)
"""Broken against the schema; of long messages the beginning is given."""

NAMES = (
    ("too-long", "a" * 45, "metadata.name must have at most 44 characters"),
    ("digit-first", "1st", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
    ("dotted", "a.b", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
    ("upper-case", "Job", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
    (
        "template",
        "$(HOSTNAME)",
        "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter",
    ),
    ("path", "../job", "metadata.name must be lower-case letters, digits and hyphens, and begin with a letter"),
)
"""Names of jobs, with what is said of them."""

UNKNOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("in-the-spec", {"planer": {}}, "spec.planer"),
    ("in-a-table", {"model": model(TABLE | {"rows": 7})}, "spec.model.embeddingTables[0].rows"),
    ("in-snake-case", {"trainer": {"num_nodes": 2}}, "spec.trainer.num_nodes"),
)
"""Fields that do not exist, by the path that both sides name."""
