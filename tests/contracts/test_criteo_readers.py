"""``neuroshard stats`` counts in a Criteo file what the trainer looks up in it."""

from pathlib import Path

import numpy as np
import pytest
from neuroshard_profiler.data.files import open_data
from neuroshard_profiler.data.statistics import data_statistics
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.criteo_lines import FEATURES
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.samples import features_of
from support import builders

NUM_SAMPLES = 500
NUM_ROWS = 2**40  # so that no two hashes meet in one row


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in which every feature misses some hashes, one feature more than the other."""
    rng = np.random.default_rng(0)
    cells = [
        [f"{rng.integers(0, 300):08x}" if rng.random() > feature / 30 else "" for feature in range(len(FEATURES))]
        for _ in range(NUM_SAMPLES)
    ]
    path = tmp_path / "day_0.tsv"
    path.write_text("".join("\t".join(["0", *["3"] * 13, *line]) + "\n" for line in cells), encoding="utf-8")
    return path


def test_statistics_and_training_see_the_same_lookups(file: Path) -> None:
    """Equal lookups per sample and equal distinct rows, feature by feature."""
    data = open_data(str(file), data_format=None, features=(), session=None)
    counted = data_statistics(data.batches(128), batch_size=128, ids_are_rows=data.ids_are_rows)
    tables = [builders.table(name, num_embeddings=NUM_ROWS) for name in FEATURES]
    source = CriteoSource([DataFile(str(file))], features_of(tables), num_dense=13, spare=file.parent)
    trained = source.read(0).lookups

    assert [each.name for each in counted.features] == list(trained)
    for each in counted.features:
        looked_up = trained[each.name].values
        assert each.pooling_factor == len(looked_up) / NUM_SAMPLES
        assert each.num_rows == len(np.unique(looked_up))
