"""Made-up samples."""

import hashlib
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.document import validated
from neuroshard_api.job.training import SESSION_BLOCK_SAMPLES, SyntheticSessions
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import shuffled_runs
from neuroshard_trainer.data.source import BLOCK_SAMPLES, require_valid
from neuroshard_trainer.data.synthetic import SyntheticSource, zipf_ranks
from support import builders
from support.trainer.trainer_builders import TABLES


def source(num_samples: int = 10_000, seed: int = 0, sessions: SyntheticSessions | None = None) -> SyntheticSource:
    """Return made-up samples for the small tables."""
    return SyntheticSource(
        builders.table_set(*TABLES),
        features_of(TABLES),
        num_dense=3,
        num_samples=num_samples,
        seed=seed,
        sessions=sessions,
    )


def in_sessions(*groups: tuple[list[str], str], **fields: Any) -> SyntheticSessions:
    """Return sessions in which groups of features change with a probability."""
    said = [{"features": features, "changeProbability": chance} for features, chance in groups]
    return validated(SyntheticSessions, {"groups": said, **fields}, where="sessions")


def test_blocks_can_be_read_again_and_in_any_order() -> None:
    """A block is a function of the seed and its number."""
    first, second = source().read(2), source().read(2)

    np.testing.assert_array_equal(first.lookups["user"].values, second.lookups["user"].values)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert sum(source().block_sizes) == 10_000
    assert not np.array_equal(first.labels, source(seed=1).read(2).labels)


def test_lookups_have_the_tables_statistics() -> None:
    """Ids exist, and the mean number of lookups is the pooling factor."""
    made = source()
    block = made.read(0)

    require_valid(block, features_of(TABLES), made, 0, np.arange(len(block)))
    assert block.lookups["user"].lengths.mean() == pytest.approx(2.5, abs=0.05)
    assert set(block.lookups["user"].lengths) == {2, 3}
    assert set(block.lookups["item"].lengths) == {1}


@pytest.mark.parametrize("exponent", [0.0, 0.85, 1.0, 1.3])
def test_ranks_follow_zipf(exponent: float) -> None:
    """The shares of the ranges 1-10 and 1-100 are those of the integral that stands for the sum."""
    ranks = zipf_ranks(np.random.default_rng(0).random(200_000), 1000, exponent)

    def mass(end: float) -> float:
        return float(np.log(end)) if exponent == 1 else (end ** (1 - exponent) - 1) / (1 - exponent)

    assert ranks.min() >= 0
    assert ranks.max() < 1000
    for top in (10, 100):
        assert (ranks < top).mean() == pytest.approx(mass(top + 1) / mass(1001), abs=0.01)


def test_tables_of_any_size_are_possible() -> None:
    """Nothing is as long as the table, and no id overflows."""
    table = builders.table("vast", num_embeddings=10**13)
    made = SyntheticSource(builders.table_set(table), features_of((table,)), num_dense=1, num_samples=1000, seed=0)

    values = made.read(0).lookups["vast"].values

    assert values.min() >= 0
    assert values.max() < 10**13
    assert len(np.unique(values)) > 100


def test_labels_hold_a_signal() -> None:
    """Each id decides some of the label, so that ids seen in one half of the samples predict the other half."""
    block = source().read(0)
    country = block.lookups["country"].values
    half = len(country) // 2

    rates = np.array([block.labels[:half][country[:half] == value].mean() for value in range(7)])
    likely = rates[country[half:]] > np.median(rates)

    assert block.labels[half:][likely].mean() > block.labels[half:][~likely].mean() + 0.1


def test_samples_without_sessions_are_those_of_earlier_releases() -> None:
    """Bit by bit: a job that is resumed goes on with the data that it began with."""
    block = source(1000).read(0)
    parts: list[Any] = [block.labels, block.dense, *(each.values for each in block.lookups.values())]

    assert hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16] == "668bc00be535290a"


def test_lists_of_a_group_change_together_and_with_their_probability() -> None:
    """Within a session, at a tenth of the samples; features of no group are drawn for each sample."""
    made = source(4096, sessions=in_sessions((["user", "country"], "0.1"), samplesPerSession=20))
    block, sessions = made.read(0), made.sessions(0)
    order = np.lexsort((sessions.times, sessions.ids))
    ids = sessions.ids[order]
    lists = {name: jagged.take(order).by_sample for name, jagged in block.lookups.items()}

    def changes(name: str) -> np.ndarray[Any, Any]:
        cut = np.split(lists[name].values, lists[name].offsets[1:-1])
        return np.array([not np.array_equal(*pair) for pair in zip(cut[1:], cut[:-1], strict=True)])

    within = ids[1:] == ids[:-1]
    assert changes("user")[within].mean() == pytest.approx(0.1, abs=0.015)
    assert (changes("country") & within <= changes("user")).all()
    assert changes("item")[within].mean() > 0.8


def test_sessions_interleave_and_have_the_mean_samples() -> None:
    """Each of the open sessions goes on until it ends; a block's last ones are cut off."""
    made = source(4096, sessions=in_sessions((["user"], "1"), samplesPerSession=8, concurrency=32))
    ids = made.sessions(0).ids

    assert len(set(ids.tolist())) == pytest.approx(32 + (4096 - 32) / 8, rel=0.06)
    assert (ids[1:] == ids[:-1]).mean() < 0.1
    assert not set(ids.tolist()) & set(source(8192, sessions=in_sessions((["user"], "1"))).sessions(1).ids.tolist())


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([(["user"], "1"), (["shop"], "1")], r"groups\[1\].features: the model has no feature 'shop'"),
        ([(["user"], "1"), (["item", "user"], "1")], r"groups\[1\].features: 'user' is in groups\[0\] already"),
    ],
    ids=["unknown", "twice"],
)
def test_groups_have_features_of_the_model(groups: Any, expected: str) -> None:
    """Each in one group."""
    with pytest.raises(DataError, match=expected):
        source(sessions=in_sessions(*groups))


@pytest.mark.parametrize("run", [1, 3, 8, 0])
@pytest.mark.parametrize(
    ("chance", "length", "concurrency"),
    [
        ("0.02", "12", 20),
        ("0.4", "12", 20),
        ("0.02", "12", BLOCK_SAMPLES),
        ("0.000001", "1000000", 4),
        ("0.05", "1000000", 4),
        ("0.05", "300", 2),
    ],
)
def test_the_factor_of_sessions_is_that_of_their_runs(run: int, chance: str, length: str, concurrency: int) -> None:
    """As training finds it in a shuffled block, where runs of few sessions often follow one of their own.

    SyntheticSessions computes it from its parameters alone.
    """
    drawn = in_sessions((["user"], chance), samplesPerSession=length, concurrency=concurrency)
    made = source(40 * BLOCK_SAMPLES, sessions=drawn)
    distinct = 0
    for block in range(40):
        sessions = made.sessions(block)
        rows = np.arange(BLOCK_SAMPLES)
        ordered = shuffled_runs(rows, sessions.ids, sessions.times, run=run, rng=np.random.default_rng(block))
        distinct += int(np.count_nonzero(~repeated([made.read(block).lookups["user"].take(ordered).by_sample])))

    assert drawn.factor(drawn.groups[0], run=run) == pytest.approx(40 * BLOCK_SAMPLES / distinct, rel=0.02)
    assert SESSION_BLOCK_SAMPLES == BLOCK_SAMPLES
