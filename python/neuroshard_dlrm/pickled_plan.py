"""TorchRec's own plans as scripts pickle them. Loading needs torchrec; no other code of the file is run.

A pickle may name any function to call, so that reading one from elsewhere is running a program. This reader knows the
classes that a sharding plan consists of, calls nothing else, and sets attributes of their new instances alone.
"""

import io
import pickle
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from neuroshard_planner.errors import PlanError

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

PLAN_CLASSES = frozenset(
    {
        ("torchrec.distributed.types", "ShardingPlan"),
        ("torchrec.distributed.types", "EmbeddingModuleShardingPlan"),
        ("torchrec.distributed.types", "ParameterSharding"),
        ("torchrec.distributed.types", "CacheParams"),
        ("torchrec.types", "DataType"),
        ("fbgemm_gpu.tbe.cache.cache_config", "CacheAlgorithm"),  # codespell:ignore tbe
        ("fbgemm_gpu.split_table_batched_embeddings_ops_common", "BoundsCheckMode"),
        ("torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec"),
        ("torch.distributed._shard.metadata", "ShardMetadata"),
        ("torch.distributed.remote_device", "_remote_device"),
        ("torch", "device"),
        ("collections", "OrderedDict"),
    }
)
"""Module and name of every class that a plan may hold. Options of key-value stores have no price."""


def read_pickled_plan(path: Path) -> "ShardingPlan":
    """Return the plan of a file that ``pickle.dump`` wrote.

    Raises:
        PlanError: the file cannot be read, is not a pickle, or holds something else than a sharding plan.
    """
    from torchrec.distributed.types import ShardingPlan

    try:
        found = _PlanUnpickler(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle raises errors of any kind
        raise PlanError(
            f"{path}: is neither JSON nor a pickled sharding plan ({type(error).__name__}: {error}); "
            "hint: write one with pickle.dump(plan, file)"
        ) from error
    if not isinstance(found, ShardingPlan):
        raise PlanError(f"{path}: holds a {type(found).__name__}; hint: pickle what collective_plan returned")
    return found


_READ: Mapping[int, Any] = pickle._Unpickler.dispatch  # noqa: SLF001 - the one in C lets nobody see what BUILD changes
_BUILD = pickle.BUILD[0]


class _PlanUnpickler(pickle._Unpickler):  # noqa: SLF001 - as above
    """The reader in Python, whose ``dispatch`` has a method for each operation."""

    def find_class(self, module: str, name: str) -> object:
        """Return a class of plans. Raises PlanError for anything else."""
        if (module, name) not in PLAN_CLASSES:
            raise PlanError(
                f"names {module}.{name}, which is not part of a sharding plan and is not loaded: a pickle could run "
                "any code with it; hint: give the plan alone"
            )
        return super().find_class(module, name)

    stack: list[object]

    def _load_build(self) -> None:
        """Set the attributes of an instance. Raises PlanError for those of classes, which the whole process shares."""
        target = self.stack[-2]
        if isinstance(target, (type, Enum)):
            raise PlanError(
                f"sets attributes of {target!r}, which are not part of a sharding plan; hint: give the plan alone"
            )
        _READ[_BUILD](self)

    dispatch: ClassVar[dict[int, Any]] = {**_READ, _BUILD: _load_build}
