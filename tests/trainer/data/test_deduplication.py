"""Lists that repeat from sample to sample, left out of a batch."""

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import HostBatch, collated
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import Feature, Jagged, Samples, SharedLists, features_of, joined
from support import builders

Lists = Sequence[Sequence[int]]


def jagged(lists: Lists) -> Jagged:
    """Return one feature's lists."""
    values = np.array([value for each in lists for value in each], dtype=np.int64)
    return Jagged.of_lengths(values, np.array([len(each) for each in lists], dtype=np.int64))


def deduplicated(
    features: Sequence[Lists], groups: Sequence[tuple[int, ...]], *, apart: Collection[int] = (), filled_to: int = 1
) -> HostBatch:
    """Return the batch of some features' lists without the repeats of groups."""
    count = len(features[0])
    names = [f"f{number}" for number in range(len(features))]
    samples = Samples(
        labels=np.zeros(count, dtype=np.float32),
        dense=np.arange(count, dtype=np.float32)[:, None],
        lookups={name: jagged(lists) for name, lists in zip(names, features, strict=True)},
    )
    collate = WithoutRepeats(groups=tuple(groups), apart=frozenset(apart), filled_to=filled_to)
    return collate([samples], features_of([builders.table(name) for name in names]))


def lists_of(found: HostBatch, feature: int) -> list[list[int]]:
    """Return the lists that are sent of a feature."""
    values = torch.split(found.values, found.values_per_feature)[feature]
    lengths = found.lengths.reshape(-1, len(found.labels))[feature]
    return [each.tolist() for each in torch.split(values, lengths.tolist())]


small_list = st.lists(st.integers(0, 1), max_size=2)
lists = st.lists(small_list, min_size=1, max_size=12)


@given(st.data())
def test_every_sample_finds_its_lists(data: st.DataObject) -> None:
    """At its first sample; groups are independent, and a feature of none keeps all lists."""
    first = data.draw(lists)
    others = [data.draw(st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=len(first), max_size=len(first)))]
    others.append([[row] for row in range(len(first))])
    made = [first, *others]

    found = deduplicated(made, [(1,), (0,)])

    assert found.first_samples is not None
    for feature, group in ((0, 1), (1, 0)):
        sent = lists_of(found, feature)
        assert [sent[row] for row in found.first_samples[group].tolist()] == made[feature]
    assert lists_of(found, 2) == made[2]


@given(lists, st.data())
def test_a_group_repeats_where_all_of_its_lists_do(one: list[list[int]], data: st.DataObject) -> None:
    """As a comparison list by list finds it."""
    other = data.draw(st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=len(one), max_size=len(one)))

    found = repeated([jagged(one), jagged(other)])

    assert found.tolist() == [
        row > 0 and (one[row], other[row]) == (one[row - 1], other[row - 1]) for row in range(len(one))
    ]


def test_repeats_are_sent_as_empty_lists() -> None:
    """The batch keeps its samples; what is sent of a group falls by its factor."""
    made = [[[5, 6]] * 3 + [[6, 5]] * 1, [[1], [2], [3], [4]]]

    found = deduplicated(made, [(0,)])

    assert lists_of(found, 0) == [[5, 6], [], [], [6, 5]]
    assert found.values_per_feature == [4, 4]
    assert found.lengths.dtype == torch.int32
    assert found.num_distinct == (2,)
    assert found.first_samples is not None
    assert found.first_samples.tolist() == [[0, 0, 0, 3]]


@pytest.mark.parametrize("every", [[], [3]], ids=["empty", "equal"])
def test_a_batch_of_one_list_sends_it_once(every: list[int]) -> None:
    """Empty lists repeat like any other."""
    found = deduplicated([[every] * 5], [(0,)])

    assert lists_of(found, 0) == [every, [], [], [], []]
    assert found.num_distinct == (1,)


@given(st.data())
def test_distinct_lists_of_a_group_are_apart(data: st.DataObject) -> None:
    """Every sample finds its lists among them; those of the other features stay, with those of a group that is not."""
    first = data.draw(lists)
    like = st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=len(first), max_size=len(first))
    second, third = data.draw(like), data.draw(like)
    made = [first, second, third]

    found = deduplicated(made, [(2,), (0,)], apart={1})

    assert found.first_samples is not None
    ((one,), own) = (found.apart, lists_of(found, 0))
    assert (one.positions, own) == ((0,), second)
    distinct = [each.tolist() for each in torch.split(one.values, one.lengths.tolist())]
    assert [distinct[row] for row in found.first_samples[1].tolist()] == first
    assert len(distinct) == found.num_distinct[1]
    assert all(each != after for each, after in pairwise(distinct))
    sent = lists_of(found, 1)
    assert [sent[row] for row in found.first_samples[0].tolist()] == third


@given(st.data())
def test_both_forms_look_up_the_same_lists(data: st.DataObject) -> None:
    """Seen by sample, the lists that are apart are those of a batch with empty lists for repeats."""
    first = data.draw(lists)
    like = st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=len(first), max_size=len(first))
    made = [data.draw(like), first]
    groups = [(1,), (0,)]

    by_sample = Batch.of(deduplicated(made, groups), ["page", "user"]).lookups_by_sample
    grouped = Batch.of(deduplicated(made, groups, apart={0}), ["page", "user"]).lookups_by_sample

    assert by_sample.keys() == grouped.keys() == ["page", "user"]
    assert torch.equal(by_sample.values(), grouped.values())
    assert torch.equal(by_sample.lengths(), grouped.lengths())


def test_lists_apart_fill_the_groups_of_codecs() -> None:
    """With empty ones behind them, which no sample has."""
    made = [[[1, 2], [1, 2], [3]], [[4], [5], [6]]]
    alone, filled = (deduplicated(made, [(0,)], apart={0}, filled_to=multiple) for multiple in (1, 4))

    assert [each.apart[0].lengths.tolist() for each in (alone, filled)] == [[2, 1], [2, 1, 0, 0]]
    assert filled.apart[0].values.tolist() == alone.apart[0].values.tolist()
    assert (filled.num_distinct, filled.first_samples.tolist()) == ((2,), [[0, 0, 1]])  # type: ignore[union-attr]
    one, other = (Batch.of(each, ["user", "page"]).lookups_by_sample for each in (alone, filled))
    assert torch.equal(one.values(), other.values())
    assert torch.equal(one.lengths(), other.lengths())


def test_a_batch_may_have_all_of_its_lists_apart() -> None:
    """Nothing is left in the batch itself."""
    made = [[[1], [1]], [[2], [2]]]

    found = Batch.of(deduplicated(made, [(0, 1)], apart={0}), ["user", "page"])

    assert found.lookups.keys() == []
    (group,) = found.group_lookups
    assert (group.keys(), group.values().tolist(), group.stride()) == (["user", "page"], [1, 2], 1)


@given(st.data())
def test_batches_of_shared_lists_are_those_of_all_lists(data: st.DataObject) -> None:
    """Whatever samples are taken from which blocks, and whether neighbors' lists are equal without being shared."""
    features = features_of([builders.table(name) for name in ("user", "page", "item")])
    plain, shared = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(1, 8))
        rows = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8)))
        of_sample = {
            name: np.cumsum([0, *data.draw(st.lists(st.integers(0, 1), min_size=count - 1, max_size=count - 1))])
            for name in ("user", "page")
        }
        distinct = {
            name: jagged(data.draw(st.lists(small_list, min_size=int(places[-1]) + 1, max_size=int(places[-1]) + 1)))
            for name, places in of_sample.items()
        }
        item = jagged(data.draw(st.lists(small_list, min_size=count, max_size=count)))
        every = {"labels": np.zeros(count, dtype=np.float32), "dense": np.zeros((count, 1), dtype=np.float32)}
        whole = {name: distinct[name].take(places) for name, places in of_sample.items()}
        kept = {name: SharedLists(lists=distinct[name], of_sample=places) for name, places in of_sample.items()}
        plain.append(Samples(**every, lookups=whole | {"item": item}).take(rows))
        shared.append(Samples(**every, lookups=kept | {"item": item}).take(rows))

    expected = by_sample(collated(plain, features), features)
    for parts in (shared, [joined(shared)]):
        assert by_sample(collated(parts, features), features) == expected
        for groups, apart in ((((0, 1),), ()), (((1,), (0, 2)), (1,))):
            found = WithoutRepeats(groups=groups, apart=frozenset(apart))(parts, features)
            assert by_sample(found, features, groups) == expected


def by_sample(
    found: HostBatch, features: Sequence[Feature], groups: Sequence[Sequence[int]] = ()
) -> dict[str, list[list[int]]]:
    """Return the lists of every sample by feature, wherever the batch has them."""
    keys = [feature.name for feature in features]
    sent = Batch.of(found, keys).lookups_by_sample.to_dict()
    lists = {name: [each.tolist() for each in sent[name].to_dense()] for name in keys}
    for members, places in zip(groups, () if found.first_samples is None else found.first_samples, strict=True):
        firsts = np.flatnonzero(np.diff(places.numpy(), prepend=-1))
        first = firsts[np.searchsorted(firsts, range(len(places)), side="right") - 1]
        lists |= {keys[position]: [lists[keys[position]][place] for place in first] for position in members}
    return lists
