"""Tables of a TorchRec module that a function of the user makes."""

from typing import TYPE_CHECKING

from neuroshard_api.documents.document import validated
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.tables import TableSet
from neuroshard_planner.baselines.torchrec import require_torchrec

if TYPE_CHECKING:
    from neuroshard_torchrec import ModelTables
    from neuroshard_torchrec.given_model import GivenModel


def read_module(name: str, *, max_batches: int) -> "GivenModel":
    """Return the module that a function makes, with its batches.

    Raises:
        MissingPackageError: TorchRec is not installed.
        DropInError: there is no such function, or it returns something else.
    """
    require_torchrec("the tables of a module")
    from neuroshard_torchrec.given_model import given_model

    return given_model(name, max_batches=max_batches)


def without_optimizers(tables: TableSet) -> TableSet:
    """Return the tables without optimizers of their own."""
    from neuroshard_torchrec.optimizers import with_optimizers

    return with_optimizers(tables, {})


def with_module_limits(tables: "ModelTables", given: Constraints) -> Constraints:
    """Return constraints with what the module's sharders allow; what is given for a table comes first."""
    from neuroshard_torchrec.given_model import module_constraints

    limits = module_constraints(tables)
    of_module = limits.tables
    merged = {
        name: {
            source: value
            for each in (of_module.get(name), given.tables.get(name))
            if each is not None
            for source, value in each.model_dump(mode="json", exclude_none=True).items()
        }
        for name in {**of_module, **given.tables}
    }
    every = (limits, given)
    raw = {field: value for each in every for field, value in each.model_dump(mode="json", exclude_none=True).items()}
    return validated(Constraints, {**raw, "tables": merged}, where="constraints")


def with_managed_collision(request: PlanRequest, tables: "ModelTables") -> PlanRequest:
    """Return a request that counts the memory for managed collision of the module that its tables are of."""
    from neuroshard_torchrec.managed_collision import managed_collision_bytes

    found = managed_collision_bytes(
        tables, num_devices=request.topology.num_devices, batch_size=request.batch_size_per_device
    )
    return request.model_copy(update={"memory": request.memory.model_copy(update={"managed_collision_bytes": found})})
