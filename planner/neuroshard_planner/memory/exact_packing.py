"""Packing as an integer program, solved by HiGHS (through scipy): finds a placement by memory wherever one exists.

For every unit u and device d, h[u, d] says whether a shard of u is there and q[u, d] how many quads (four columns) it
has. A unit's quads add up, a device's bytes stay within its capacity, and a shard is as wide as it must be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from neuroshard_costs.shards import IndexArray
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

MOST_CHOICES = 2_000  # pairs of unit and device; larger sets have small tables enough that greedy filling does
NODES_TIMES_CHOICES = 400_000  # a node takes the longer the more there is to choose; some seconds in all
TIGHTER = 2e-6  # of a device's capacity; the solver keeps a limit to 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingProblem:
    """u units and d devices of equal capacity; a shard's bytes are affine in its quads."""

    quads: IndexArray
    """[u]"""
    min_quads: IndexArray
    """[u] of the narrowest shard allowed."""
    max_shards: IndexArray
    """[u]"""
    shard_bytes: IndexArray
    """[u] of a shard besides its quads."""
    quad_bytes: IndexArray
    """[u]"""
    allowed: NDArray[np.bool_]
    """[u, d]"""
    capacity_bytes: int

    def used_bytes(self, quads: IndexArray) -> IndexArray:
        """Return [d] bytes of these [u, d] quads."""
        used: IndexArray = ((quads > 0) * self.shard_bytes[:, None] + quads * self.quad_bytes[:, None]).sum(axis=0)
        return used


def pack_exactly(problem: PackingProblem, *, max_nodes: int) -> IndexArray | None:
    """Return [u, d] quads on each device, or None if there are none or none were found.

    ``max_nodes`` limits the solver's branch and bound (and the size of the problem lowers it): a limit of nodes and
    not of seconds, so that equal problems end alike on every machine.
    """
    if problem.allowed.size > MOST_CHOICES:
        return None
    for margin in (0.0, TIGHTER):
        quads = _solve(problem, (1 - margin) * problem.capacity_bytes, max_nodes)
        if quads is None or problem.used_bytes(quads).max() <= problem.capacity_bytes:
            return quads
    return None


def _solve(problem: PackingProblem, capacity_bytes: float, max_nodes: int) -> IndexArray | None:
    num_units, num_devices = problem.allowed.shape
    num_choices = num_units * num_devices
    here = np.arange(num_choices).reshape(num_units, num_devices)
    quads = here + num_choices
    units, devices = np.indices(here.shape)
    scale = 1.0 / problem.capacity_bytes  # the solver's tolerances are meant for numbers about one
    # A unit in one piece cannot be a shard that is narrower than the unit.
    least = np.where(problem.max_shards > 1, problem.min_quads, problem.quads)
    constraints = [
        _rows(units, [(quads, 1.0)], problem.quads, problem.quads),
        _rows(units, [(here, 1.0)], -np.inf, problem.max_shards),
        _rows(here, [(quads, 1.0), (here, -least[units])], 0.0, np.inf),
        _rows(here, [(quads, 1.0), (here, -problem.quads[units])], -np.inf, 0.0),
        _rows(
            devices,
            [(here, scale * problem.shard_bytes[units]), (quads, scale * problem.quad_bytes[units])],
            -np.inf,
            scale * capacity_bytes,
        ),
    ]
    most = np.concatenate([problem.allowed.ravel(), problem.quads[units].ravel()]).astype(np.float64)
    found = milp(
        np.zeros(2 * num_choices),
        integrality=np.ones(2 * num_choices),
        bounds=Bounds(0.0, most),
        constraints=constraints,
        options={"node_limit": min(max_nodes, NODES_TIMES_CHOICES // num_choices)},
    )
    if found.x is None:
        return None
    result: IndexArray = np.rint(found.x[num_choices:]).astype(np.int64).reshape(num_units, num_devices)
    return result


def _rows(
    row: IndexArray,
    terms: Sequence[tuple[IndexArray, NDArray[Any] | float]],
    least: NDArray[Any] | float,
    most: NDArray[Any] | float,
) -> LinearConstraint:
    """Return one inequality for each number in ``row``: the sum of its terms (variables with factors) within limits."""
    rows = np.concatenate([row.ravel() for _ in terms])
    columns = np.concatenate([variables.ravel() for variables, _ in terms])
    factors = np.concatenate([np.broadcast_to(factor, row.shape).ravel() for _, factor in terms])
    shape = (int(rows.max()) + 1, 2 * row.size)
    return LinearConstraint(coo_array((factors, (rows, columns)), shape=shape).tocsr(), least, most)
