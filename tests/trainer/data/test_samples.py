"""Jagged arrays and samples."""

import numpy as np
import pytest
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.data.samples import Jagged, features_of, joined
from support import builders
from support.trainer.trainer_builders import samples


def as_lists(jagged: Jagged) -> list[list[int]]:
    """Return each sample's lookups."""
    return [
        jagged.values[start:end].tolist() for start, end in zip(jagged.offsets[:-1], jagged.offsets[1:], strict=True)
    ]


def test_samples_are_taken_in_any_order() -> None:
    """A row comes with all its lookups, also with none, and may come twice."""
    jagged = Jagged.of_lengths(np.array([1, 2, 3, 4]), np.array([2, 0, 1, 1]))

    assert as_lists(jagged.take(np.array([2, 0, 1, 0]))) == [[3], [1, 2], [], [1, 2]]
    assert as_lists(jagged.take(np.array([], dtype=np.int64))) == []


def test_joined_parts_are_the_whole() -> None:
    """Cutting and joining changes nothing."""
    whole = samples(20, ("a", "b"))

    again = joined([whole.take(np.arange(7)), whole.take(np.arange(7, 20))])

    assert as_lists(again.lookups["b"].by_sample) == as_lists(whole.lookups["b"].by_sample)
    np.testing.assert_array_equal(again.dense, whole.dense)
    np.testing.assert_array_equal(again.labels, whole.labels)


def test_a_table_shares_its_lookups_among_its_features() -> None:
    """The pooling factor is of the table."""
    table = builders.table("words", feature_names=("title", "body"), pooling_factor=3.0)

    assert [(feature.name, feature.pooling_factor) for feature in features_of((table,))] == [
        ("title", 1.5),
        ("body", 1.5),
    ]


def test_two_tables_for_one_feature_are_refused() -> None:
    """The sentence names both."""
    tables = (builders.table("a", feature_names=("x",)), builders.table("x"))

    with pytest.raises(InputError, match="'a' and 'x' both look up feature 'x'"):
        features_of(tables)
