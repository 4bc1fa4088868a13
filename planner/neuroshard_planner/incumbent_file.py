"""The plan in force, read from its file."""

import hashlib
import math
from pathlib import Path

from neuroshard_api.documents.document import DocumentError, read_bytes, read_data
from neuroshard_api.documents.plan import GivenPlan, any_plan
from neuroshard_api.process.errors import InputError

from neuroshard_planner.plans.migration import Incumbent


def read_incumbent(path: Path, *, price_ms_per_gib: float = 0.0) -> Incumbent:
    """Return the plan of a file, which may be compressed, as the incumbent of a search.

    Args:
        path: of a plan, with a price or without.
        price_ms_per_gib: milliseconds of a step that may be given up for each GiB that does not move.

    Raises:
        DocumentError: the file cannot be read, or is not a plan; or its plan has groups of devices.
    """
    plan = any_plan(read_data(path), where=str(path))
    return incumbent_of(plan, read_bytes(path), where=str(path), price_ms_per_gib=price_ms_per_gib)


def incumbent_of(plan: GivenPlan, content: bytes, *, where: str, price_ms_per_gib: float) -> Incumbent:
    """Return a plan as the incumbent of a search.

    Args:
        plan: with a price or without.
        content: of its file, uncompressed.
        where: it is from.
        price_ms_per_gib: as `read_incumbent`.

    Raises:
        DocumentError: the plan has groups of devices.
        InputError: the price is not a number from 0 on.
    """
    if not (isinstance(price_ms_per_gib, int | float) and 0 <= price_ms_per_gib < math.inf):
        raise InputError(
            f"--move-price: must be a number of milliseconds from 0 on (found {price_ms_per_gib!r}); hint: leave it out"
        )
    if plan.replication is not None:
        problem = "replication: plans near one with groups of devices are not made; hint: plan without an incumbent"
        raise DocumentError(where, [problem])
    return Incumbent(
        tables=plan.tables,
        served=() if plan.servers is None else plan.servers.tables,
        plan_sha256=hashlib.sha256(content).hexdigest(),
        price_ms_per_gib=price_ms_per_gib,
    )
