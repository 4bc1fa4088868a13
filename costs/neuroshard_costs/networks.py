"""Cost networks at plan time, in NumPy and float32. Holds and applies weights; reads no files and trains nothing.

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

MOST_SERIAL_PRODUCTS = 2**18
"""Multiplications of a product of matrices up to which OpenBLAS takes one thread (interface/gemm.c)."""


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

    layers: tuple[tuple[Float32Array, Float32Array], ...]
    around: Float32Array

    @classmethod
    def from_weights(cls, weights: Weights, *, num_inputs: int) -> Self:
        """Take ``layer<i>.weight`` [in, out], ``layer<i>.bias``, ``around``, and ``mean`` and ``std`` of the inputs.

        The z-score is folded into the first layer and the path around. Raises ValueError for shapes that do not fit.
        """
        num_layers = sum(name.startswith("layer") and name.endswith(".weight") for name in weights)
        if num_layers < 1:
            raise ValueError("holds no layers")
        mean = _take(weights, "mean", num_inputs).astype(np.float64)
        std = _take(weights, "std", num_inputs).astype(np.float64)
        if std.min() <= 0:
            raise ValueError("has standard deviations in 'std' that are not positive")
        layers: list[tuple[Float32Array, Float32Array]] = []
        width = num_inputs
        for index in range(num_layers):
            name = f"layer{index}.weight"
            next_width = weights[name].shape[-1] if name in weights else 0
            layers.append((_take(weights, name, width, next_width), _take(weights, f"layer{index}.bias", next_width)))
            width = next_width
        around = _take(weights, "around", num_inputs, width) / std[:, None]
        first, first_bias = layers[0][0] / std[:, None], layers[0][1].astype(np.float64)
        layers[0] = (first.astype(np.float32), (first_bias - mean @ first).astype(np.float32))
        last, last_bias = layers[-1]
        layers[-1] = (last, (last_bias - mean @ around).astype(np.float32))
        return cls(layers=tuple(layers), around=around.astype(np.float32))

    def exp(self, features: Float32Array) -> Float32Array:
        """Return e to the power of the outputs, [n, outputs]."""
        hidden = features
        for weight, bias in self.layers[:-1]:
            hidden = _product(hidden, weight)
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self.layers[-1]
        out = _product(hidden, weight)
        out += _product(features, self.around)
        out += bias
        np.clip(out, -MAX_LOG, MAX_LOG, out=out)
        return np.exp(out, out=out)


@dataclass(frozen=True, slots=True)
class ComputeNetwork:
    """Forward and backward time of a fused embedding kernel over a device's shards."""

    shard_mlp: _Mlp
    head_in: Float32Array
    """[R, 2K + 2]: first and second piece of each unit, then the linear terms of the two outputs."""
    head_bias: Float32Array
    """[2K + 2]: free for the second pieces, non-negative elsewhere."""
    head_out: Float32Array
    """[K, 2]"""
    lane_share: Float32Array
    """[R]: the part of each demand that scales with the lanes of a bag, from 0 to 1."""

    @classmethod
    def from_weights(cls, weights: Weights) -> Self:
        """Take the weights of one network by their names. Raises ValueError for shapes that do not fit."""
        shard_mlp = _Mlp.from_weights(
            {name.removeprefix("shard."): value for name, value in weights.items() if name.startswith("shard.")},
            num_inputs=len(COMPUTE_FEATURES),
        )
        demands = shard_mlp.around.shape[1]
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
        return cls(shard_mlp=shard_mlp, head_in=head_in, head_bias=head_bias, head_out=head_out, lane_share=lane_share)

    @property
    def num_demands(self) -> int:
        """Length R of a representation."""
        return len(self.head_in)

    def demands(self, features: Float32Array) -> Float32Array:
        """Return the demands [n, R] of shards, all positive; a device's demand is the sum over its shards."""
        return self.shard_mlp.exp(features)

    def times_ms(self, demands: Float32Array, warp_share: Float32Array | float) -> Float32Array:
        """Return [..., 2], forward and backward milliseconds of one call with these summed demands [..., R].

        Args:
            demands: float32, summed over the shards of each device.
            warp_share: [...] share of a warp that a bag takes, 1/4 to 1.
        """
        units = self.head_out.shape[0]
        share = np.asarray(warp_share, dtype=np.float32)[..., None]
        pieces = _product(demands * (1 - self.lane_share * (1 - share)), self.head_in)
        pieces += self.head_bias
        first = pieces[..., :units]
        np.maximum(first, pieces[..., units:-2], out=first)
        times = _product(first, self.head_out)
        times += pieces[..., -2:]
        return times

    def tangent_ms(self, demands: FloatArray, warp_share: float) -> tuple[FloatArray, FloatArray]:
        """Return the times [2] of one call and their slopes [2, R]: no call costs less than this tangent.

        Args:
            demands: [R] summed over the shards of a device.
            warp_share: share of a warp that a bag takes, 1/4 to 1.
        """
        units = self.head_out.shape[0]
        scale = 1 - self.lane_share.astype(np.float64) * (1 - warp_share)
        pieces = (demands * scale) @ self.head_in + self.head_bias
        is_first = pieces[:units] >= pieces[units:-2]
        chosen = np.where(is_first, self.head_in[:, :units], self.head_in[:, units:-2])
        times = np.maximum(pieces[:units], pieces[units:-2]) @ self.head_out + pieces[-2:]
        slopes: FloatArray = (chosen @ self.head_out + self.head_in[:, -2:]).T * scale
        return times, slopes


@dataclass(frozen=True, slots=True)
class CommunicationNetwork:
    """Transfer time of an all-to-all in one direction, without waiting for late starters."""

    mlp: _Mlp

    @classmethod
    def from_weights(cls, weights: Weights) -> Self:
        """Take the weights of one network by their names. Raises ValueError for shapes that do not fit."""
        mlp = _Mlp.from_weights(weights, num_inputs=len(COMMUNICATION_FEATURES))
        if mlp.around.shape[1] % NUM_LOAD_TERMS:
            raise ValueError(f"gives {mlp.around.shape[1]} outputs, expected a multiple of {NUM_LOAD_TERMS}")
        return cls(mlp=mlp)

    def coefficients_ms(self, collectives: Collectives) -> FloatArray:
        """Return [n, 3]: milliseconds of the constant and of each load term; 0 for collectives of one device."""
        outputs = self.mlp.exp(communication_features(collectives)).astype(np.float64)
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


def _product(rows: Float32Array, weights: Float32Array) -> Float32Array:
    """Return [..., n] the product of rows [..., k] and weights [k, n], bit for bit equal for any number of threads.

    How BLAS deals out rows among threads changes last digits; a block of rows is small enough for one thread.
    """
    inner, outer = weights.shape
    num_rows, block = rows.size // inner, max(1, MOST_SERIAL_PRODUCTS // (inner * outer))
    if num_rows <= block:
        small: Float32Array = rows @ weights
        return small
    flat = rows.reshape(num_rows, inner)
    result = np.empty((num_rows, outer), dtype=np.float32)
    for first in range(0, num_rows, block):
        np.matmul(flat[first : first + block], weights, out=result[first : first + block])
    return result.reshape(*rows.shape[:-1], outer)


def _take(weights: Weights, name: str, *shape: int) -> Float32Array:
    """Return one array of exactly this shape. Raises ValueError."""
    if name not in weights:
        raise ValueError(f"lacks the array {name!r}")
    array = weights[name]
    if array.shape != shape or array.dtype != np.float32:
        raise ValueError(f"has {name!r} as {array.dtype}{list(array.shape)}, expected float32{list(shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"has numbers in {name!r} that are not finite")
    return array
