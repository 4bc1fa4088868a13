"""Fields that a job had before release 0.1.0: each has a new place, or is gone because the product has the number."""

from collections.abc import Iterator, Mapping
from typing import Final

EARLIER_FIELDS: Final[Mapping[str, str]] = {
    "spec.profiler.numProcs": "gone: the processes of one node of the trainer measure the all-to-all",
    "spec.profiler.corrections": "spec.experimental.profiler.correctBySteps",
    "spec.profiler.correctBySteps": "spec.experimental.profiler.correctBySteps",
    "spec.planner.maxShardsPerTable": "gone: the search splits a table only where that shortens the step",
    "spec.planner.minShardWidth": "gone: the cost models know what narrow shards cost",
    "spec.planner.denseMemoryPerDevice": "spec.experimental.planner.denseMemoryPerDevice",
    "spec.planner.reservedMemoryPercent": "spec.planner.maxMemoryPerDevice",
    "spec.planner.reservedMemoryPerDevice": "spec.planner.maxMemoryPerDevice",
    "spec.training.communication.powerSgd": "gone: torch has PowerSGD, as a hook for a trainer of your own",
    "spec.training.communication.leastGainPercent": "gone: a type must save 2 %, or the error of the cost models",
    "spec.planner.seed": "spec.experimental.planner.seed",
    "spec.planner.workBudget": "spec.experimental.planner.workBudget",
    "spec.planner.maxShardWidth": "spec.experimental.planner.maxShardWidth",
    "spec.planner.shardingGroups.syncEverySteps": "spec.experimental.planner.syncEverySteps",
    "spec.profiler.image": "spec.experimental.profiler.image",
    "spec.profiler.resources": "spec.experimental.profiler.resources",
    "spec.profiler.podMetadata": "spec.experimental.profiler.podMetadata",
    "spec.profiler.timeoutSeconds": "spec.experimental.profiler.timeoutSeconds",
    "spec.profiler.backoffLimit": "spec.experimental.profiler.backoffLimit",
    "spec.planner.image": "spec.experimental.planner.image",
    "spec.planner.resources": "spec.experimental.planner.resources",
    "spec.planner.podMetadata": "spec.experimental.planner.podMetadata",
    "spec.planner.timeoutSeconds": "spec.experimental.planner.timeoutSeconds",
    "spec.planner.backoffLimit": "spec.experimental.planner.backoffLimit",
    "spec.rendezvous": "spec.experimental.rendezvous",
    "spec.training.denseParallelism.group": "spec.experimental.denseParallelism.group",
    "spec.training.denseParallelism.activationCheckpointing": "spec.experimental.denseParallelism"
    ".activationCheckpointing",
    "spec.training.denseParallelism.operatorSplitting": "spec.experimental.denseParallelism.operatorSplitting",
    "spec.training.denseParallelism.units": "spec.experimental.denseParallelism.units",
    "spec.training.communication.embeddings": "spec.experimental.communication.embeddings",
    "spec.training.communication.dense": "spec.experimental.communication.dense",
    "spec.training.communication.threshold": "spec.experimental.communication.threshold",
    "spec.training.communication.guard": "spec.experimental.communication.guard",
    "spec.data.syntheticSessions": "spec.experimental.data.syntheticSessions",
    "spec.data.sessionRun": "spec.experimental.data.sessionRun",
    "spec.data.readerProcesses": "spec.experimental.data.readerProcesses",
    "spec.data.evaluationSamples": "spec.experimental.data.evaluationSamples",
    "spec.training.pipeline": "spec.experimental.pipeline",
    "spec.replanning.avoidSlowNodes": "spec.experimental.avoidSlowNodes",
    "spec.runPolicy.schedulingPolicy": "spec.podTemplate.spec.priorityClassName",
    "spec.model.wukong.numCompressed": "gone: a layer makes as many combinations as interactions",
    "spec.data.drift": "spec.experimental.syntheticDrift",
    "spec.training.watchDrift": "spec.experimental.watchDrift",
    "spec.checkpoint.resumePolicy": "spec.experimental.checkpoint.resumePolicy",
    "spec.checkpoint.inBackground": "spec.experimental.checkpoint.inBackground",
    "spec.data.mountPath": "gone: pods mount the volume of the data at /data",
    "spec.data.persistentVolumeClaim.subPath": "gone: spec.data.path names the folder",
    "spec.checkpoint.mountPath": "gone: pods mount the volume of the checkpoints at /checkpoints",
    "spec.checkpoint.persistentVolumeClaim.subPath": "gone: spec.checkpoint.folder names the folder",
    "spec.replanning.minGainPercent": "gone: a restart must be expected to gain 5 % of a step, and twice its price",
    "spec.replanning.cooldownSeconds": "gone: restarts for a plan are 30 minutes apart, 60 after a miss",
    "spec.failurePolicy.resetAfterSeconds": "gone: restarts count no longer once the workers ran for an hour",
    "spec.training.reportEverySteps": "spec.training.logEverySteps",
    "spec.trainer.sharedMemory": "gone: workers always have /dev/shm, within the memory limit of their container",
    "spec.trainer.imagePullPolicy": "gone: podTemplate.spec.containers sets it for the container trainer",
}
"""The earlier path of a field, and its present one, or ``gone: `` and the reason."""
_GONE = "gone: "


def earlier_fields(data: Mapping[str, object]) -> dict[str, str]:
    """Return the earlier fields that a job sets as plain data, each with a sentence about its present place."""
    return {path: sentence(path) for path in EARLIER_FIELDS if _has(data, path.split("."))}


def sentence(path: str) -> str:
    """Return the sentence about an earlier field, its path first."""
    now = EARLIER_FIELDS[path]
    if now.startswith(_GONE):
        return f"{path}: is gone, since {now.removeprefix(_GONE)}; hint: remove it"
    return f"{path}: is an earlier field; hint: set {now} instead"


def without_echoes(problems: list[str], earlier: Mapping[str, str]) -> Iterator[str]:
    """Give the problems that are not about an earlier field, which a schema calls unknown."""
    known = tuple(f"{path}: " for path in earlier)
    return (problem for problem in problems if not problem.startswith(known))


def _has(data: object, path: list[str]) -> bool:
    """Return whether plain data has a value at a path."""
    for part in path:
        if not isinstance(data, Mapping) or part not in data:
            return False
        data = data[part]
    return True
