"""Reader processes: the same batches as without them, and a sentence where one fails."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.process.errors import DataError, PeerLostError
from neuroshard_cluster.waiting import eventually
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.readers import Readers, num_readers, start_server
from neuroshard_trainer.data.samples import features_of
from support.processes import has_ended
from support.trainer.data_builders import CRITEO_TABLES, criteo_file, criteo_line
from support.trainer.ending_batches import Ending
from support.trainer.rank_server import RankServer, output
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

pytestmark = pytest.mark.slow
FEATURES = features_of(CRITEO_TABLES)
POSITIONS = range(0, 160, 16)
CPU = torch.device("cpu")


def maker(folder: Path, file: DataFile) -> BatchMaker:
    """Return the batches of a Criteo file."""
    source = CriteoSource([file], FEATURES, num_dense=13, spare=folder)
    order = SampleOrder(source.block_sizes, validation_percent=10, seed=0, shuffle=True)
    return BatchMaker(source, order, FEATURES, rank=0, world_size=1, batch_size=16)


def readers(num_processes: int, *, timeout_seconds: float = 60) -> Readers:
    """Return that many readers."""
    start_server()
    keys = [feature.name for feature in FEATURES]
    return Readers(num_processes=num_processes, keys=keys, pin_memory=False, timeout_seconds=timeout_seconds)


@pytest.mark.parametrize("num_processes", [1, 3])
def test_batches_do_not_depend_on_the_readers(tmp_path: Path, num_processes: int) -> None:
    """Nor their order, over the end of an epoch, too."""
    made = maker(tmp_path, criteo_file(tmp_path, 100))
    alone = list(readers(0).batches(made.training, POSITIONS, CPU))

    found = list(readers(num_processes).batches(made.training, POSITIONS, CPU))

    assert len(found) == len(POSITIONS)
    for batch, expected in zip(found, alone, strict=True):
        assert torch.equal(batch.lookups.values(), expected.lookups.values())
        assert torch.equal(batch.labels, expected.labels)
        assert batch.lookups.length_per_key() == expected.lookups.length_per_key()


def test_a_data_error_of_a_reader_is_raised_as_it_is(tmp_path: Path) -> None:
    """With the line, and no traceback in its text."""
    path = tmp_path / "day_0.tsv"
    path.write_text("".join(f"{criteo_line(cat_3='xyz' if number == 7 else '0a')}\n" for number in range(100)))

    sentence = (
        r"^\S+day_0.tsv line 8: column cat_3: expected a hexadecimal hash.*'xyz'; hint: correct or drop the line$"
    )
    with pytest.raises(DataError, match=sentence):
        list(readers(2).batches(maker(tmp_path, DataFile(str(path))).training, POSITIONS, CPU))
    assert not torch.multiprocessing.active_children()


@pytest.mark.parametrize(
    ("end", "timeout_seconds", "kind", "expected"),
    [
        ("killed", 60, PeerLostError, r"reader process \d+ of this rank was killed.*readerProcesses"),
        ("stuck", 3, PeerLostError, r"no batch was read within spec.experimental.rendezvous.timeoutSeconds"),
        ("a bug", 60, KeyError, "a bug"),
    ],
    ids=["killed", "stuck", "bug"],
)
def test_a_reader_that_ends_is_a_sentence(
    tmp_path: Path, end: str, timeout_seconds: float, kind: type[Exception], expected: str
) -> None:
    """Not a hang; a bug keeps its own error; the other readers end with it."""
    made = Ending(maker(tmp_path, criteo_file(tmp_path, 100)), POSITIONS[4], end)

    with pytest.raises(kind, match=expected):
        list(readers(2, timeout_seconds=timeout_seconds).batches(made, POSITIONS, CPU))
    assert not torch.multiprocessing.active_children()


def test_a_reader_that_dies_while_it_hands_over_a_batch_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is asked for at a socket of its own, which is then reset."""

    def reset(loader: Any, _timeout: float) -> None:
        loader._workers[0].kill()
        loader._workers[0].join()
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", reset)
    with pytest.raises(PeerLostError, match=r"reader process \d+ of this rank was killed"):
        list(readers(2).batches(maker(tmp_path, criteo_file(tmp_path, 100)).training, POSITIONS, CPU))


def test_readers_end_with_who_takes_no_more_batches(tmp_path: Path) -> None:
    """Though they read ahead."""
    batches = readers(2).batches(maker(tmp_path, criteo_file(tmp_path, 100)).training, POSITIONS, CPU)
    next(batches)
    batches.close()
    assert not torch.multiprocessing.active_children()


@pytest.mark.parametrize(
    ("wanted", "on_cpu", "num_ranks", "num_cores", "expected"),
    [
        (None, True, 2, 2, 0),
        (None, True, 1, 2, 1),
        (None, True, 3, 2, 0),
        (None, True, 2, 7, 2),
        (None, True, 1, 64, 2),
        (None, False, 8, 8, 2),
        (3, True, 2, 2, 3),
        (0, False, 1, 64, 0),
    ],
)
def test_readers_take_the_cores_that_ranks_leave(
    wanted: int | None, num_ranks: int, num_cores: int, expected: int, *, on_cpu: bool
) -> None:
    """A rank on a CPU takes a core; a GPU's rank has two readers; a job that says how many gets them."""
    assert num_readers(wanted, on_cpu=on_cpu, num_ranks=num_ranks, num_cores=num_cores) == expected


@pytest.mark.processes
def test_readers_give_way_to_their_rank_and_end_with_it(tmp_path: Path, ranks: RankServer) -> None:
    """The rank has a core first, and none of them outlives it when it is killed."""
    worker = Path(__file__).with_name("readers_rank.py")
    ended = ranks.run(f"{worker}:main", tmp_path, folder=tmp_path, count=1)

    assert list(ended.codes) == [-signal.SIGKILL], output(tmp_path, 0)
    printed = re.search(r"^(\d+) (\d+)$", output(tmp_path, 0), re.MULTILINE)
    assert printed is not None, output(tmp_path, 0)
    assert "give way: True True" in output(tmp_path, 0)
    pids = [int(pid) for pid in printed.groups()]
    eventually("the readers have ended", lambda: all(has_ended(pid) for pid in pids), within_s=60)


def test_sigterm_leaves_the_readers_alive(tmp_path: Path) -> None:
    """Who stops a training sends it to all processes; the batches before the checkpoint are still read."""
    batches = readers(1).batches(maker(tmp_path, criteo_file(tmp_path, 100)).training, POSITIONS, CPU)
    first = next(batches)
    (child,) = torch.multiprocessing.active_children()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)

    assert len([first, *batches]) == len(POSITIONS)
