"""What a problem asks of cost models: representations that add up, and the times of their sums. Holds no network."""

from typing import Protocol

from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.request import Pipeline
from neuroshard_costs.exchanges import TransferModel
from neuroshard_costs.shards import FloatArray, ShardArrays


class CostModel(TransferModel, Protocol):
    """What the search asks of a bundle."""

    @property
    def manifest(self) -> BundleManifest:
        """What the networks are, where they come from and how far they can be trusted."""

    def represent(self, shards: ShardArrays) -> FloatArray:
        """Return [n, r] non-negative representations, which add up over the shards of a device."""

    def compute_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return [..., 2] forward and backward times of devices with these [..., r] sums.

        Never falls when shards are added. A device without shards (a zero sum) costs 0.
        """

    def lanes(self, representations: FloatArray) -> FloatArray:
        """Return [n] lanes that each shard of these [n, r] gives all others on its device; 0 where it changes none."""

    def least_demands(self, representations: FloatArray, *, lanes: float = 0.0) -> FloatArray:
        """Return [n, q] the least that shards of these [n, r] bring a device which has ``lanes`` or more."""

    def least_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return [..., 2] times that no device goes below whose shards have these [..., q] sums of least demands.

        Monotone and convex in the sums up to a monotone rescaling: the lower bound depends on it.
        """

    @property
    def is_convex(self) -> bool:
        """Whether both times are convex in the sums as they are, without a rescaling."""

    def tangent_ms(self, sums: FloatArray, *, num_calls: int) -> tuple[FloatArray, FloatArray] | None:
        """Return times [2] at these sums [q] of least demands and slopes [2, q] of an affine function of such sums.

        No device with this number of calls goes below it. None: no tangent is known. With a pipeline, further calls
        add no less to any device than to next to no demands.
        """
