"""A process in which the packages of cluster and command cannot be imported plans a module."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = ("kopf", "kubernetes", "typer", "neuroshard_operator", "neuroshard_cli")


class Absent(MetaPathFinder):
    """Finds nothing, and lets nobody else find it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for the packages that are absent."""
        del path, target
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main() -> None:
    """Import the drop-in and plan two towers."""
    assert "neuroshard_torchrec" not in sys.modules
    for name in [name for name in sys.modules if name.partition(".")[0] in ABSENT]:
        del sys.modules[name]
    sys.meta_path.insert(0, Absent())
    from support.dropin.dropin_models import TwoTowers

    dropin = importlib.import_module("neuroshard_torchrec")
    plan = dropin.NeuroShardPlanner(device_type="h100-80gb").plan(TwoTowers())
    assert sorted(plan.plan) == ["items", "users"]
