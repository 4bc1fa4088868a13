"""Job files that break a rule between fields, of which the API server and this package say the same words."""

from typing import Any

from support.jobs.broken_jobs import GPUS, NUMBER, SIZE, TABLE, BrokenJob, broken_rule, looked_up, model, too_wide

NO_FEATURE = "no feature of model.embeddingTables may be {}; hint: remove the feature and its table"
SERVERS = {"resources": {"limits": {"memory": "8Gi"}}, "tables": ["user"]}
SERVED = {"pipeline": "None", "embeddingServers": SERVERS}
TWO = [{"name": "a"}, {"name": "b"}]


def with_variants(name: str, problem: str, **spec: Any) -> BrokenJob:
    """Return a job of two variants that do not go with something else."""
    remedy = "hint: remove one of them, or train the variants as jobs (neuroshard sweep)"
    return broken_rule(name, "spec", f"variants: {problem}; {remedy}", **{"variants": TWO, **spec})


def with_chosen_batch(name: str, problem: str, **spec: Any) -> BrokenJob:
    """Return a job whose plan chooses its batch, and that does not go with something else."""
    message = f"model.batchSizePerDevice Auto: {problem}; hint: give a number, such as 8192"
    return broken_rule(name, "spec", message, model=model(batchSizePerDevice="Auto"), **spec)


RULES = (
    broken_rule(
        "variant-named-keys",
        "spec.variants[1]",
        "name is an attribute of torch's ModuleDict, whose keys the variants' names are; hint: another one",
        variants=[{"name": "a"}, {"name": "keys"}],
    ),
    with_variants(
        "variants-of-own-trainer",
        "NeuroShard's trainer trains them, and trainer.command brings another one",
        trainer={"command": ["train"]},
    ),
    with_variants(
        "variants-in-groups",
        "they train as one model on all devices, not in the groups of planner.shardingGroups",
        planner={"shardingGroups": {"sizes": [2]}},
    ),
    with_variants(
        "variants-in-narrow-types",
        "the guard of narrow types watches one model, so that training.communication.policy must be Exact",
        training={"communication": {"policy": "Auto"}},
    ),
    with_variants(
        "variants-of-a-sharded-dense-part",
        "their dense parts are replicated, and training.denseParallelism or experimental.denseParallelism shards them",
        training={"denseParallelism": {"policy": "Shard"}},
    ),
    with_variants(
        "variants-of-sessions",
        "lists that repeat in sessions are not left out of their batches; set data.deduplication: Off",
        data={"format": "Parquet", "path": "log", "labelColumn": "label", "sessionColumn": "visit"},
    ),
    with_variants(
        "variants-of-tables-elsewhere",
        "model.embeddingDim needs the tables in model.embeddingTables, and they are in embeddingTablesFrom",
        variants=[{"name": "a"}, {"name": "b", "model": {"embeddingDim": 8}}],
        model={
            "batchSizePerDevice": 8,
            "embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.json"}},
        },
    ),
    broken_rule(
        "minimum-above-the-nodes",
        "spec",
        "experimental.elastic.minNodes must not be more than trainer.numNodes, which is the maximum",
        trainer={"numNodes": 2},
        experimental={"elastic": {"minNodes": 4}},
    ),
    broken_rule(
        "minimum-that-does-not-divide-a-step",
        "spec",
        "experimental.elastic keeps the samples of a step, which are model.batchSizePerDevice on trainer.numNodes "
        "nodes, and minNodes does not divide them, or leaves a device more than 16,777,216; hint: another minNodes, or "
        "batch PerDevice",
        trainer={"numNodes": 4},
        experimental={"elastic": {"minNodes": 3}},
    ),
    broken_rule(
        "learning-rates-of-a-batch-that-stays",
        "spec.experimental.elastic",
        "scaleLearningRate is for batch PerDevice: with batch Global a step has as many samples on any number of nodes",
        trainer={"numNodes": 2},
        experimental={"elastic": {"minNodes": 1, "scaleLearningRate": "Linear"}},
    ),
    broken_rule(
        "elastic-under-one-plan",
        "spec",
        "experimental.elastic plans for each number of nodes, and the plan of planRef is for one"
        "; hint: remove one of them",
        planRef={"name": "plan", "key": "plan.json"},
        experimental={"elastic": {"minNodes": 1}},
    ),
    with_chosen_batch(
        "chosen-batch-of-another-trainer",
        "NeuroShard's trainer takes the plan's batch and learning rates, and trainer.command brings another one",
        trainer={"command": ["python", "train.py"]},
    ),
    with_chosen_batch(
        "chosen-batch-of-an-uncounted-dense-part",
        "the dense part is counted for each batch, and experimental.planner.denseMemoryPerDevice takes the count's "
        "place",
        experimental={"planner": {"denseMemoryPerDevice": "1Gi"}},
    ),
    with_chosen_batch(
        "chosen-batch-of-an-elastic-job",
        "experimental.elastic keeps the batch of the job over its numbers of nodes",
        experimental={"elastic": {"minNodes": 1}},
    ),
    with_chosen_batch(
        "chosen-batch-next-to-servers",
        "the share of tables on experimental.embeddingServers is chosen for one batch",
        experimental=SERVED,
    ),
    with_chosen_batch(
        "chosen-batch-of-variants",
        "variants train on the same batches, each with learning rates for a known one",
        variants=TWO,
    ),
    broken_rule(
        "batch-of-no-samples",
        "spec.model.batchSizePerDevice",
        "must be a whole number of 1 to 16,777,216, or Auto",
        "0",
        model=model(batchSizePerDevice=0),
    ),
    broken_rule(
        "batch-in-words",
        "spec.model.batchSizePerDevice",
        "must be a whole number of 1 to 16,777,216, or Auto",
        '"many"',
        model=model(batchSizePerDevice="many"),
    ),
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
        "no-source-of-tables",
        "spec.model.embeddingTablesFrom",
        "set exactly one of configMapKeyRef and file",
        model={"embeddingTablesFrom": {}},
    ),
    broken_rule(
        "cross-network-without-dcn",
        "spec.model",
        "crossNetwork is for the architecture DCNv2 only",
        model=model(crossNetwork={"numLayers": 2}),
    ),
    broken_rule(
        "factorization-machines-without-wukong",
        "spec.model",
        "wukong is for the architecture Wukong only",
        model=model(architecture="DCNv2", wukong={"numLayers": 2}),
    ),
    broken_rule(
        "weights-without-a-kernel",
        "spec.model.embeddingTables[0]",
        "dataType BF16 and INT8 have no training kernel on any device; hint: use FP32 or FP16",
        model=model(TABLE | {"dataType": "INT8"}),
    ),
    broken_rule(
        "permitted-types-without-a-kernel",
        "spec.planner",
        "dataTypes BF16 and INT8 have no training kernel on any device; hint: use FP32, FP16, or both",
        planner={"dataTypes": ["FP32", "BF16"]},
    ),
    too_wide(
        "shards-wider-than-the-kernels",
        "experimental.planner.maxShardWidth: FBGEMM's CUDA kernels take at most 2,048 columns; hint: lower it",
        "spec.experimental.planner.maxShardWidth",
        "is 4,096, and FBGEMM's CUDA kernels take at most 2,048 columns; hint: lower it",
        experimental={"planner": {"maxShardWidth": 4096}},
    ),
    too_wide(
        "tables-wider-than-the-kernels-in-one-piece",
        "model.embeddingTables: FBGEMM's CUDA kernels take at most 2,048 columns, and no type of "
        "planner.shardingTypes cuts by columns; hint: add ColumnWise there",
        "spec.model.embeddingTables[0].embeddingDim",
        "is 4,096, FBGEMM's CUDA kernels take at most 2,048 columns, and no type of spec.planner.shardingTypes cuts by "
        "columns; hint: add ColumnWise there",
        model=model(TABLE | {"embeddingDim": 4096}),
        planner={"shardingTypes": ["TableWise", "RowWise"]},
    ),
    broken_rule(
        "plan-only-with-a-plan",
        "spec",
        "launchPolicy PlanOnly makes no plan where planRef brings one; hint: remove one of them",
        launchPolicy="PlanOnly",
        planRef={"name": "mine"},
    ),
    broken_rule(
        "replanning-with-a-plan",
        "spec",
        "failurePolicy.rules: ReplanAndRestart makes no plan where planRef brings one; hint: remove one of them",
        planRef={"name": "mine"},
        failurePolicy={"rules": [{"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [137]}}]},
    ),
    broken_rule(
        "shards-of-what-is-not-counted",
        "spec",
        "training.denseParallelism.policy Shard needs the counted dense part, and "
        "experimental.planner.denseMemoryPerDevice takes "
        "its place; hint: remove one of them",
        experimental={"planner": {"denseMemoryPerDevice": "1Gi"}},
        training={"denseParallelism": {"policy": "Shard"}},
    ),
    broken_rule(
        "checkpoints-of-what-is-split",
        "spec.experimental.denseParallelism",
        "activationCheckpointing Always and operatorSplitting Always exclude each other: a checkpointed unit would "
        "gather each operator once more; hint: set one of them to Auto",
        experimental={"denseParallelism": {"activationCheckpointing": "Always", "operatorSplitting": "Always"}},
    ),
    broken_rule(
        "fixed-types-with-a-choice",
        "spec",
        "training.communication.policy Fixed takes exactly one type in each of embeddings.forward, "
        "embeddings.backward, and dense of experimental.communication; hint: name one in each, or let policy Auto "
        "choose",
        training={"communication": {"policy": "Fixed"}},
        experimental={"communication": {"embeddings": {"forward": ["FP16", "INT8"]}}},
    ),
    broken_rule(
        "most-gradients-kept",
        "spec.experimental.communication.threshold",
        "keepPercent must be at most 50",
        experimental={"communication": {"threshold": {"keepPercent": "60"}}},
    ),
    broken_rule(
        "narrowest-gradients-without-an-end",
        "spec.experimental.communication",
        "embeddings.backward FP8, MX4, TOP32, TOP16, TOP8 need guard.action Exact"
        "; hint: set it, or take FP16, BF16, or INT8",
        experimental={"communication": {"embeddings": {"backward": ["MX4"]}, "guard": {"action": "Report"}}},
    ),
    broken_rule(
        "guard-above-all",
        "spec.experimental.communication",
        "guard.maxEntropyIncreasePercent must be at most 100",
        experimental={"communication": {"guard": {"maxEntropyIncreasePercent": 101}}},
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
        "spec.experimental.planner.denseMemoryPerDevice",
        SIZE,
        '"0Gi"',
        experimental={"planner": {"denseMemoryPerDevice": "0Gi"}},
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
        "memory-without-a-unit",
        "spec.planner.maxMemoryPerDevice",
        SIZE,
        "80",
        planner={"maxMemoryPerDevice": 80},
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
        "spec",
        "profiler.budgetSeconds must be less than experimental.profiler.timeoutSeconds, which also covers the start "
        "and the fit; hint: lower the one, or raise the other",
        profiler={"budgetSeconds": 1800},
    ),
    broken_rule(
        "corrections-of-a-profile-that-is-not-shared",
        "spec",
        "experimental.profiler.correctBySteps is for profiles that jobs share: it needs profiler.policy IfNotPresent "
        "and no profiler.costModelRef",
        profiler={"policy": "Always"},
        experimental={"profiler": {"correctBySteps": True}},
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
        "servers-without-tables",
        "spec.experimental.embeddingServers",
        "embeddingServers holds no table: policy is Never, and tables names none; hint: set policy IfNeeded or Auto, "
        "or name tables",
        experimental={"pipeline": "None", "embeddingServers": {"resources": {"limits": {"memory": "8Gi"}}}},
    ),
    broken_rule(
        "servers-without-a-limit-of-memory",
        "spec.experimental.embeddingServers",
        "embeddingServers needs a limit of memory in resources, which the planner fills with tables",
        experimental={"pipeline": "None", "embeddingServers": {"resources": {"limits": {}}, "tables": ["user"]}},
    ),
    broken_rule(
        "servers-with-requests",
        "spec.experimental.embeddingServers",
        "the limit of memory is what embeddingServers request; hint: leave requests.memory out",
        experimental={
            "pipeline": "None",
            "embeddingServers": {**SERVERS, "resources": {"limits": {"memory": "8Gi"}, "requests": {"memory": "4Gi"}}},
        },
    ),
    broken_rule(
        "servers-with-less-memory-than-a-process",
        "spec.experimental.embeddingServers",
        "embeddingServers needs a limit of memory of more than 1.5 GiB, which a process takes before it has tables, "
        "and of at most 8 PiB",
        experimental={**SERVED, "embeddingServers": {**SERVERS, "resources": {"limits": {"memory": "1536Mi"}}}},
    ),
    broken_rule(
        "servers-with-more-memory-than-any",
        "spec.experimental.embeddingServers",
        "embeddingServers needs a limit of memory of more than 1.5 GiB, which a process takes before it has tables, "
        "and of at most 8 PiB",
        experimental={**SERVED, "embeddingServers": {**SERVERS, "resources": {"limits": {"memory": "9Pi"}}}},
    ),
    broken_rule(
        "servers-in-a-pipeline",
        "spec",
        "experimental.embeddingServers answer one batch after the other; hint: set experimental.pipeline to None",
        experimental={"embeddingServers": SERVERS},
    ),
    broken_rule(
        "servers-of-any-number-of-nodes",
        "spec",
        "experimental.embeddingServers serve one number of nodes, and experimental.elastic changes it; hint: leave one "
        "of them out",
        experimental={**SERVED, "elastic": {"minNodes": 1}},
        trainer={"numNodes": 2},
    ),
    broken_rule(
        "servers-of-another-trainer",
        "spec",
        "experimental.embeddingServers need NeuroShard's own trainer; hint: leave trainer.command out",
        trainer={"command": ["torchrun", "train.py"]},
        experimental=SERVED,
    ),
    broken_rule(
        "servers-that-copy-their-state",
        "spec",
        "experimental.checkpoint.inBackground copies the whole state, for which experimental.embeddingServers have "
        "no memory; hint: leave one of them out",
        experimental={**SERVED, "checkpoint": {"inBackground": True}},
    ),
    broken_rule(
        "servers-of-variants",
        "spec",
        "variants: their tables are on the devices of all, not on experimental.embeddingServers; hint: remove one of "
        "them, or train the variants as jobs (neuroshard sweep)",
        experimental=SERVED,
        variants=[{"name": "base"}, {"name": "other"}],
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
        "PET_* variables are torchrun's own settings, which the operator makes; hint: choose another name",
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
        "labelColumn is for the formats Parquet, CSV and NPZ only",
        data={"format": "CriteoTSV", "path": "day_0", "labelColumn": "clicked"},
    ),
    broken_rule(
        "missing-values-of-an-archive",
        "spec.data",
        "missing is for the formats Parquet and CSV only",
        data={"format": "NPZ", "path": "part.npz", "missing": "Mean"},
    ),
    broken_rule(
        "dense-columns-of-an-archive",
        "spec.data",
        "denseColumns is for the formats Parquet and CSV only",
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
        "drift-of-real-samples",
        "spec",
        "experimental.syntheticDrift is for data of the format Synthetic only",
        data={"format": "Parquet", "path": "data"},
        experimental={"syntheticDrift": [{"atSample": 1, "feature": "a", "zipfExponent": 1}]},
    ),
    broken_rule(
        "drift-of-nothing",
        "spec.experimental.syntheticDrift[0]",
        "set poolingFactorTimes, zipfExponent, or both",
        experimental={"syntheticDrift": [{"atSample": 1, "feature": "a"}]},
    ),
    broken_rule(
        "sessions-of-an-archive",
        "spec.data",
        "sessionColumn is for the formats Parquet and CSV only",
        data={"format": "NPZ", "path": "part.npz", "sessionColumn": "visit"},
    ),
    broken_rule(
        "times-without-sessions",
        "spec.data",
        "timeColumn orders the samples of a session; it needs sessionColumn",
        data={"format": "Parquet", "path": "data", "timeColumn": "at"},
    ),
    broken_rule(
        "constant-lists-without-sessions",
        "spec.data",
        "constantInSession names features that are constant in a session; it needs sessionColumn",
        data={"format": "Parquet", "path": "data", "constantInSession": ["user"]},
    ),
    broken_rule(
        "drawn-sessions-of-real-samples",
        "spec",
        "experimental.data.syntheticSessions is for data of the format Synthetic only",
        data={"format": "Parquet", "path": "data"},
        experimental={
            "data": {"syntheticSessions": {"groups": [{"features": ["user"], "changeProbability": 1}]}},
        },
    ),
    broken_rule(
        "chance-above-one",
        "spec.experimental.data.syntheticSessions.groups[0]",
        "changeProbability must be at most 1",
        experimental={
            "data": {"syntheticSessions": {"groups": [{"features": ["user"], "changeProbability": "1.5"}]}},
        },
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
        "set exactly one of onExitCodes, onPodConditions, and onPodReasons",
        failurePolicy={"rules": [{"action": "FailJob"}]},
    ),
    looked_up(
        "label-as-a-feature",
        "label",
        NO_FEATURE.format("the label (data.labelColumn, or else label)"),
        "the label (the default of spec.data.labelColumn)",
    ),
    looked_up(
        "session-as-a-feature",
        "visit",
        NO_FEATURE.format("data.sessionColumn"),
        "the session (spec.data.sessionColumn)",
        sessionColumn="visit",
    ),
    looked_up(
        "time-as-a-feature",
        "at",
        NO_FEATURE.format("data.timeColumn"),
        "the time (spec.data.timeColumn)",
        sessionColumn="visit",
        timeColumn="at",
    ),
    looked_up(
        "dense-column-as-a-table",
        "price",
        "no table of model.embeddingTables without featureNames may have the name of one of data.denseColumns"
        "; hint: remove the table",
        "a dense feature (spec.data.denseColumns[0])",
        denseColumns=["price"],
    ),
)
