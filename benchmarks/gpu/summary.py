"""Write a result file of what the kit found on a GPU: `python -m benchmarks.gpu.summary RESULTS.jsonl[.gz]`."""

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_file import write_result

Row = dict[str, Any]


def main() -> None:
    """Write benchmarks/results/gpu_<GPU>_<date>.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    path: Path = parser.parse_args().results
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in text.splitlines()]
    versions = next(each["versions"] for each in rows if "versions" in each)
    gpu = next(each["properties"]["name"] for each in rows if "properties" in each)
    stated = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    lines = [f"# One {gpu}, measured", "", f"The GPU kit's stages with {stated}; rows of `{path.name}`.", ""]
    for part in (_facts, _correct, _codecs, _hosts, _loops, _jobs, _failures):
        lines += part(rows)
    print(write_result("gpu", lines, hardware=gpu.replace("NVIDIA ", "").replace(" ", "-"), packages=()))


def _table(title: str, columns: str, cells: Sequence[Sequence[object]]) -> list[str]:
    if not cells:
        return []
    head = [f"## {title}", "", f"| {columns} |", "|" + "---|" * (columns.count("|") + 1)]
    return [*head, *(f"| {' | '.join(map(str, row))} |" for row in cells), ""]


def _facts(rows: Sequence[Row]) -> list[str]:
    found: list[tuple[str, str]] = []
    for row in rows:
        if row["stage"] != "facts":
            continue
        if "copy_mib" in row:
            rate = row["gb_per_s_read_and_written"]
            found.append((f"copy of {row['copy_mib']} MiB, read and written", f"{rate:,.0f} GB/s"))
        if "transfer" in row:
            what = f"{row['transfer']}, {'locked' if row['pinned'] else 'pageable'} pages"
            found.append((what, f"{row['gb_per_s']:.1f} GB/s"))
        if "staging" in row:
            found.append((f"to the host, {row['staging']}", f"{row['gb_per_s']:.1f} GB/s"))
        if "matrix" in row:
            found.append((f"matrix product of {row['side']}, {row['matrix']}", f"{row['tflop_per_s']:.0f} TFLOP/s"))
        if "launch_us_host" in row:
            found.append(("launch of a small kernel, host", f"{row['launch_us_host']:.1f} us"))
    return _table("Rates", "what | rate", found)


def _correct(rows: Sequence[Row]) -> list[str]:
    cells = [
        (row["case"], f"{row['forward_error']:.1e}", f"{max(row['update_errors']):.1e}")
        for row in rows
        if "case" in row
    ]
    return _table("FBGEMM's kernels next to formulas in FP64", "case | forward | largest of the updates", cells)


def _codecs(rows: Sequence[Row]) -> list[str]:
    cells = [
        (row["codec"], row["bytes"], f"{row.get('deviation', row.get('error')):.1e}") for row in rows if "codec" in row
    ]
    return _table("Codecs, 4,096 x 256 normal numbers", "type | bytes | relative error", cells)


def _hosts(rows: Sequence[Row]) -> list[str]:
    cells = [
        (row["host_tables"], f"{row['forward_ms']:.2f}", f"{row['backward_ms']:.2f}")
        for row in rows
        if "host_tables" in row
    ]
    title = (
        "Four tables of 1,000,000 x 128 in device and in host memory, 16,384 bags of 10; the host waits for each pass"
    )
    return _table(title, "location | forward, ms | backward, ms", cells)


def _loops(rows: Sequence[Row]) -> list[str]:
    kernels = {(index, row["loop"]): row for index, row in enumerate(rows) if "loop" in row}
    cells = []
    for row_index, row in enumerate(rows):
        if "ratio_of_steps_per_second" not in row:
            continue
        for loop, step_ms in row["step_ms"].items():
            own = next((each for (index, name), each in kernels.items() if index > row_index and name == loop), None)
            busy = f"{own['kernels_ms_per_step']:.2f}" if own else "-"
            launches = f"{own['launches_per_step']:.0f}" if own else "-"
            blocks = ", ".join(f"{each:.2f}" for each in row["blocks"][loop])
            cells.append((row["precision"], loop, f"{step_ms:.2f}", busy, launches, blocks))
    title = "This trainer's loop (own) next to a plain TorchRec loop (public), 26 tables of 128 columns, 8,192 samples"
    return _table(title, "precision | loop | step, ms | kernels of it, ms | kernels | blocks of 60 steps, ms", cells)


def _jobs(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        report = row.get("step_report")
        if "job" not in row or report is None:
            continue
        rank, ledger = report["ranks"][0], row["ledger"][0]
        tables = sum(size for name, size in ledger.items() if name not in {"reserve_bytes", "capacity_bytes"})
        with_reserve = tables + ledger["reserve_bytes"]
        device = row["predicted"]["devices"][0]
        parts = [
            f"{device[f'{way}_compute_ms']:.3f} / {rank[f'{way}_compute_ms']:.3f}" for way in ("forward", "backward")
        ]
        cells.append(
            (
                row["job"],
                report["num_steps"],
                f"{rank['step_ms']:.2f}",
                *parts,
                f"{tables / 1e9:.2f} / {rank['peak_memory_bytes'] / 1e9:.2f}",
                f"{tables / rank['peak_memory_bytes']:.2f}",
                f"{with_reserve / 1e9:.2f} / {rank['device_used_bytes'] / 1e9:.2f}",
            )
        )
    columns = (
        "job | steps | step, ms | forward: predicted / measured, ms | backward | ledger / peak, GB | ratio "
        "| with reserve / used of the device, GB"
    )
    return _table(
        "Jobs under `neuroshard run`, one rank with NCCL; predicted by the models that they were planned with",
        columns,
        cells,
    )


def _failures(rows: Sequence[Row]) -> list[str]:
    cells = [
        (row["stage"], row.get("what", row.get("job", "")), str(row["error"]).replace("|", "/")[:200])
        for row in rows
        if "error" in row and "codec" not in row
    ]
    return _table("What failed", "stage | what | error", cells)


if __name__ == "__main__":
    main()
