"""Cut the device code of shared libraries to one GPU architecture, and to the kernels that are needed.

A fat binary (section .nv_fatbin) is a header and one entry per architecture. The entry of the wanted architecture moves
to the front and the header's size is set to it; a fat binary none of whose kernels is wanted keeps one small entry of
another architecture, as if its file had been compiled for that one only. What is left over becomes zeros, so every
offset of the library stays, and zeros compress away. Needs no CUDA.

    python benchmarks/gpu/fatbin.py show LIBRARY...                   architectures, their entries and bytes
    python benchmarks/gpu/fatbin.py cut SOURCE_DIR TARGET_DIR ARCH    such as 90
"""

import collections
import mmap
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0xBA55ED50
UNWANTED = re.compile(
    r"ssd_|nobag|(?<!generate)_vbe|_gwd|with_counter|partial_rowwise|_lamb_|_lars_|codegen_none_|nbit(?!_?rowwise)"
    r"|pruned_|_v2_kernel"
)
"""Kernels that nothing here trains with: other optimizers, unpooled and variable-batch lookups, inference."""
_EVERYWHERE = "EmptyKernel"
"""A kernel of CUB that every file has."""
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_HEADER_BYTES = 16
_MIB = 2**20
Bytes = bytes | bytearray | mmap.mmap


@dataclass(frozen=True, slots=True)
class Entry:
    """Code for one architecture."""

    start: int
    header_bytes: int
    payload_bytes: int
    compressed_bytes: int
    arch: int

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.start + self.header_bytes + self.payload_bytes


def sections(data: Bytes) -> dict[str, tuple[int, int]]:
    """Return offset and size of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_bytes, count, names = struct.unpack_from("<HHH", data, 0x3A)
    found = [struct.unpack_from("<IIQQQQ", data, table + index * entry_bytes) for index in range(count)]
    text = found[names][4]
    return {
        bytes(data[text + each[0] : data.find(b"\0", text + each[0])]).decode(): (each[4], each[5]) for each in found
    }


def fat_binaries(data: Bytes) -> Iterator[tuple[int, int, int, list[Entry]]]:
    """Yield start, header bytes, size, and entries of each fat binary."""
    if ".nv_fatbin" not in (found := sections(data)):
        return
    offset, size = found[".nv_fatbin"]
    at = offset
    while at + _HEADER_BYTES <= offset + size:
        magic, _, header, content = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            if magic != 0:
                raise SystemExit(f"there is no fat binary at {at:#x}")
            at += 8
            continue
        entries, inner = [], at + header
        while inner < at + header + content:
            _, _, own, payload = struct.unpack_from("<HHIQ", data, inner)
            (compressed,) = struct.unpack_from("<I", data, inner + 16)
            (arch,) = struct.unpack_from("<I", data, inner + 28)
            entries.append(Entry(inner, own, payload, compressed, arch))
            inner += own + payload
        yield at, header, content, entries
        at += header + content


def kernels(data: Bytes, entry: Entry) -> set[str]:
    """Return the mangled names of an entry's kernels; empty where they cannot be read."""
    code = bytes(data[entry.start + entry.header_bytes : entry.end])
    if entry.compressed_bytes:
        code = code[: entry.compressed_bytes]
        if not code.startswith(_ZSTANDARD):
            return set()
        code = subprocess.run(["zstd", "-dcq"], input=code, capture_output=True, check=False).stdout  # noqa: S607 - of the system
    names = {match.group(1).decode() for match in re.finditer(rb"\.text\.(_Z\w+)", code)}
    return {name for name in names if _EVERYWHERE not in name}


def cut(source: Path, target: Path, arch: int, dummy: bytes) -> tuple[int, int, int]:
    """Write a library cut to an architecture. Return bytes of device code before and after, and dropped binaries."""
    data = bytearray(source.read_bytes())
    before = after = dropped = 0
    for start, header, size, entries in list(fat_binaries(data)):
        kept = [each for each in entries if each.arch == arch]
        names = {name for each in kept for name in kernels(data, each)}
        unwanted = bool(names) and all(UNWANTED.search(name) for name in names)
        if unwanted and len(dummy) <= size:
            body, dropped = dummy, dropped + 1
        elif kept:
            body = b"".join(bytes(data[each.start : each.end]) for each in kept)
        else:
            raise SystemExit(f"{source}: a fat binary without code for sm_{arch}")
        before, after = before + size, after + len(body)
        data[start + header : start + header + size] = body + bytes(size - len(body))
        struct.pack_into("<Q", data, start + 8, len(body))
    target.write_bytes(data)
    return before, after, dropped


def smallest(paths: Sequence[Path], arch: int) -> bytes:
    """Return the smallest entry of another architecture."""
    best = b""
    for path in paths:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for _, _, _, entries in fat_binaries(data):
                for each in entries:
                    if each.arch != arch and (not best or each.end - each.start < len(best)):
                        best = bytes(data[each.start : each.end])
    return best


def show(path: Path) -> None:
    """Print the architectures of a library."""
    count: collections.Counter[int] = collections.Counter()
    size: collections.Counter[int] = collections.Counter()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for _, _, _, entries in fat_binaries(data):
            for each in entries:
                count[each.arch] += 1
                size[each.arch] += each.end - each.start
    found = ", ".join(f"sm_{arch} {count[arch]} x {size[arch] / _MIB:.1f} MiB" for arch in sorted(count))
    print(f"{path.name}: {found or 'no device code'}")


def main(arguments: Sequence[str]) -> None:
    """Run a command."""
    if arguments[:1] == ["show"]:
        for name in arguments[1:]:
            show(Path(name))
        return
    source, target, arch = Path(arguments[1]), Path(arguments[2]), int(arguments[3])
    target.mkdir(parents=True, exist_ok=True)
    libraries = sorted(source.glob("*.so"))
    dummy = smallest(libraries, arch)
    for path in libraries:
        before, after, dropped = cut(path, target / path.name, arch, dummy)
        print(
            f"{path.name}: device code {before / _MIB:.1f} -> {after / _MIB:.1f} MiB, {dropped} fat binaries left out"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
