"""What is planned, on which devices, and within which limits, as plain values. Imports nothing that takes time."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.optimizer_choice import OptimizerChoice

from neuroshard_dlrm.choices import (
    ComputePeakChoice,
    DenseCheckpointingChoice,
    DenseGroupChoice,
    DensePolicyChoice,
    DenseSplittingChoice,
    OutputTypeChoice,
    PipelineChoice,
)

if TYPE_CHECKING:
    from neuroshard_api.documents.request import Constraints
    from neuroshard_api.documents.topology import Topology

DEFAULT_BATCHES = 10
"""Batches of a module that are read."""
BATCH_PLACEHOLDER = "{batch}"
"""In the path of a counted dense part: samples per device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """Options of what is planned; the help of ``neuroshard plan`` has the meaning of each."""

    tables: str | None = None
    module: str | None = None
    batches: int = DEFAULT_BATCHES
    devices: int | None = None
    nodes: int | None = None
    device_type: str | None = None
    topology: "Path | Topology | None" = None
    bundle: Path | None = None
    any_device: bool = False
    batch_size: int | None = None
    optimizer: OptimizerChoice | None = None
    output_data_type: OutputTypeChoice = "FP32"
    wire_forward: str | None = None
    wire_backward: str | None = None
    least_gain: float | None = None
    gradient_types: str | None = None
    keep_percent: float | None = None
    data_types: str | None = None
    pipeline: PipelineChoice = "sparse-dist"
    compute_peak: ComputePeakChoice = "separate"
    deduplicate: bool = False
    constraints: "Path | Constraints | None" = None
    max_memory: str | None = None
    host_memory: str | None = None
    group_sizes: str | None = None
    sync_every: int = 1
    dense: Path | None = None
    dense_memory: str | None = None
    dense_policy: DensePolicyChoice = "auto"
    dense_group: DenseGroupChoice = "auto"
    dense_checkpointing: DenseCheckpointingChoice = "auto"
    dense_splitting: DenseSplittingChoice = "auto"
    dense_units: str | None = None
    reserve: float | None = None
    reserve_memory: str = "0"
    seed: int = 0
    work_budget: int | None = None
    shard_tolerance: float = 0.001

    def dense_path(self, batch_size: int) -> Path:
        """Return the file of the dense part that was counted for a number of samples per device."""
        return Path(str(self.dense).replace(BATCH_PLACEHOLDER, str(batch_size)))

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults, in their order."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]
