"""The one error of this package, which handlers of TorchRec's planner errors catch too."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.setting_names import renamed
from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.memory_ledger import MemoryLedger
from neuroshard_planner.errors import InfeasibleError
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

_WORDS: Final[Mapping[str, str]] = {
    "constraints.max_memory_bytes_per_device": "an hbm_cap of the topology",
    "constraints.max_memory_bytes_per_device of": "an hbm_cap of",
    "constraints.compute_kernels": "compute_kernels of its ParameterConstraints",
    "topology.host_memory": "the topology a ddr_cap",
    "batch_size_per_device": "batch_size",
    "constraints.sharding_types": "sharding_types of its ParameterConstraints",
    "constraints.min_shard_width": "min_partition of its ParameterConstraints",
    "lower min_shard_width": "lower min_partition",
    "constraints.max_shard_width": "as FBGEMM's kernels take",
    "constraints.data_types": "data_type",
    "memory.output_data_type": "output_dtype",
    "memory.dense_bytes": "dense_memory_bytes",
}
"""What a TorchRec script has in place of the fields of a plan's request."""
_CAP = re.compile(r"an? (hbm_cap|ddr_cap) of [\d.]+ [KMGT]?i?B would do")


class DropInError(PlannerError, ExpectedError):  # type: ignore[misc] # torchrec has no types
    """The model, the devices or the constraints cannot be planned; the message is one sentence."""

    def __init__(self, message: str, error_type: PlannerErrorType = PlannerErrorType.INPUT_VALIDATION) -> None:
        super().__init__(message, error_type)

    def __reduce__(self) -> tuple[type, tuple[str, PlannerErrorType]]:
        return type(self), (str(self), self.error_type)


class NoTablesError(DropInError):
    """The module has no tables that are to be planned."""


def of_planner(error: Exception, request: PlanRequest, *, compute_device: str, is_reserved: bool) -> DropInError:
    """Return an error of the planner in the words of a TorchRec script, typed as TorchRec's planner types it.

    What all devices together have no room for is INSUFFICIENT_STORAGE; what fits there but not as the types let it is
    STRICT_CONSTRAINTS.

    Args:
        error: of the planner.
        request: that it is of.
        compute_device: of the topology.
        is_reserved: whether the script has a storage_reservation, which may take a share of what a cap adds.
    """
    sentence = in_words_of_script(str(error), compute_device=compute_device)
    if is_reserved:
        sentence = _CAP.sub(r"a larger \1 or a lower storage_reservation would do", sentence)
    if not isinstance(error, InfeasibleError):
        return DropInError(sentence, PlannerErrorType.STRICT_CONSTRAINTS)
    has_room = _needed_bytes(request) <= request.topology.num_devices * MemoryLedger(request).shard_capacity_bytes
    kind = PlannerErrorType.STRICT_CONSTRAINTS if has_room else PlannerErrorType.INSUFFICIENT_STORAGE
    return DropInError(sentence, kind)


def in_words_of_script(sentence: str, *, compute_device: str) -> str:
    """Return a sentence about a request with the words that a TorchRec script has for its fields."""
    sentence = renamed(sentence, _WORDS)
    return sentence.replace("an hbm_cap", "a ddr_cap") if compute_device == "cpu" else sentence


def _needed_bytes(request: PlanRequest) -> int:
    """Return the weights and optimizer states of all tables, of each copy of those that may be data_parallel alone."""
    types = (request.placed_types_of(table.name) or () for table in request.tables.tables)
    alone = [{*own} == {ShardingType.DATA_PARALLEL} for own in types]
    return int((MemoryLedger(request).least_bytes * np.where(alone, request.topology.num_devices, 1)).sum())
