"""Plan the sharding of embedding tables from Python and notebooks, with what the ``neuroshard`` command calls.

import neuroshard_dlrm as ns
plan = ns.plan("mlperf-dlrm-dcnv2", devices=8, device="h100-80gb")

The names in ``__all__`` and `NeuroShardPlanner` are public, and nothing else. Each is imported when it is first used,
since the last one needs torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.process.errors import ExpectedError, InputError
    from neuroshard_planner.errors import InfeasibleError
    from neuroshard_torchrec import NeuroShardPlanner as NeuroShardPlanner

    from neuroshard_dlrm.arguments import PlanArguments
    from neuroshard_dlrm.functions import compare, diff, estimate, explain, plan, read, score
    from neuroshard_dlrm.plans import Plan
    from neuroshard_dlrm.results import Comparison, Difference, Estimate, Explanation, Score, Tables

__all__ = [
    "Comparison",
    "Difference",
    "DocumentError",
    "Estimate",
    "ExpectedError",
    "Explanation",
    "InfeasibleError",
    "InputError",
    "Plan",
    "PlanArguments",
    "Score",
    "Tables",
    "compare",
    "diff",
    "estimate",
    "explain",
    "plan",
    "read",
    "score",
]

_MODULES = {
    "neuroshard_dlrm.functions": ("compare", "diff", "estimate", "explain", "plan", "read", "score"),
    "neuroshard_dlrm.arguments": ("PlanArguments",),
    "neuroshard_dlrm.plans": ("Plan",),
    "neuroshard_dlrm.results": ("Comparison", "Difference", "Estimate", "Explanation", "Score", "Tables"),
    "neuroshard_api.documents.document": ("DocumentError",),
    "neuroshard_api.process.errors": ("ExpectedError", "InputError"),
    "neuroshard_planner.errors": ("InfeasibleError",),
    "neuroshard_torchrec": ("NeuroShardPlanner",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - one of the names above
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "NeuroShardPlanner":
        from neuroshard_planner.baselines.torchrec import require_torchrec

        require_torchrec("NeuroShardPlanner")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "NeuroShardPlanner"]
