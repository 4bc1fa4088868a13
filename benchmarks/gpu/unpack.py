"""Make the packages of a load usable: `unpack.py LOAD... TARGET`. Checks every sum, unpacks in parallel.

A load is a folder with SHA256SUMS, small.tar.zst, and one file per large library; there may be several.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

CHUNK = 2**20
_ZEROS = bytes(CHUNK)


def opened(path: Path) -> IO[bytes]:
    """Return the unpacked bytes of a file as a stream."""
    try:
        import pyarrow as pa

        stream: IO[bytes] = pa.input_stream(str(path), compression="zstd")
    except ImportError:
        if shutil.which("zstd") is None:
            raise SystemExit("neither pyarrow nor zstd is here") from None
        command = ["zstd", "-dcq", "--long=27", str(path)]
        output = subprocess.Popen(command, stdout=subprocess.PIPE).stdout  # noqa: S603 - the system's
        assert output is not None, "it is a pipe"
        return output
    return stream


def library(source: Path, target: Path) -> str:
    """Unpack one file; runs of zeros become holes."""
    begun = time.monotonic()
    with opened(source) as stream, target.open("wb") as file:
        while chunk := stream.read(CHUNK):
            if chunk == _ZEROS[: len(chunk)]:
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                file.write(chunk)
        file.truncate(file.tell())
    return f"{target.name}: {target.stat().st_size / 2**20:.0f} MiB in {time.monotonic() - begun:.1f} s"


def unpack(loads: Sequence[Path], target: Path) -> None:
    """Unpack loads into a folder that Python imports from. Raises SystemExit where a file is damaged."""
    begun = time.monotonic()
    for load in loads:
        for line in (load / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
            digest, name = line.split()
            if hashlib.sha256((load / name).read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{load / name}: is damaged; hint: pack it again")
    (target / "fbgemm_gpu").mkdir(parents=True, exist_ok=True)
    for load in loads:
        if (load / "small.tar.zst").exists():
            with opened(load / "small.tar.zst") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(target, filter="data")
    work = [
        (path, target / "fbgemm_gpu" / path.name.removesuffix(".zst"))
        for load in loads
        for path in load.glob("*.so.zst")
    ]
    work.sort(key=lambda each: -each[0].stat().st_size)
    with ThreadPoolExecutor(12) as pool:
        for line in pool.map(lambda each: library(*each), work):
            print(line, flush=True)
    print(f"unpacked in {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    *given, folder = map(Path, sys.argv[1:])
    unpack(given, folder)
