"""Batches of ids: for each feature how many ids each sample has, and all ids one after the other. Reads no files."""

from collections.abc import Mapping
from dataclasses import dataclass

from neuroshard_costs.shards import IndexArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Jagged:
    """One feature of a batch."""

    lengths: IndexArray
    """[samples]"""
    ids: IndexArray
    """[sum of lengths]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataBatch:
    """Consecutive samples."""

    num_samples: int
    features: Mapping[str, Jagged]
    sessions: IndexArray | None
    """[samples] a number for each session. None: the data names none."""
