import os
from pathlib import Path

import pytest
from neuroshard_api.process.atomic_file import write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """The new text stands alone, and no scratch file is left."""
    path = tmp_path / "plan.json"
    path.write_text("a much longer old text")
    write_whole(path, "new")

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    """Not those of a private scratch file."""
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "plan.json", "text")

    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stops the writing, the reader keeps what was there."""
    path = tmp_path / "plan.json"
    path.write_text("old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, f"No space left on device ({descriptor})")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it leads to is the new one."""
    path, link = tmp_path / "plan.json", tmp_path / "latest.json"
    path.write_text("old")
    link.symlink_to(path)
    write_whole(link, "new")

    assert link.is_symlink()
    assert path.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    """As `--out /dev/stdout` asks for; a terminal stands for all devices."""
    reader, writer = os.openpty()
    name = Path(os.ttyname(writer))
    write_whole(name, "text\n")

    assert os.read(reader, 100) == b"text\r\n"
    assert name.is_char_device()
    os.close(reader)
    os.close(writer)
