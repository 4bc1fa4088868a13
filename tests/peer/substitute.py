"""NeuroShard's planner in the place of EmbeddingShardingPlanner, in every module of TorchRec that names it.

Imported for that effect, once TorchRec itself is loaded. The tests name no GPU, and the CPU has none: plans are for an
H100, simulated.
"""

import os
import sys

import torchrec.distributed.model_parallel
import torchrec.distributed.planner
import torchrec.distributed.shard  # noqa: F401 - one of the modules in which the planner is replaced
from neuroshard_torchrec import NeuroShardPlanner
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner

if os.environ.get("NEUROSHARD_PEER_PLANNER") != "torchrec":
    defaults = NeuroShardPlanner.__init__.__kwdefaults__ or {}
    NeuroShardPlanner.__init__.__kwdefaults__ = {**defaults, "device_type": "h100-80gb"}
    for name, module in list(sys.modules.items()):
        if (
            name.startswith("torchrec.")
            and getattr(module, "EmbeddingShardingPlanner", None) is EmbeddingShardingPlanner
        ):
            module.EmbeddingShardingPlanner = NeuroShardPlanner  # type: ignore[attr-defined] # found above
