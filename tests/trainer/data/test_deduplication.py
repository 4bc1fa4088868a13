"""Lists that repeat from sample to sample, left out of a batch."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import HostBatch
from neuroshard_trainer.data.deduplication import Deduplicated, deduplicated
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import Jagged

Lists = Sequence[Sequence[int]]


def jagged(lists: Lists) -> Jagged:
    """Return one feature's lists."""
    values = np.array([value for each in lists for value in each], dtype=np.int64)
    return Jagged.of_lengths(values, np.array([len(each) for each in lists], dtype=np.int64))


def batch(*features: Lists) -> HostBatch:
    """Return the lists of some features."""
    count = len(features[0])
    made = [jagged(lists) for lists in features]
    return HostBatch(
        dense=torch.arange(count).float()[:, None],
        values=torch.from_numpy(np.concatenate([each.values for each in made])),
        lengths=torch.from_numpy(np.concatenate([each.lengths for each in made])),
        values_per_feature=[len(each.values) for each in made],
        labels=torch.zeros(count),
        num_real=count,
    )


def lists_of(found: HostBatch, feature: int) -> list[list[int]]:
    """Return the lists that are sent of a feature."""
    values = torch.split(found.values, found.values_per_feature)[feature]
    lengths = found.lengths.reshape(-1, len(found.labels))[feature]
    return [each.tolist() for each in torch.split(values, lengths.tolist())]


lists = st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=1, max_size=12)


@given(st.data())
def test_every_sample_finds_its_lists(data: st.DataObject) -> None:
    """At its first sample; groups are independent, and a feature of none keeps all lists."""
    first = data.draw(lists)
    others = [data.draw(st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=len(first), max_size=len(first)))]
    others.append([[row] for row in range(len(first))])
    made = batch(first, *others)

    found = deduplicated(made, [(1,), (0,)])

    assert found.first_samples is not None
    for feature, group in ((0, 1), (1, 0)):
        sent = lists_of(found, feature)
        assert [sent[row] for row in found.first_samples[group].tolist()] == lists_of(made, feature)
    assert lists_of(found, 2) == lists_of(made, 2)


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
    made = batch([[5, 6]] * 3 + [[6, 5]] * 1, [[1], [2], [3], [4]])

    found = deduplicated(made, [(0,)])

    assert lists_of(found, 0) == [[5, 6], [], [], [6, 5]]
    assert found.values_per_feature == [4, 4]
    assert found.lengths.dtype == torch.int32
    assert found.num_distinct == (2,)
    assert found.first_samples is not None
    assert found.first_samples.tolist() == [[0, 0, 0, 3]]
    assert found.dense is made.dense


@pytest.mark.parametrize("every", [[], [3]], ids=["empty", "equal"])
def test_a_batch_of_one_list_sends_it_once(every: list[int]) -> None:
    """Empty lists repeat like any other."""
    found = deduplicated(batch([every] * 5), [(0,)])

    assert lists_of(found, 0) == [every, [], [], [], []]
    assert found.num_distinct == (1,)


@given(st.data())
def test_distinct_lists_of_a_group_are_apart(data: st.DataObject) -> None:
    """Every sample finds its lists among them; those of the other features stay, with those of a group that is not."""
    first = data.draw(lists)
    like = st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=len(first), max_size=len(first))
    second, third = data.draw(like), data.draw(like)
    made = batch(first, second, third)

    found = deduplicated(made, [(2,), (0,)], apart={1})

    assert found.first_samples is not None
    ((one,), (own,)) = (found.apart, [lists_of(found, 0)])
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
    made = batch(data.draw(like), first)
    groups = [(1,), (0,)]

    by_sample = Batch.of(deduplicated(made, groups), ["page", "user"]).lookups_by_sample
    grouped = Batch.of(deduplicated(made, groups, apart={0}), ["page", "user"]).lookups_by_sample

    assert by_sample.keys() == grouped.keys() == ["page", "user"]
    assert torch.equal(by_sample.values(), grouped.values())
    assert torch.equal(by_sample.lengths(), grouped.lengths())


def test_a_batch_may_have_all_of_its_lists_apart() -> None:
    """Nothing is left in the batch itself."""
    made = batch([[1], [1]], [[2], [2]])

    found = Batch.of(deduplicated(made, [(0, 1)], apart={0}), ["user", "page"])

    assert found.lookups.keys() == []
    (group,) = found.group_lookups
    assert (group.keys(), group.values().tolist(), group.stride()) == (["user", "page"], [1, 2], 1)


def test_batches_of_a_position_are_deduplicated() -> None:
    """In the process that makes them."""
    made = batch([[1], [1]])

    found = Deduplicated(make=lambda position: made if position == 7 else batch([[0]]), groups=((0,),))(7)

    assert lists_of(found, 0) == [[1], []]
