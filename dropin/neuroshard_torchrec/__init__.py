"""NeuroShard as TorchRec's planner: one line of a TorchRec script instead of EmbeddingShardingPlanner.

planner = NeuroShardPlanner(batch_size=8192, device_type="h100-80gb")
plan = planner.collective_plan(model, sharders)
model = DistributedModelParallel(model, plan=plan, sharders=sharders)
"""

from neuroshard_torchrec.comparison import compare_training
from neuroshard_torchrec.comparison_output import show_comparison
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.estimators import NeuroShardEstimator, TorchRecCosts
from neuroshard_torchrec.given_comparison import compare_given_plans
from neuroshard_torchrec.model_tables import ModelTables, model_tables, table_set_of
from neuroshard_torchrec.planner import NeuroShardPlanner

__all__ = [
    "DropInError",
    "ModelTables",
    "NeuroShardEstimator",
    "NeuroShardPlanner",
    "TorchRecCosts",
    "compare_given_plans",
    "compare_training",
    "model_tables",
    "show_comparison",
    "table_set_of",
]
