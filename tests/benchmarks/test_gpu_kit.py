"""Specification of the scripts that bring kernels to a machine with a GPU, and that judge what it measured."""

import hashlib
import struct
import sys
import tarfile
from pathlib import Path

import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_profiler.backends.simulated import SimulatedBackend
from support.profiler.profiler_builders import compute_sample
from support.profiler.record_builders import compute_record, written

from benchmarks.gpu import judge
from benchmarks.gpu.fatbin import MAGIC, cut, fat_binaries, sections, smallest
from benchmarks.gpu.unpack import unpack

ENTRY_HEADER = 64


def entry(arch: int, *kernels: str, padding: int = 0) -> bytes:
    """Return code for one architecture as nvcc lays it out, with the names of its kernels."""
    payload = b"".join(b".text._Z" + name.encode() + b"\0" for name in kernels) + bytes(padding)
    payload += bytes(-len(payload) % 8)
    head = struct.pack("<HHIQ", 2, 1, ENTRY_HEADER, len(payload)) + bytes(12) + struct.pack("<I", arch)
    return head + bytes(ENTRY_HEADER - len(head)) + payload


def library(path: Path, *binaries: tuple[bytes, ...]) -> Path:
    """Write an ELF file whose section .nv_fatbin has these fat binaries, followed by eight bytes of something else."""
    content = b""
    for entries in binaries:
        body = b"".join(entries)
        content += struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body + bytes(8)
    names = b"\0.nv_fatbin\0.names\0"
    begin = 64
    table = begin + len(content) + 8 + len(names)
    head = bytearray(begin)
    struct.pack_into("<Q", head, 0x28, table)
    struct.pack_into("<HHH", head, 0x3A, 64, 3, 2)
    rows = [(0, 0, 0), (1, begin, len(content)), (12, begin + len(content) + 8, len(names))]
    headers = b"".join(struct.pack("<IIQQQQ", name, 0, 0, 0, at, size) + bytes(24) for name, at, size in rows)
    path.write_bytes(bytes(head) + content + b"original" + names + headers)
    return path


def test_a_library_keeps_the_wanted_architecture_and_its_size(tmp_path: Path) -> None:
    """Every offset stays; a binary whose kernels are all unwanted keeps one small entry of another architecture."""
    wanted = (entry(80, "forward", padding=40), entry(90, "forward", "EmptyKernel"), entry(100, "forward", padding=40))
    unwanted = (entry(80, "x"), entry(90, "ssd_forward", padding=400))
    source = library(tmp_path / "a.so", wanted, unwanted)
    before, after, dropped = cut(source, tmp_path / "b.so", 90, smallest([source], 90))
    data = (tmp_path / "b.so").read_bytes()
    found = [[each.arch for each in entries] for _, _, _, entries in fat_binaries(data)]

    assert found == [[90], [80]]
    assert (len(data), dropped) == (source.stat().st_size, 1)
    assert after < before
    assert sections(data) == sections(source.read_bytes())
    assert b"original" in data
    assert b"_Zforward" in data


def test_an_architecture_that_a_library_lacks_is_refused(tmp_path: Path) -> None:
    """Before anything travels."""
    source = library(tmp_path / "a.so", (entry(80, "forward"),))

    with pytest.raises(SystemExit, match="a fat binary without code for sm_90"):
        cut(source, tmp_path / "b.so", 90, b"")


def packed(folder: Path) -> Path:
    """Return a load with a small package and a library of mostly zeros."""
    import pyarrow as pa

    load = folder / "load-1"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "a.py").write_text("A = 1\n", encoding="utf-8")
    load.mkdir()
    with tarfile.open(folder / "small.tar", "w") as archive:
        archive.add(folder / "package", arcname="package")
    files = {
        "small.tar.zst": (folder / "small.tar").read_bytes(),
        "big.so.zst": bytes(3 * 2**20) + b"end" + bytes(2**20),
    }
    for name, content in files.items():
        with pa.output_stream(str(load / name), compression="zstd") as stream:
            stream.write(content)
    sums = [f"{hashlib.sha256((load / name).read_bytes()).hexdigest()}  {name}" for name in files]
    (load / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    return load


def test_a_load_unpacks_to_what_was_packed(tmp_path: Path) -> None:
    """Zeros at the end of a library, which become a hole, are part of it."""
    unpack([packed(tmp_path)], tmp_path / "site")

    assert (tmp_path / "site/package/a.py").read_text(encoding="utf-8") == "A = 1\n"
    assert (tmp_path / "site/fbgemm_gpu/big.so").read_bytes() == bytes(3 * 2**20) + b"end" + bytes(2**20)


def test_a_load_that_was_damaged_on_its_way_is_refused(tmp_path: Path) -> None:
    """Before any of it is imported."""
    load = packed(tmp_path)
    (load / "big.so.zst").write_bytes(b"cut")

    with pytest.raises(SystemExit, match=r"big\.so\.zst: is damaged; hint: pack it again"):
        unpack([load], tmp_path / "site")


def test_kept_records_are_judged_by_simulator_and_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulator is right about its own times but for their noise; a disturbed record counts for nothing."""
    backend = SimulatedBackend(preset("h100-80gb").device)
    records = []
    for batch_size in (1024, 4096, 16384):
        sample = compute_sample(batch_size=batch_size)
        times = backend.measure(sample, seed=0, repeats=backend.repeats)
        fields = {"compute": sample, "forward_ms": times.forward_ms, "backward_ms": times.backward_ms}
        records.append(compute_record().model_copy(update=fields))
    slowed = records[0].model_copy(update={"forward_ms": 1e3, "disturbance": "slowed by power_cap"})
    monkeypatch.setattr(sys, "argv", ["judge", str(written(tmp_path, *records, slowed))])
    judge.main()
    lines = capsys.readouterr().out.splitlines()

    errors = {line.split(" | ")[0]: line for line in lines if "| both |" in line}
    assert list(errors) == ["| simulator", "| bundled"]
    assert float(errors["| simulator"].split(" | ")[2].removesuffix(" %")) < 3
    assert sum(line.startswith("| 2 | 100 | 16 |") for line in lines) == 3


def test_a_file_without_records_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that failed leaves one."""
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["judge", str(tmp_path / "empty.jsonl")])

    with pytest.raises(SystemExit, match=r"empty\.jsonl: hold no undisturbed compute records"):
        judge.main()
