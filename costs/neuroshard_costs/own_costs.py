"""A cost model of the user's own in the place of a bundle's networks: three methods. Fits and checks nothing."""

import hashlib
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from neuroshard_api.documents.request import Pipeline, PlanRequest

from neuroshard_costs.bundle import CostBundle
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.shards import FloatArray, ShardArrays


class EmbeddingCosts(Protocol):
    """What the search asks of a cost model."""

    def demands(self, shards: ShardArrays) -> FloatArray:
        """Return [n, r] non-negative numbers that add up over the shards of a device, r the same for all shards."""

    def compute_ms(self, sums: FloatArray) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds of devices with these [..., r] sums of demands.

        Non-decreasing and convex in the sums: search and lower bound assume both.
        """

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] milliseconds of the all-to-alls of embeddings and of their gradients.

        Non-decreasing in the columns of the fullest device [...].
        """


@dataclass(init=False, eq=False, frozen=True, slots=True)
class OwnCosts(CostBundle):
    """A bundle whose lookups and all-to-alls are priced by three methods; other costs are those of the base.

    Args:
        costs: the three methods.
        base: cost models of the same device.
        name: what plans call the model.
        version: plans that were cached under another one are made again.
        compute_mape: error of compute times on held-out measurements, as plans show it.
        communication_mape: the same of exchanges.
        source: where the costs come from, as ``measured:NVIDIA-H100-80GB-HBM3``. None: the base's.
    """

    costs: EmbeddingCosts
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self,
        costs: EmbeddingCosts,
        *,
        base: CostBundle,
        name: str,
        version: str,
        compute_mape: float,
        communication_mape: float,
        source: str | None = None,
    ) -> None:
        errors = {"compute": compute_mape}
        networks = tuple(
            network.model_copy(
                update={
                    "hold_out": network.hold_out.model_copy(
                        update={"mape": errors.get(network.name, communication_mape)}
                    )
                }
            )
            for network in base.manifest.networks
        )
        named = f"{name}\n{version}\n{base.manifest.weights_sha256}"
        manifest = base.manifest.model_copy(
            update={
                "name": name,
                "source": source or base.manifest.source,
                "networks": networks,
                "weights_sha256": hashlib.sha256(named.encode()).hexdigest(),
            }
        )
        kept = {each.name: getattr(base, each.name) for each in fields(CostBundle)}
        for attribute, value in {**kept, "manifest": manifest, "costs": costs}.items():
            object.__setattr__(self, attribute, value)  # of a frozen class

    @property
    def is_convex(self) -> bool:
        """True: the methods promise it."""
        return True

    def represent(self, shards: ShardArrays) -> FloatArray:
        """Return [n, r] the demands of shards."""
        return np.asarray(self.costs.demands(shards))

    def compute_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:  # noqa: ARG002 - a bundle's signature
        """Return [..., 2] forward and backward times; 0 for devices without demands."""
        times = np.asarray(self.costs.compute_ms(sums))
        return times * (sums > 0).any(axis=-1, keepdims=True)

    def lanes(self, representations: FloatArray) -> FloatArray:
        """Return 0: demands add up, whatever else a device holds."""
        return np.zeros(len(representations))

    def least_demands(self, representations: FloatArray, *, lanes: float = 0.0) -> FloatArray:  # noqa: ARG002 - a bundle's signature
        """Return the demands themselves."""
        return representations

    def least_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return the times themselves, which are convex."""
        return self.compute_ms(sums, pipeline=pipeline)

    def tangent_ms(self, sums: FloatArray, *, num_calls: int) -> None:
        """Return no tangent: the model's slopes are not known."""

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel); 0 on a single device."""
        if exchange.topology.num_devices == 1:
            return np.zeros((*np.shape(max_dim_sums), 2))
        return self.costs.transfer_ms(max_dim_sums, exchange)

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:  # noqa: ARG002 - a bundle's signature
        """Return that nothing is known of the model's range."""
        return (f"costs are by {self.manifest.name}, a cost model of the user's own, whose range is not known",)
