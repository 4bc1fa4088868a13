"""The counts of one model at several batch sizes, of which most follow from others.

Operations are as many at each size, and their work is a constant and a part for each sample. So is the memory at each
moment of a step; what is counted is that of the highest moment:

    memory(samples) = highest of all (constant + samples * bytes)

That is a convex function of the samples: where three of its points are on one line, all between them are. So the
smallest size, the largest, and one between them are counted, and the others are between those, exactly. Where the third
is off the line, another moment is the highest of small batches than of large ones; both halves are counted likewise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuroshard_api.documents.dense_profile import DenseProfile


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A dense part, with what else the counted step showed."""

    profile: DenseProfile
    forward_working_bytes: int
    """The profile's working bytes in the forward pass alone."""
    kept_bytes: int
    """What it leaves for the backward pass."""
    received_bytes: int
    """Embeddings that a device receives for its samples."""


def counts_by_size(
    count: Callable[[int], Counted], sizes: Sequence[int], *, known: Mapping[int, Counted] | None = None
) -> dict[int, Counted]:
    """Return the count of a model at each batch size.

    Args:
        count: counts at one size.
        sizes: in any order.
        known: earlier counts of the model, which are not counted again.
    """
    ascending = sorted(set(sizes))
    found = dict(known or {})

    def take(size: int) -> Counted:
        if size not in found:
            found[size] = count(size)
        return found[size]

    def fill(inner: Sequence[int], first: int, last: int) -> None:
        inner = [size for size in inner if first < size < last and size not in found]
        if not inner:
            return
        middle = inner[len(inner) // 2]
        if take(middle) == _between(take(first), take(last), middle):
            lines = {size: _between(found[first], found[last], size) for size in inner}
            found.update({size: each for size, each in lines.items() if each is not None})
        fill(inner, first, middle)
        fill(inner, middle, last)

    fill(ascending, ascending[0], ascending[-1])
    return {size: take(size) for size in ascending}


def _between(first: Counted, last: Counted, size: int) -> Counted | None:
    """Return the count on the line between two others. None: they are of other units, or numbers are not whole."""
    begin, end = first.profile.batch_size_per_device, last.profile.batch_size_per_device

    def line(one: Any, other: Any) -> Any:  # noqa: ANN401 - of any field
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            return {name: line(each, other[name]) for name, each in one.items()}
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            return tuple(map(line, one, other))
        if one == other:
            return one
        if type(one) is int and type(other) is int:
            rise, rest = divmod((other - one) * (size - begin), end - begin)
            if not rest:
                return one + rise
        raise _NoLineError

    try:
        return Counted(
            profile=DenseProfile.model_validate(line(first.profile.model_dump(), last.profile.model_dump())),
            forward_working_bytes=line(first.forward_working_bytes, last.forward_working_bytes),
            kept_bytes=line(first.kept_bytes, last.kept_bytes),
            received_bytes=line(first.received_bytes, last.received_bytes),
        )
    except _NoLineError:
        return None


class _NoLineError(ValueError):
    """Two counts have no line between them."""
