"""The index of a text file's lines: kept next to it, used again, and refused where it is of another file."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.line_index import INDEX_SUFFIX, LINES_PER_BLOCK, index_of
from support.trainer.data_builders import criteo_file, criteo_text


def place_of(file: DataFile) -> Path:
    """Return the path of a file's index."""
    return Path(file.place + INDEX_SUFFIX)


@pytest.mark.parametrize("end", ["\n", ""], ids=["newline at the end", "none"])
@given(count=st.integers(1, 3 * LINES_PER_BLOCK + 1))
def test_blocks_are_whole_lines(tmp_path_factory: pytest.TempPathFactory, count: int, end: str) -> None:
    """Each block but the last has LINES_PER_BLOCK of them, and together they are the file."""
    folder = tmp_path_factory.mktemp("index")
    text = "\n".join(str(number) for number in range(count)).encode() + end.encode()
    path = folder / "lines.tsv"
    path.write_bytes(text)

    index = index_of(DataFile(str(path)), spare=folder)

    blocks = [text[begin:end] for begin, end in zip(index.offsets[:-1], index.offsets[1:], strict=True)]
    assert b"".join(blocks) == text
    assert [len(block.splitlines()) for block in blocks] == index.block_sizes.tolist()
    assert index.num_lines == count


def test_a_second_start_reads_the_index_alone(tmp_path: Path) -> None:
    """The data is not touched: here it is replaced by a file of the same size, time, and no lines at all."""
    file = criteo_file(tmp_path, 3)
    before, stat = index_of(file, spare=tmp_path), Path(file.place).stat()
    Path(file.place).write_bytes(b"x" * stat.st_size)
    os.utime(file.place, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    np.testing.assert_array_equal(index_of(file, spare=tmp_path).offsets, before.offsets)


def test_a_copy_of_data_and_index_is_used(tmp_path: Path) -> None:
    """Another time of the same content is no other file."""
    file = criteo_file(tmp_path, 3)
    index_of(file, spare=tmp_path)
    os.utime(file.place, ns=(1, 1))

    assert index_of(file, spare=tmp_path).num_lines == 3


def test_an_index_of_another_file_is_refused(tmp_path: Path) -> None:
    """By its size, or by the content at both ends, with what to do."""
    file = criteo_file(tmp_path, 3)
    index_of(file, spare=tmp_path)
    Path(file.place).write_text(criteo_text(4))
    with pytest.raises(DataError, match=r"index of another file: that had [\d,]+ bytes, .*day_0.tsv has .*delete"):
        index_of(file, spare=tmp_path)

    Path(file.place).write_text(criteo_text(3).replace("0a", "0b"))
    with pytest.raises(DataError, match=r"same size and other content; hint: delete the index"):
        index_of(file, spare=tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"text"])
def test_a_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    """The sentence says that it may be deleted."""
    file = criteo_file(tmp_path)
    place_of(file).write_bytes(content)

    with pytest.raises(DataError, match=r"is not an index that can be read.*delete it"):
        index_of(file, spare=tmp_path)


def test_an_index_beside_data_that_cannot_be_written_goes_elsewhere(tmp_path: Path) -> None:
    """A folder of the run keeps it; a place that is taken stands for one without permission, which root ignores."""
    file = criteo_file(tmp_path, 3)
    Path(f"{place_of(file)}.lock").mkdir()

    index_of(file, spare=tmp_path / "spare")

    assert not place_of(file).exists()
    assert [path.suffix for path in (tmp_path / "spare").iterdir()] == [INDEX_SUFFIX]
    assert index_of(file, spare=tmp_path / "spare").num_lines == 3


def test_without_any_place_the_file_is_read_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the file."""
    file = criteo_file(tmp_path, 3)
    Path(f"{place_of(file)}.lock").mkdir()
    (tmp_path / "spare").touch()

    assert index_of(file, spare=tmp_path / "spare").num_lines == 3
    assert "day_0.tsv: its index can be kept nowhere" in caplog.text


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "is empty"), (b"\x1f\x8b\x08", "holds binary data"), (b"PAR1", "holds binary data"), (b"a\0b\n", "binary")],
)
def test_a_file_without_lines_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    """Before anything is trained."""
    path = tmp_path / "day_0.tsv"
    path.write_bytes(content)

    with pytest.raises(DataError, match=f"day_0.tsv: .*{expected}"):
        index_of(DataFile(str(path)), spare=tmp_path)


@pytest.mark.slow
def test_processes_that_start_together_make_one_index(tmp_path: Path) -> None:
    """The others wait for it and find it whole."""
    file = criteo_file(tmp_path, 5000)
    code = (
        "import sys; from pathlib import Path; from neuroshard_trainer.data.line_index import index_of; "
        "from neuroshard_trainer.data.files import DataFile; "
        "print(index_of(DataFile(sys.argv[1]), spare=Path(sys.argv[2])).num_lines)"
    )
    command = [sys.executable, "-c", code, file.place, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]

    assert [process.communicate()[0].strip() for process in started] == ["5000"] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["day_0.tsv", f"day_0.tsv{INDEX_SUFFIX}"]
