"""Statistics of inputs, and when they are others than before."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.job.training import SyntheticGroup, SyntheticSessions
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions
from neuroshard_trainer.data.synthetic import SyntheticSource, zipf_ranks
from neuroshard_trainer.drift.input_statistics import (
    FeatureCounts,
    InputDrift,
    counts_of,
    has_moved,
    reuse_histograms,
    statistics_of,
)
from neuroshard_trainer.ranks.run_identity import RunIdentity
from support import builders
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES = 2048
ROWS = 1_000_000
RUN = RunIdentity(source="cpu:test", plan_sha256="0" * 64)
Lists = list[list[int]]


def lookups(**features: Sequence[Sequence[int]]) -> KeyedJaggedTensor:
    """Return a batch of lists of rows, by feature."""
    every = [each for lists in features.values() for each in lists]
    return KeyedJaggedTensor(
        keys=list(features),
        values=torch.tensor([row for each in every for row in each], dtype=torch.int64),
        lengths=torch.tensor([len(each) for each in every], dtype=torch.int32),
    )


def counted(lists: Sequence[Sequence[int]]) -> FeatureCounts:
    """Return the counts of lists of rows."""
    return counts_of(lookups(item=lists))["item"]


def batch(
    seed: int,
    *,
    pooling: int = 10,
    exponent: float = 0.85,
    samples: int = SAMPLES,
    counted_samples: int | None = None,
) -> dict[str, FeatureCounts]:
    """Return the counts of a batch with Zipf-distributed lookups."""
    rows = zipf_ranks(np.random.default_rng(seed).random(samples * pooling), ROWS, exponent)
    kept = KeyedJaggedTensor(
        keys=["item"], values=torch.from_numpy(rows), lengths=torch.full((samples,), pooling, dtype=torch.int32)
    )
    return counts_of(kept, counted_samples=counted_samples)


def drift() -> InputDrift:
    """Return the comparison with two usual batches."""
    return InputDrift(statistics_of([batch(0), batch(1)], run=RUN, first_step=0, last_step=100))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=30))
def test_counts_are_those_of_sets(lists: Lists) -> None:
    """Of rows, and of lists with their order and repetitions."""
    assert counted(lists) == FeatureCounts(
        samples=len(lists),
        lookups=sum(map(len, lists)),
        filled_lists=sum(map(bool, lists)),
        counted_samples=len(lists),
        counted_lookups=sum(map(len, lists)),
        distinct_rows=len({row for each in lists for row in each}),
        distinct_lists=len({tuple(each) for each in lists}),
        lowest_row=min((row for each in lists for row in each), default=0),
        highest_row=max((row for each in lists for row in each), default=0),
        most_lookups=max(Counter(row for each in lists for row in each).values(), default=0),
    )


def test_a_batch_is_counted_by_feature() -> None:
    """As TorchRec holds it, with samples that look nothing up."""
    found = KeyedJaggedTensor(
        keys=["user", "item"], values=torch.tensor([7, 7, 1, 2, 1, 2]), lengths=torch.tensor([1, 0, 1, 2, 2, 0])
    )

    assert counts_of(found) == {"user": counted([[7], [], [7]]), "item": counted([[1, 2], [1, 2], []])}


def test_lists_that_neighbors_share_are_alike() -> None:
    """By feature: of eight samples in runs of four there are two runs, where an order that is drawn has five."""
    found = counts_of(lookups(user=[[1, 2]] * 4 + [[2, 1]] * 4, item=[[1], [2]] * 4))

    assert (found["user"].are_alike, found["item"].are_alike) == (2.5, 1.0)


def test_distinct_rows_and_lists_are_those_of_the_first_samples() -> None:
    """Lookups are those of the whole batch, which cost nothing to count."""
    found = counts_of(lookups(user=[[1], [1], [2]], item=[[3, 4], [5], [6, 7, 8]]), counted_samples=2)

    whole = {"samples": 3, "filled_lists": 3, "counted_samples": 2}
    assert found["user"] == FeatureCounts(
        **whole,
        lookups=3,
        counted_lookups=2,
        distinct_rows=1,
        distinct_lists=1,
        lowest_row=1,
        highest_row=1,
        most_lookups=2,
    )
    assert found["item"] == FeatureCounts(
        **whole,
        lookups=6,
        counted_lookups=3,
        distinct_rows=3,
        distinct_lists=2,
        lowest_row=3,
        highest_row=5,
        most_lookups=1,
    )


def test_reuse_is_the_share_of_rows_by_hits() -> None:
    """In the bins of table sets: one hit, two, three and four, five to eight."""
    found = reuse_histograms(
        lookups(user=[[9]], item=[[1, 1, 1, 2, 2, 3, 4, 5, 5, 5, 5, 5]], none=[[]]), ["item", "none"]
    )

    assert list(found) == ["item"]
    assert found["item"].tolist() == [0.4, 0.2, 0.2, 0.2] + 13 * [0.0]


def test_statistics_are_means_over_batches() -> None:
    """By samples and by lookups, not by batches."""
    batches = [{"item": counted([[1, 1], [1, 1]])}, {"item": counted([[1, 2], [3, 4]])}]

    found = statistics_of(batches, run=RUN, first_step=3, last_step=103)

    (item,) = found.features
    assert (found.batch_size, found.num_batches, found.first_step, found.last_step) == (2, 2, 3, 103)
    assert item.lookups_per_sample == 2.0
    assert item.distinct_rows_per_lookup == pytest.approx(5 / 8)
    assert item.distinct_lists_per_sample == pytest.approx(3 / 4)


def test_few_counted_samples_raise_no_alarm_by_their_noise() -> None:
    """Of 64 samples, over 200 sampled batches."""
    first = [batch(seed, counted_samples=64) for seed in range(3)]
    watching = InputDrift(statistics_of(first, run=RUN, first_step=0, last_step=2))

    assert not any(watching.add(batch(seed, counted_samples=64)) for seed in range(100, 300))


def test_lookups_that_are_drawn_have_changed_in_fewer_than_one_of_1000() -> None:
    """Lists of 64 samples, as few as are counted, with Poisson numbers of rows: 20 references, 40 batches of each."""
    rng, found = np.random.default_rng(3), 0

    def drawn() -> dict[str, FeatureCounts]:
        lengths = rng.poisson(np.repeat((0.5, 1.0, 2.0, 5.0, 5.0), 64)).astype(np.int32)
        rows = (100_000 * rng.random(int(lengths.sum())) ** 4).astype(np.int64)
        keys = [f"f{number}" for number in range(5)]
        return counts_of(KeyedJaggedTensor(keys=keys, values=torch.from_numpy(rows), lengths=torch.from_numpy(lengths)))

    for _ in range(20):
        watching = InputDrift(statistics_of([drawn() for _ in range(3)], run=RUN, first_step=0, last_step=2))
        found += sum(len(watching.add(drawn())) for _ in range(40))

    assert found <= 20 * 40 * 5 / 1000


@pytest.mark.parametrize("changed", [{"pooling": 13}, {"pooling": 8}, {"exponent": 0.95}, {"exponent": 0.75}], ids=str)
def test_pooling_and_skew_are_found_at_the_second_batch(changed: dict[str, float]) -> None:
    """One batch alone may be odd."""
    watching = drift()

    assert watching.add(batch(10, **changed)) == ()  # type: ignore[arg-type] # pooling is whole
    assert watching.add(batch(11, **changed)) == ("item",)  # type: ignore[arg-type]
    assert watching.add(batch(12)) == ()


def test_usual_batches_raise_no_alarm() -> None:
    """Over 50 sampled batches, which are 5,000 steps."""
    watching = drift()

    assert not any(watching.add(batch(seed)) for seed in range(100, 150))


def session_batch(seed: int, change: str, *, repeats_left_out: bool) -> dict[str, FeatureCounts]:
    """Return the counts of a batch of sessions, in runs of 8, whose lists change with a chance at each sample."""
    table = builders.table("item", num_embeddings=ROWS, pooling_factor=10.0)
    sessions = SyntheticSessions(
        samples_per_session="16", groups=(SyntheticGroup(features=("item",), change_probability=change),)
    )
    source = SyntheticSource(
        builders.table_set(table), features_of((table,)), num_dense=1, num_samples=4096, seed=seed, sessions=sessions
    )
    order = SampleOrder(
        source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=Sessions(source=source, run=8)
    )
    maker = BatchMaker(source, order, features_of((table,)), rank=0, world_size=1, batch_size=SAMPLES)
    made = maker.collating(WithoutRepeats(groups=((0,),))) if repeats_left_out else maker
    return counts_of(Batch.of(made.training(0), ["item"]).lookups)


@pytest.mark.parametrize("repeats_left_out", [True, False])
def test_another_duplication_factor_is_found_and_its_noise_is_not(*, repeats_left_out: bool) -> None:
    """Whether repeats are left out, where lookups vary with the number of distinct lists, or sent."""
    first = [session_batch(seed, "0.1", repeats_left_out=repeats_left_out) for seed in range(3)]
    watching = InputDrift(statistics_of(first, run=RUN, first_step=0, last_step=2))

    usual = [session_batch(seed, "0.1", repeats_left_out=repeats_left_out) for seed in range(100, 130)]
    assert not any(map(watching.add, usual))
    other = [session_batch(seed, "0.5", repeats_left_out=repeats_left_out) for seed in range(2)]
    assert [watching.add(each) for each in other] == [(), ("item",)]


def test_another_batch_size_shows_nothing() -> None:
    """The last batch of an epoch is smaller, and has more distinct rows per lookup."""
    watching = drift()

    assert not any(watching.add(batch(seed, samples=500)) for seed in range(5))


def test_a_feature_without_lookups_is_no_error() -> None:
    """It changed once it had some, and stays the same while it has none."""
    empty = {"item": counted([[]] * 8)}
    watching = InputDrift(statistics_of([empty], run=RUN, first_step=0, last_step=0))

    assert watching.add(empty) == watching.add(empty) == ()
    full = {"item": counted([[each] for each in range(8)])}
    assert [watching.add(full) for _ in range(2)] == [(), ("item",)]


def test_statistics_pass_through_their_document() -> None:
    """As another process reads them."""
    written = statistics_of([batch(0)], run=RUN, first_step=0, last_step=0)

    assert type(written).from_json(written.to_json()) == written


@pytest.mark.parametrize(("lists", "most"), [(64, 30), (900, 30), (4096, 0)])
def test_lookups_that_are_drawn_have_changed_in_one_of_1000_pairs_of_batches_at_most(lists: int, most: int) -> None:
    """Of 30,000 features, against the mean of three batches; in none where a batch has 4,096 lists."""
    rng = np.random.default_rng(lists)
    before = rng.poisson(lists, size=(30_000, 3)).mean(axis=1) / lists
    pairs = rng.poisson(lists, size=(30_000, 2)) / lists

    moved = sum(
        all(has_moved(usual, now, lists) for now in pair)
        for usual, pair in zip(before.tolist(), pairs.tolist(), strict=True)
    )

    assert moved <= most
