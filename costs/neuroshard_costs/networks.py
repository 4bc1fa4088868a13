"""Cost networks at plan time, in NumPy. Holds and applies weights; reads no files and trains nothing.

Their times are equal bits on every processor (arithmetic.py).

Compute: each shard's features go through an MLP to a vector of demands in milliseconds (exponentials, hence never
negative); the demands of a device's shards are summed; a head turns the sum into a forward and a backward time. Every
weight of the head is non-negative and its units are maxima of two affine functions, so both times are convex and
non-decreasing in the sum. That is what makes a search's lower bounds valid: for D devices with sums x_d,
max_d f(x_d) >= f(sum_d x_d / D), and a device costs no less than any part of its shards.

What no sum of demands says are the calls: a device makes one per data type, and the widest shard of a call decides how
many lanes a bag takes. Both enter as counts behind the demands (features.call_counts): further calls add a constant
each, and the lanes scale a learned part of each demand. Times never fall with either.

Communication: an MLP turns the collective's features into positive coefficients (each a sum of exponentials) of three
rising functions of the largest device's columns, so that the time never falls when that device grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from neuroshard_costs.arithmetic import ExactMatrix, exp, weighted_sum
from neuroshard_costs.features import (
    COMMUNICATION_FEATURES,
    COMPUTE_FEATURES,
    Collectives,
    Float32Array,
    communication_features,
)
from neuroshard_costs.shards import FloatArray

Weights = Mapping[str, Float32Array]

MAX_LOG = 20.0
"""Exponents are held within +-20: demands and coefficients lie between 2 picoseconds and 5 days."""

NUM_LOAD_TERMS = 3

DEMAND_GRID_MS = 2.0**-36
"""Demands are multiples of it, 15 femtoseconds: sums up to 2 minutes are exact."""


def load_terms(load: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the functions of the largest device's load that a collective's time is a sum of, next to a constant.

    The load is max / mean of the columns per device, at least 1: the fullest device's links decide. The second term is
    a transfer in proportion to the load next to a fixed delay: one level of the network transfers while the other
    waits.
    """
    square = load * load
    return load, np.sqrt(np.sqrt(square * square + 1.0))


@dataclass(frozen=True, slots=True)
class _Mlp:
    """Dense layers with ReLU between them, next to one linear path around all of them."""

    mean: FloatArray
    std: FloatArray
    """[inputs, 1]: inputs are z-scored."""
    layers: tuple[tuple[ExactMatrix, FloatArray], ...]
    """Weights and biases [outputs, 1]."""
    around: ExactMatrix
    num_outputs: int

    @classmethod
    def from_weights(cls, weights: Weights, *, num_inputs: int) -> Self:
        """Take ``layer<i>.weight`` [in, out], ``layer<i>.bias``, ``around``, and ``mean`` and ``std`` of the inputs.

        Raises ValueError for shapes that do not fit.
        """
        num_layers = sum(name.startswith("layer") and name.endswith(".weight") for name in weights)
        if num_layers < 1:
            raise ValueError("holds no layers")
        mean, std = (_take(weights, name, num_inputs) for name in ("mean", "std"))
        if std.min() <= 0:
            raise ValueError("has standard deviations in 'std' that are not positive")
        layers: list[tuple[ExactMatrix, FloatArray]] = []
        width = num_inputs
        for index in range(num_layers):
            name = f"layer{index}.weight"
            next_width = weights[name].shape[-1] if name in weights else 0
            matrix = ExactMatrix(_take(weights, name, width, next_width))
            layers.append((matrix, _take(weights, f"layer{index}.bias", next_width)[:, None]))
            width = next_width
        around = ExactMatrix(_take(weights, "around", num_inputs, width))
        return cls(mean=mean[:, None], std=std[:, None], layers=tuple(layers), around=around, num_outputs=width)

    def exponentials(self, features: FloatArray) -> FloatArray:
        """Return e to the power of the outputs, [n, outputs]."""
        scaled = features.T - self.mean
        scaled /= self.std
        hidden = scaled
        for matrix, bias in self.layers[:-1]:
            hidden = matrix.product(hidden)
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        matrix, bias = self.layers[-1]
        out = matrix.product(hidden)
        out += self.around.product(scaled)
        out += bias
        np.clip(out, -MAX_LOG, MAX_LOG, out=out)
        return np.ascontiguousarray(exp(out).T)


@dataclass(frozen=True, slots=True)
class ComputeNetwork:
    """Forward and backward time of a fused embedding kernel over a device's shards."""

    shard_mlp: _Mlp
    head_in: ExactMatrix
    """[R, 2K + 2]: first and second piece of each unit, then the linear terms of the two outputs."""
    head_bias: FloatArray
    """[2K + 2, 1]: free for the second pieces, non-negative elsewhere."""
    head_out: FloatArray
    """[2, K, 1]"""
    lane_share: FloatArray
    """[R]: the part of each demand that scales with the lanes of a bag, from 0 to 1."""

    @classmethod
    def from_weights(cls, weights: Weights) -> Self:
        """Take the weights of one network by their names. Raises ValueError for shapes that do not fit."""
        shard_mlp = _Mlp.from_weights(
            {name.removeprefix("shard."): value for name, value in weights.items() if name.startswith("shard.")},
            num_inputs=len(COMPUTE_FEATURES),
        )
        demands = shard_mlp.num_outputs
        units = weights["head_out"].shape[0] if "head_out" in weights else 0
        head_in = _take(weights, "head_in", demands, 2 * units + 2)
        head_bias = _take(weights, "head_bias", 2 * units + 2)
        head_out = _take(weights, "head_out", units, 2)
        bound_bias = np.delete(head_bias, np.s_[units : 2 * units])
        if min(head_in.min(), head_out.min(), bound_bias.min()) < 0:
            raise ValueError("has negative weights in the head, which must be monotone")
        lane_share = _take(weights, "lane_share", demands)
        if lane_share.min() < 0 or lane_share.max() > 1:
            raise ValueError("has shares in 'lane_share' that do not lie between 0 and 1")
        return cls(
            shard_mlp=shard_mlp,
            head_in=ExactMatrix(head_in),
            head_bias=head_bias[:, None],
            head_out=np.ascontiguousarray(head_out.T)[:, :, None],
            lane_share=lane_share,
        )

    @property
    def num_demands(self) -> int:
        """Length R of a representation."""
        return len(self.lane_share)

    def demands(self, features: FloatArray) -> FloatArray:
        """Return the demands [n, R] of shards, all positive; a device's demand is the sum over its shards.

        They are multiples of DEMAND_GRID_MS, so that sums of them are the same in any order.
        """
        return on_grid(self.shard_mlp.exponentials(features))

    def times_ms(self, demands: FloatArray, warp_share: FloatArray | float) -> FloatArray:
        """Return [..., 2], forward and backward milliseconds of one call with these summed demands [..., R].

        Args:
            demands: summed over the shards of each device.
            warp_share: [...] share of a warp that a bag takes, 1/4 to 1.
        """
        units = self.head_out.shape[1]
        vectors = demands.reshape(-1, demands.shape[-1]).T
        spare = 1 - np.asarray(warp_share).reshape(-1)
        if spare.any():
            vectors = vectors * (1 - self.lane_share[:, None] * spare)
        pieces = self.head_in.product(vectors)
        pieces += self.head_bias
        first = pieces[:units]
        np.maximum(first, pieces[units:-2], out=first)
        times = np.add.reduce(first * self.head_out, axis=1)
        times += pieces[-2:]
        result: FloatArray = times.T.reshape(*demands.shape[:-1], 2)
        return result

    def tangent_ms(self, demands: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the times [2] of one call in whole warps and their slopes [2, R]: none costs less than this tangent.

        ``demands`` [R] are summed over the shards of a device.
        """
        units = self.head_out.shape[1]
        weights = self.head_in.rounded
        pieces = (self.head_in.product(demands[:, None]) + self.head_bias)[:, 0]
        is_first = pieces[:units] >= pieces[units:-2]
        chosen = np.where(is_first[:, None], weights[:units], weights[units:-2])
        most = np.maximum(pieces[:units], pieces[units:-2])
        times = weighted_sum(self.head_out[:, :, 0], most) + pieces[-2:]
        slopes: FloatArray = (self.head_out * chosen).sum(axis=1) + weights[-2:]
        return times, slopes


@dataclass(frozen=True, slots=True)
class CommunicationNetwork:
    """Transfer time of an all-to-all in one direction, without waiting for late starters."""

    mlp: _Mlp

    @classmethod
    def from_weights(cls, weights: Weights) -> Self:
        """Take the weights of one network by their names. Raises ValueError for shapes that do not fit."""
        mlp = _Mlp.from_weights(weights, num_inputs=len(COMMUNICATION_FEATURES))
        if mlp.num_outputs % NUM_LOAD_TERMS:
            raise ValueError(f"gives {mlp.num_outputs} outputs, expected a multiple of {NUM_LOAD_TERMS}")
        return cls(mlp=mlp)

    def coefficients_ms(self, collectives: Collectives) -> FloatArray:
        """Return [n, 3]: milliseconds of the constant and of each load term; 0 for collectives of one device."""
        outputs = self.mlp.exponentials(communication_features(collectives))
        coefficients: FloatArray = outputs.reshape(len(outputs), NUM_LOAD_TERMS, -1).sum(axis=2)
        coefficients *= (collectives.num_nodes * collectives.devices_per_node > 1)[:, None]
        return coefficients

    def transfer_ms(self, max_dim_sums: FloatArray, collectives: Collectives) -> FloatArray:
        """Return milliseconds, non-decreasing and convex in ``max_dim_sums``, the columns of the fullest device.

        Args:
            max_dim_sums: [n] one for each collective; if there is a single collective, of any number of plans.
            collectives: their settings.
        """
        constant, linear, smooth = self.coefficients_ms(collectives).T
        load, smooth_maximum = load_terms(np.maximum(max_dim_sums / collectives.mean_dim_sum, 1.0))
        times: FloatArray = constant + linear * load + smooth * smooth_maximum
        return times


def on_grid(times_ms: FloatArray) -> FloatArray:
    """Return [...] milliseconds rounded to multiples of DEMAND_GRID_MS."""
    rounded: FloatArray = np.rint(times_ms / DEMAND_GRID_MS) * DEMAND_GRID_MS
    return rounded


def _take(weights: Weights, name: str, *shape: int) -> FloatArray:
    """Return one array of exactly this shape, in double precision. Raises ValueError."""
    if name not in weights:
        raise ValueError(f"lacks the array {name!r}")
    array = weights[name]
    if array.shape != shape or array.dtype != np.float32:
        raise ValueError(f"has {name!r} as {array.dtype}{list(array.shape)}, expected float32{list(shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"has numbers in {name!r} that are not finite")
    return array.astype(np.float64)
