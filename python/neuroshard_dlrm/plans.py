"""A plan as an object of Python: its numbers with units in their names, its report, its explanation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from neuroshard_api.documents import plan as documents
from neuroshard_api.process.atomic_file import write_whole
from neuroshard_api.process.errors import StorageError
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_costs.shards import weights_bytes
from neuroshard_report.quantities import format_ms, format_percent
from neuroshard_report.summary import cost_terms, memory_terms, summarize

from neuroshard_dlrm.arguments import Plannable, path_of
from neuroshard_dlrm.frames import Tabular, fields_text, frame_of, text_of
from neuroshard_dlrm.requests import Source

if TYPE_CHECKING:
    from pandas import DataFrame

    from neuroshard_dlrm.results import Difference, Explanation

Rows = Literal["tables", "shards", "devices", "baselines"]
FRAME_HEIGHT = 720
"""Pixels of the report's first screen in a notebook; more of it scrolls."""


@dataclass(frozen=True, repr=False)
class Plan(Tabular, Plannable):
    """A plan with its price. Equal requests give equal plans, byte for byte those of ``neuroshard plan``."""

    _document: documents.Plan
    _costs: CostBundle | None = field(default=None, compare=False)
    """Cost models that made it. None: it was read; the bundled ones of its device are taken where some are needed."""

    @property
    def predicted_ms(self) -> float:
        """Embedding part of a step, in milliseconds."""
        return self._document.predicted.total_ms

    @property
    def step_ms(self) -> float | None:
        """A whole step, in milliseconds; without a counted dense part its lower limit. None: not known."""
        return None if self._document.step is None else self._document.step.total_ms

    @property
    def lower_bound_ms(self) -> float:
        """Milliseconds below which no plan of this request is, under the same cost models."""
        return self._document.lower_bound_ms

    @property
    def gap(self) -> float:
        """Share of the lower bound by which the plan is above it: 0.02 is 2 %."""
        return self._document.gap

    @property
    def gain(self) -> float | None:
        """Share of the best baseline's time that the plan saves. None: no baseline found a plan."""
        return summarize(self._document).gain

    @property
    def peak_memory_bytes(self) -> int:
        """Memory of the fullest device, the reserve included."""
        return summarize(self._document).fullest.memory_bytes

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self._document.num_devices

    @property
    def source(self) -> str:
        """Where the times come from, such as ``simulated:NVIDIA-H100-80GB-HBM3``."""
        return self._document.predicted.source

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what the cost models do not know."""
        return self._document.warnings

    def rows(self, of: Rows = "tables") -> list[dict[str, Any]]:
        """Return the plan's tables, shards, devices, or baselines, one dictionary each."""
        made: Mapping[str, Callable[[documents.Plan], list[dict[str, Any]]]] = _ROWS
        if of not in made:
            raise ValueError(f"of: is {of!r}; hint: give one of {', '.join(made)}")
        return made[of](self._document)

    def to_frame(self, of: Rows = "tables") -> "DataFrame":
        """Return the same rows as a pandas DataFrame. Raises MissingPackageError where pandas is not installed."""
        return frame_of(self.rows(of))

    def to_json(self) -> str:
        """Return the plan's document: what ``neuroshard plan --json`` prints."""
        return self._document.to_json()

    def write(self, path: Path | str) -> None:
        """Write the plan's document, whole or not at all: what ``neuroshard plan --out`` writes.

        Raises StorageError.
        """
        _write(path, self.to_json())

    def report(self, path: Path | str) -> None:
        """Write the HTML report, whole or not at all: what ``neuroshard plan --out FILE.html`` writes.

        Raises StorageError, or BundleError where the plan's device has no bundled cost models.
        """
        from neuroshard_report.explain.robustness import traffic_costs
        from neuroshard_report.html.page import render_html

        traffic = traffic_costs(self._document, bundle=self.costs())
        _write(path, render_html(self._document, traffic=traffic))

    def explain(self, table: str | None = None) -> "Explanation":
        """Explain the plan, or one of its tables. Raises RequestError where there is no such table."""
        from neuroshard_dlrm.functions import explain

        return explain(self, table)

    def diff(self, other: "Plan | Path | str") -> "Difference":
        """Return the changes from this plan to another one."""
        from neuroshard_dlrm.functions import diff

        return diff(self, other)

    def as_source(self) -> Source:
        """Return the request that the plan answers."""
        return self._document.request

    def document(self) -> documents.Plan:
        """Return the document, for functions of this package."""
        return self._document

    def costs(self) -> CostBundle:
        """Return the cost models of the plan. Raises BundleError where its device has no bundled ones."""
        return bundled_bundle(self._document.request.topology.device.name) if self._costs is None else self._costs

    def __hash__(self) -> int:
        """Return a hash of the document: equal plans have equal ones."""
        return hash(self.to_json())

    def __repr__(self) -> str:
        gain = self.gain
        return fields_text(
            "Plan",
            {
                "tables": str(len(self._document.tables)),
                "devices": f"{self.num_devices} x {self._document.request.topology.device.name}",
                "predicted_ms": format_ms(self.predicted_ms),
                "gain": None if gain is None else format_percent(gain).replace(" ", ""),
                "source": self.source,
            },
        )

    def __str__(self) -> str:
        from neuroshard_report.terminal.plan import render_plan

        return text_of(render_plan(self._document))

    def _repr_html_(self) -> str:
        """Return the report's first screen, in a frame so that its styles stay its own."""
        import html

        from neuroshard_report.html.page import render_html

        page = html.escape(render_html(self._document, is_whole=False), quote=True)
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe srcdoc="{page}" style="{style}" title="Sharding plan" sandbox></iframe>'


def _write(path: Path | str, text: str) -> None:
    file = path_of(path, name="path")
    try:
        write_whole(file, text)
    except OSError as error:
        problem = f"{file}: cannot be written: {error.strerror}; hint: make its folder, or choose another path"
        raise StorageError(problem) from error


def _tables(plan: documents.Plan) -> list[dict[str, Any]]:
    return [
        {
            "table": placed.table.name,
            "num_embeddings": placed.table.num_embeddings,
            "embedding_dim": placed.table.embedding_dim,
            "pooling_factor": placed.table.pooling_factor,
            "weights_bytes": weights_bytes(placed.table),
            "sharding_type": placed.placement.sharding_type.value,
            "compute_kernel": placed.placement.compute_kernel.value,
            "num_shards": len(placed.placement.shards),
            "devices": list(placed.devices),
        }
        for placed in summarize(plan).tables
    ]


def _shards(plan: documents.Plan) -> list[dict[str, Any]]:
    return [{"table": table.name, **shard.model_dump(mode="json")} for table in plan.tables for shard in table.shards]


def _devices(plan: documents.Plan) -> list[dict[str, Any]]:
    return [
        {
            "device": device.index,
            "node": device.node,
            "total_ms": device.cost.total_ms,
            **{name: getattr(device.cost, name) for name, _ in cost_terms(plan)},
            "num_shards": device.num_shards,
            "used_bytes": device.memory_bytes,
            "capacity_bytes": device.memory.capacity_bytes,
            **{name: getattr(device.memory, name) for name, _ in memory_terms(plan)},
        }
        for device in summarize(plan).devices
    ]


def _baselines(plan: documents.Plan) -> list[dict[str, Any]]:
    return [
        {"algorithm": each.algorithm.value, "total_ms": each.total_ms, "problem": each.problem}
        for each in plan.baselines
    ]


_ROWS: Mapping[str, Callable[[documents.Plan], list[dict[str, Any]]]] = {
    "tables": _tables,
    "shards": _shards,
    "devices": _devices,
    "baselines": _baselines,
}
