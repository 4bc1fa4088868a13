"""Options that commands had before release 0.1.0, each with what says the same now."""

from collections.abc import Mapping, Sequence
from typing import Final

_OF_REQUESTS: Final[Mapping[str, str]] = {
    "--nodes": "write nodes and devices of each, such as --devices 2x8",
    "--topology": "give the file as --devices",
    "--any-device": "leave it out: cost models of another device are taken, and the plan warns",
}
_OF_PROFILES: Final[Mapping[str, str]] = {
    "--batch-size": "spec.model.batchSizePerDevice",
    "--nodes": "spec.trainer.numNodes",
    "--devices-per-node": "spec.trainer.numProcPerNode",
    "--optimizer": "spec.model.embeddingOptimizer",
    "--backend": "spec.profiler.backend",
    "--device-type": "spec.profiler.deviceType",
    "--procs": "spec.trainer.numProcPerNode",
    "--meet-within": "spec.experimental.profiler.timeoutSeconds",
}
_OF_PLANS: Final[Mapping[str, str]] = dict.fromkeys(
    ("--constraints", "--dense"),
    "plan with it by `neuroshard plan`, and give the plan, which says all that it answers, as TABLES",
)
_IN_FOLDER: Final = "read {} in the folder of --out"
_PAGE: Final = "give --out a file that ends in .html"
_DATA_DIR: Final = "start the command in the folder that has the data"
_CONTEXT: Final[Mapping[str, str]] = {
    "--context": "choose it by `kubectl config use-context NAME`, or name another file in KUBECONFIG"
}
EARLIER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "plan": {
        **_OF_REQUESTS,
        "--algorithm": "write --set spec.planner.algorithm=DimGreedy",
        "--batch-sizes": "give --batch-size several numbers, such as 8192,4096; the plan is for the first",
        "--report": _PAGE,
        "--move-price": "leave it out, or use move_price of neuroshard_dlrm.plan",
    },
    "compare": {
        **_OF_REQUESTS,
        **_OF_PLANS,
        "--algorithms": "leave it out; for one of them use `neuroshard plan`, for some neuroshard_dlrm.compare",
        "--torchrec-seconds": "leave it out: TorchRec's planner has 60 s; neuroshard_dlrm.compare takes another limit",
    },
    "score": {**_OF_REQUESTS, **_OF_PLANS},
    "diff": {"--report": _PAGE},
    "estimate": {
        "--report": _PAGE,
        "--batch-size": "write --set spec.model.batchSizePerDevice=8192",
        "--device-types": "write --device-type, which takes several",
        "--price": "write the price with its type: --device-type h100-80gb=2.99/h",
    },
    **dict.fromkeys(("approve", "logs"), _CONTEXT),
    "status": {**_CONTEXT, "--sweep": "leave out the word --sweep: status takes the name of a sweep"},
    "submit": {**_CONTEXT, "--watch": "`neuroshard status JOB --watch` tells each change"},
    "report": {
        **_CONTEXT,
        "--steps": "put step-report.json into the folder of the plan",
        "--job": "leave out the word --job: report takes the name of a job",
    },
    "init": {"--data": "leave out the word --data: the data comes first"},
    "stats": {
        "--module": "leave out the word --module: stats takes package.module:function in the place of data",
        "--batches": "leave it out: at most 10 batches are read",
    },
    "evaluate": {
        "--batch-size": "leave it out: it changes no metric",
        "--quantized": "give the file EXPORT/quantized.pt in place of the folder",
        "--format": "leave it out: the end of a name tells it, else the training",
    },
    "export": {
        "--compute-device": "leave it out: the plan names its devices; neuroshard_trainer.sharding_plan takes others",
        "--json": "leave it out: the export is JSON",
    },
    "compare-training": {
        "--data-dir": _DATA_DIR,
        "--plans": "leave it out: plan files follow by themselves",
        "--plot": "give --out a file that ends in .svg",
        "--arguments": "write them after the script, both in one pair of quotes",
    },
    "compare-accuracy": {"--data-dir": _DATA_DIR, "--steps": "write spec.training.maxSteps into the job"},
    "run": {"--data-dir": _DATA_DIR},
    "sweep": {"--data-dir": _DATA_DIR},
    "calibrate": {"--json": _IN_FOLDER.format("manifest.json")},
    "cluster-sessions": {"--json": _IN_FOLDER.format("clustering.json")},
    "profile": {
        **{option: f"write --set {field}=VALUE" for option, field in _OF_PROFILES.items()},
        "--seed": "leave it out: a profile draws the same samples each time",
        "--json": _IN_FOLDER.format("bundle/manifest.json"),
        "--tables": "leave out the word --tables: the file follows the job",
        "--device": "leave it out; CUDA_VISIBLE_DEVICES= hides GPUs, and a job with GPUs is never profiled on a CPU",
        "--base": "use `neuroshard calibrate BASE RECORDS`, with the records of the profile",
    },
    "pretrain": {
        "--json": _IN_FOLDER.format("manifest.json"),
        **dict.fromkeys(("--samples", "--epochs"), "leave it out: a run is as long as those of the bundled bundles"),
        "--seed": "leave it out: equal devices give equal bundles on equal libraries",
    },
}
"""By command and option: the remedy."""


def no_such_option(command: str, option: str, known: Sequence[str]) -> str:
    """Return the sentence for an option that a command does not have: what says it now, or the nearest option.

    Args:
        command: with the names above it, as ``neuroshard plan``.
        option: that was typed.
        known: options of the command.
    """
    remedy = EARLIER_OPTIONS.get(command.rpartition(" ")[2], {}).get(option)
    if remedy is not None:
        return f"{option}: is gone from `{command}`; hint: {remedy}"
    from neuroshard_api.documents.field_names import nearest

    near = nearest(option, known)
    hint = f"did you mean {near}" if near else f"`{command} --help` lists the options"
    return f"{option}: is not an option of `{command}`; hint: {hint}"
