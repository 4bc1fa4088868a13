"""The counted dense part next to what torch's allocator gives out in real training, in every strategy.

Two processes of one CPU train each model for five steps, over gloo and without a pipeline: its units replicated,
ZeRO-2, or ZeRO-3, and each of them with and without checkpointing; ZeRO-3 also with units that have several operators
split, where a model has some. Tables are small: the dense part decides the sum.
The ledger is a CPU's, without reserve, and the optimizer updates one parameter after the other. The error is that to
the median of the steps' peaks. The highest peak of a step is given next to it: gloo's threads drop what they have sent
as late as they get a core.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DenseGroup,
    DenseStrategy,
    SplittingChoice,
    UnitChoice,
)
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceMemory
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_dense.layouts import Layouts
from neuroshard_dense.options import UnitOptions
from neuroshard_planner.pipeline import plan as search

from benchmarks.results_file import hardware_slug, write_result
from benchmarks.trained_memory import (
    DEVICE,
    counted_bytes,
    counted_request,
    errors_text,
    ledger_on_cpu,
    peak_bytes,
    training_job,
)

MIB = 2**20
NUM_TABLES = 8
PARTS = ("dense_arch", "interaction", "over_arch")
MODELS: Mapping[str, Mapping[str, Any]] = {
    "DLRM": {"batchSizePerDevice": 512, "overArchLayerSizes": [2048, 1024, 512]},
    "DCNv2": {"architecture": "DCNv2", "batchSizePerDevice": 512, "overArchLayerSizes": [1024, 512]},
    "wide cross network": {
        "architecture": "DCNv2",
        "batchSizePerDevice": 256,
        "crossNetwork": {"numLayers": 6, "lowRankDim": 2048},
    },
    "Wukong": {
        "architecture": "Wukong",
        "batchSizePerDevice": 256,
        "wukong": {
            "numLayers": 4,
            "numInteractions": 16,
            "lowRankDim": 16,
            "layerSizes": [1024, 1024],
        },
    },
}
TARGET = 0.02
TABLES = tuple({"name": f"t{index}", "numEmbeddings": 1000, "embeddingDim": 64} for index in range(NUM_TABLES))


def main(models: Sequence[str]) -> None:
    """Plan, train, and write the result."""
    names, trained = [], []
    for model in models or MODELS:
        job = training_job(TABLES, MODELS[model], where=model)
        counted = counted_request(job).model_copy(update={"algorithm": Algorithm.SIZE_GREEDY})
        for strategy in DenseStrategy:
            for checkpointing, splitting in _ways(counted, strategy):
                plan = dense_plan(counted, strategy, checkpointing, splitting=splitting, bundle=bundled_bundle(DEVICE))
                kept = f"{strategy}{', split' if splitting is SplittingChoice.ALWAYS else ''}"
                names.append((model, kept, checkpointing is CheckpointingChoice.ALWAYS))
                trained.append((job, plan))
    lines = report(names, [ledger_on_cpu(plan) for _, plan in trained], peak_bytes(trained))
    if models:
        print("\n".join(lines))
    else:
        print(write_result("dense-memory-error", lines, hardware=hardware_slug()))


def _ways(request: PlanRequest, strategy: DenseStrategy) -> Iterator[tuple[CheckpointingChoice, SplittingChoice]]:
    assert request.dense is not None
    yield CheckpointingChoice.NEVER, SplittingChoice.NEVER
    yield CheckpointingChoice.ALWAYS, SplittingChoice.NEVER
    if strategy is DenseStrategy.ZERO3 and any(unit.operators for unit in request.dense.units):
        yield CheckpointingChoice.NEVER, SplittingChoice.ALWAYS


def report(
    names: Sequence[tuple[str, str, bool]],
    ledgers: Sequence[Sequence[DeviceMemory]],
    measured: Sequence[Sequence[Sequence[int]]],
) -> list[str]:
    """Return the lines of the result.

    Args:
        names: model, strategy in words, and whether units are checkpointed, of each plan.
        ledgers: of the devices of each plan.
        measured: peak bytes, by rank, plan, and step.
    """
    rows, errors = [], []
    for index, (model, strategy, is_checkpointed) in enumerate(names):
        for rank, memory in enumerate(ledgers[index]):
            found, highest = median(measured[rank][index]), max(measured[rank][index])
            counted = counted_bytes(memory)
            errors.append(counted / found - 1)
            rows.append(
                f"| {model} | {strategy} | {'yes' if is_checkpointed else 'no'} | {rank} | {found / MIB:.1f} | "
                f"{highest / MIB:.1f} | {counted / MIB:.1f} | {100 * errors[-1]:+.1f} % | "
                f"{memory.dense_bytes / MIB:.1f} |"
            )
    return [
        "# The counted dense part next to torch's allocator",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        f"Tables: {NUM_TABLES} of 1,000 x 64, pooling factor 1. MiB.",
        "",
        "| model | strategy | checkpointed | rank | allocated | highest step | ledger | error | dense part |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        errors_text(errors, target=TARGET),
    ]


def dense_plan(
    request: PlanRequest,
    strategy: DenseStrategy,
    checkpointing: CheckpointingChoice,
    *,
    splitting: SplittingChoice = SplittingChoice.NEVER,
    bundle: CostBundle,
) -> Plan:
    """Return a plan all of whose units have one strategy, counted for gloo on a CPU."""
    assert request.dense is not None
    named = tuple(UnitChoice(module=part, strategy=strategy) for part in PARTS)
    options = UnitOptions(
        request.dense,
        request.topology,
        costs=bundle,
        choices=DenseChoices(units=named, checkpointing=checkpointing, splitting=splitting),
        groups=(DenseGroup.NODE,),
    )
    layouts = Layouts(request.dense, options, copies_transfers=True)
    (chosen,) = layouts.candidates
    if chosen.is_plain:
        return search(request, bundle=bundle)
    plan = search(request.model_copy(update={"dense_memory": chosen.memory}), bundle=bundle)
    return plan.model_copy(update={"dense": layouts.layout(chosen, source=f"simulated:{request.topology.device.name}")})


if __name__ == "__main__":
    main(sys.argv[1:])
