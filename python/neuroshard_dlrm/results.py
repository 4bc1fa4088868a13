"""What the functions of Python return next to plans: short in a cell, printed as by the command, whole in rows."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.process.sizes import format_bytes
from neuroshard_report.explain.comparison import regrets_of
from neuroshard_report.explain.difference import PlanDifference, TableChange
from neuroshard_report.explain.estimate import RequestEstimate
from neuroshard_report.explain.moves import Move
from neuroshard_report.explain.plan import PlanExplanation
from neuroshard_report.explain.served_table import ServedTableExplanation
from neuroshard_report.explain.table import TableExplanation
from neuroshard_report.quantities import format_ms
from neuroshard_report.terminal.comparison import Timed, render_comparison
from neuroshard_report.terminal.difference import render_difference
from neuroshard_report.terminal.estimate import render_estimate
from neuroshard_report.terminal.explanation import render_moves, render_plan_explanation, render_table_explanation
from neuroshard_report.terminal.listings import render_tables

from neuroshard_dlrm.arguments import Plannable
from neuroshard_dlrm.frames import Tabular, fields_text, html_of, text_of
from neuroshard_dlrm.plans import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType


class Printed(Tabular):
    """A result that prints as the command does."""

    @abstractmethod
    def _content(self) -> "RenderableType": ...

    def __str__(self) -> str:
        return text_of(self._content())

    def _repr_html_(self) -> str:
        return html_of(str(self))


@dataclass(frozen=True, repr=False)
class Comparison(Printed):
    """Algorithms on one request."""

    request: PlanRequest
    lines: Sequence[Timed]

    @property
    def best(self) -> str | None:
        """The algorithm with the least predicted time. None: none found a plan."""
        found = [row for row in self.rows() if row["problem"] is None]
        return min(found, key=lambda row: row["predicted_ms"])["algorithm"] if found else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each algorithm, with its times, or the problem why it has no plan."""
        regrets = regrets_of(each.comparison for each in self.lines)
        return [_compared(each, regrets) for each in self.lines]

    def _content(self) -> "RenderableType":
        return render_comparison(self.request, self.lines)

    def __repr__(self) -> str:
        return fields_text("Comparison", {"algorithms": str(len(self.lines)), "best": self.best})


def _compared(timed: Timed, regrets: Any) -> dict[str, Any]:  # noqa: ANN401 - by the algorithm
    comparison, outcome = timed.comparison, timed.comparison.outcome
    regret = regrets.get(comparison.algorithm)
    return {
        "algorithm": comparison.algorithm.value,
        "predicted_ms": None if outcome is None else outcome.predicted.total_ms,
        "simulated_ms": None if outcome is None else outcome.simulated.total_ms,
        "step_ms": None if outcome is None else outcome.step.total_ms,
        "compute_imbalance": None if outcome is None else outcome.compute_imbalance,
        "peak_memory_bytes": None if outcome is None else outcome.peak_memory_bytes,
        "num_split_tables": None if outcome is None else outcome.num_split_tables,
        "num_shards": None if outcome is None else outcome.num_shards,
        "median_regret": None if regret is None else regret.median,
        "worst_regret": None if regret is None else regret.worst,
        "search_seconds": timed.seconds,
        "evaluations": comparison.evaluations,
        "problem": comparison.problem,
    }


@dataclass(frozen=True, repr=False)
class Explanation(Printed):
    """Where a plan's time goes, or why a table is where it is."""

    details: PlanExplanation | TableExplanation | ServedTableExplanation
    """All numbers and sentences, as ``neuroshard explain --json`` names them."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the parts of the step, or of the step that the table adds, largest first."""
        parts = self.details.terms if isinstance(self.details, PlanExplanation) else self.details.parts
        return [asdict(part) for part in parts]

    def _content(self) -> "RenderableType":
        if isinstance(self.details, PlanExplanation):
            return render_plan_explanation(self.details)
        return render_table_explanation(self.details)

    def __repr__(self) -> str:
        if isinstance(self.details, PlanExplanation):
            return fields_text("Explanation", {"total_ms": format_ms(self.details.total_ms)})
        verdict = self.details.verdict.partition(":")[0]
        return fields_text("Explanation", {"table": self.details.name, "verdict": repr(verdict)})


@dataclass(frozen=True, repr=False)
class Score(Printed):
    """The price of a plan from anywhere, and the moves of single tables that would lower it."""

    names: ClassVar = tuple(each.name for each in fields(Move))
    plan: Plan
    explanation: Explanation
    moves: Sequence[Move]
    """Up to three, those that save most, as ``neuroshard score --json`` names them."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the moves."""
        return [asdict(move) for move in self.moves]

    def _content(self) -> "RenderableType":
        from rich.console import Group

        assert isinstance(self.explanation.details, PlanExplanation)
        return Group(render_plan_explanation(self.explanation.details), "", render_moves(tuple(self.moves)))

    def __repr__(self) -> str:
        return fields_text("Score", {"plan": repr(self.plan), "moves": str(len(self.moves))})


@dataclass(frozen=True, repr=False)
class Estimate(Printed):
    """What is known of tables and devices without a search."""

    details: RequestEstimate

    @property
    def lower_bound_ms(self) -> float:
        """Milliseconds below which the embedding part of no plan is, under the cost models."""
        return self.details.lower_bound_ms

    @property
    def least_bytes(self) -> int:
        """Weights and optimizer state of all tables, each once."""
        return self.details.least_bytes

    @property
    def capacity_bytes(self) -> int:
        """Memory of all devices for shards, without reserve and dense part."""
        return self.details.capacity_bytes

    @property
    def source(self) -> str:
        """Where the times come from, such as ``simulated:NVIDIA-H100-80GB-HBM3``."""
        return self.details.source

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each table, or for tables that must share a device: its bytes, its compute when alone."""
        return [{**asdict(unit), "names": list(unit.names)} for unit in self.details.units]

    def _content(self) -> "RenderableType":
        return render_estimate(self.details)

    def __repr__(self) -> str:
        return fields_text(
            "Estimate",
            {
                "lower_bound_ms": format_ms(self.lower_bound_ms),
                "least_bytes": format_bytes(self.least_bytes).replace(" ", ""),
                "capacity_bytes": format_bytes(self.capacity_bytes).replace(" ", ""),
                "source": self.source,
            },
        )


@dataclass(frozen=True, repr=False)
class Difference(Printed):
    """What changes from one plan to another."""

    names: ClassVar = ("table", "moved_bytes", "before_type", "after_type", "before_devices", "after_devices")
    details: PlanDifference
    """All numbers, as ``neuroshard diff --json`` names them."""

    @property
    def moved_bytes(self) -> int:
        """Weights and optimizer state that devices get and did not have."""
        return self.details.moved_bytes

    def rows(self) -> list[dict[str, Any]]:
        """Return the tables that moved, those with most bytes first."""
        return [dict(zip(self.names, _moved(table), strict=True)) for table in self.details.tables]

    def _content(self) -> "RenderableType":
        return render_difference(self.details)

    def _repr_html_(self) -> str:
        import html

        from neuroshard_report.html.difference import render_difference_html

        page = html.escape(render_difference_html(self.details), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:560px;border:0" title="Difference" sandbox></iframe>'

    def __repr__(self) -> str:
        return fields_text(
            "Difference",
            {
                "moved_tables": str(len(self.details.tables)),
                "moved_bytes": format_bytes(self.moved_bytes).replace(" ", ""),
            },
        )


def _moved(table: TableChange) -> tuple[object, ...]:
    """Return the values of a table that moved, in the order of their names."""
    both = (table.before, table.after)
    types = (each.sharding_type.value for each in both)
    devices = (sorted({shard.device for shard in each.shards}) for each in both)
    return (table.name, table.moved_bytes, *types, *devices)


@dataclass(frozen=True, repr=False)
class Tables(Printed, Plannable):
    """A table set, a job, or a request that was read, to plan from."""

    _source: TableSet | JobFile | PlanRequest

    @property
    def kind(self) -> str:
        """``table set``, ``job``, or ``request``."""
        return {TableSet: "table set", JobFile: "job", PlanRequest: "request"}[type(self._source)]

    def rows(self) -> list[dict[str, Any]]:
        """Return the tables. Raises DocumentError where a job has them in a ConfigMap that is not in its file."""
        return [table.model_dump(mode="json", exclude_none=True) for table in self._set().tables]

    def as_source(self) -> TableSet | JobFile | PlanRequest:
        """Return the document that was read."""
        return self._source

    def _content(self) -> "RenderableType":
        try:
            return render_tables(self._set(), duplication={})
        except DocumentError as error:  # a cell shows what there is
            return f"{self!r}: {error}"

    def _set(self) -> TableSet:
        if isinstance(self._source, JobFile):
            return self._source.tables()
        return self._source.tables if isinstance(self._source, PlanRequest) else self._source

    def __repr__(self) -> str:
        return fields_text("Tables", {"kind": repr(self.kind)})
