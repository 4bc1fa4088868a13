"""Holds the device simulator against published times and rates and prints tables.

    python -m benchmarks simulator_vs_published

Each figure says whether constants of the simulator were calibrated on it or whether it was held out.

Settings the sources do not give are assumed: uniform random rows, FP32 weights, and an A100 for TorchRec's times, whose
device is not named. The V100 times are of the kernel alone, TorchRec's of the module with its launch.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.documents.topology import DeviceType
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import IndexArray, ShardArrays
from neuroshard_costs.simulator.compute import kernel_seconds, set_seconds

from benchmarks.published_figures import Figure, figures

DATA = Path(__file__).parent / "data" / "published_kernel_measurements.json"
UNNAMED_DEVICE = "a100-80gb"
LAUNCH_BOUND_BATCH = 1024  # TorchRec's small batch, whose times do not depend on the dim


class Setting(NamedTuple):
    """Equal tables in one fused call."""

    batch_size: int
    num_embeddings: int
    num_tables: int
    pooling_factor: int
    embedding_dim: int

    def __str__(self) -> str:
        tables = f"{self.num_tables} tables of {self.num_embeddings:,} x {self.embedding_dim}"
        return f"{tables}, batch {self.batch_size:,}, pooling {self.pooling_factor}"


class Pair(NamedTuple):
    """One published time and its simulation, in milliseconds."""

    group: str
    setting: Setting
    published_ms: float
    simulated_ms: float

    @property
    def ratio(self) -> float:
        """Simulated over published."""
        return self.simulated_ms / self.published_ms


def pairs() -> Iterator[Pair]:
    """Yield every published time next to the simulated one."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    v100 = DeviceType.model_validate(data["v100_batched_embedding"]["device"])
    for step, batch, rows, count, pooling, dim, kernel_us in data["v100_batched_embedding"]["rows"]:
        setting = Setting(batch, rows, count, pooling, dim)
        shards, one_call = fused_call(setting)
        forward, backward = 1000 * kernel_seconds(v100, shards, one_call, 1)[0]
        kernel_ms = forward if step == "forward" else backward
        yield Pair(f"V100 {step.partition('_')[0]}", setting, kernel_us / 1000, float(kernel_ms))
    device = preset(UNNAMED_DEVICE).device
    for rows, dim, count, batch, pooling, published_ms in data["torchrec_split_tbe_p90"]["rows"]:
        setting = Setting(batch, rows, count, pooling, dim)
        group = "TorchRec forward" if batch > LAUNCH_BOUND_BATCH else "TorchRec forward, launch-bound"
        forward, _ = 1000 * set_seconds(device, *fused_call(setting), 1, pipeline=Pipeline.NONE)[0]
        yield Pair(group, setting, published_ms, float(forward))


def fused_call(setting: Setting) -> tuple[ShardArrays, IndexArray]:
    """Return all tables and the one set that they are."""
    tables = TableSet(
        zipf_exponent=0.0,
        tables=tuple(
            Table(
                name=f"t{index}",
                num_embeddings=setting.num_embeddings,
                embedding_dim=setting.embedding_dim,
                pooling_factor=float(setting.pooling_factor),
            )
            for index in range(setting.num_tables)
        ),
    )
    shards = shard_arrays(tables, global_batch_size=setting.batch_size, optimizer=Optimizer.SGD)
    return shards, np.zeros(len(shards), dtype=np.int64)


def geomean_error(found: list[Pair]) -> float:
    """Return the geometric mean of how far simulated and published times are apart, as a share."""
    return float(np.exp(np.mean([abs(np.log(pair.ratio)) for pair in found])) - 1)


def report() -> str:
    """Return the comparison as Markdown."""
    found = list(pairs())
    lines = [
        "# Device simulator next to published times and rates",
        "",
        "Made by `python benchmarks/simulator_vs_published.py`; sources in benchmarks/data. Nothing was measured here.",
        "",
        "## Kernels: calibrated on these times",
        "",
        "Constants of the simulator were fitted to these points: a check of shape, not of prediction. What the sources",
        f"do not say is assumed: uniform random rows, FP32 weights, and the preset {UNNAMED_DEVICE} for TorchRec's",
        "unnamed device. V100: the kernel alone; TorchRec: the whole module, a call made alone.",
        "",
        "| times | setting | published ms | simulated ms | simulated / published |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {pair.group} | {pair.setting} | {pair.published_ms:.4g} | {pair.simulated_ms:.4g} | {pair.ratio:.2f} |"
        for pair in found
    ]
    lines += ["", "| times | number | geometric mean of the error |", "|---|---|---|"]
    groups = list(dict.fromkeys(pair.group for pair in found))
    for group in groups:
        part = [pair for pair in found if pair.group == group]
        lines.append(f"| {group} | {len(part)} | {geomean_error(part):.1%} |")
    lines.append(f"| all | {len(found)} | {geomean_error(found):.1%} |")
    lines += [
        "",
        "## Links, memory, exchanges and steps",
        "",
        "A step's simulated time is that of the embedding part of the plan that the planner finds; the published one",
        "is a whole step of HugeCTR, which replicates the small tables. Where both do the same it must not be below",
        "the simulated one; it says nothing beyond that.",
        "",
        "| figure | basis | published | simulated | error | comparable |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_figure_line(figure) for figure in figures(with_steps=True)]
    return "\n".join([*lines, ""])


def _figure_line(figure: Figure) -> str:
    simulated = figure.simulated
    if isinstance(simulated, tuple):
        shown = " to ".join(_shown(value, figure.unit) for value in simulated)
    else:
        shown = "-" if simulated is None else _shown(simulated, figure.unit)
    error = "-" if figure.error is None else f"{figure.error:+.0%}"
    published = _shown(figure.published, figure.unit)
    return f"| {figure.name} | {figure.basis} | {published} | {shown} | {error} | {figure.comparable} |"


def _shown(value: float, unit: str) -> str:
    if unit == "bytes/s":
        return f"{value / 1e9:,.0f} GB/s"
    if unit == "s":
        return f"{value * 1000:.2f} ms"
    return f"{value:.2f}"


if __name__ == "__main__":
    print(report(), end="")
