"""A sweep in the words that text, HTML, and JSON share: ways to divide devices, and what its variants reached."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf

from neuroshard_report.quantities import format_count, format_devices, format_ms, format_percent

WAY_COLUMNS = ("way", "step of all, ms", "gain", "memory", "")
RESULT_COLUMNS = ("NE", "AUC", "loss", "seconds", "samples/s", "step", "state")
"""After the settings of a variant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepWay:
    """One way to divide devices among variants."""

    sizes: tuple[int, ...]
    """Devices of each job's part, in the jobs' order."""
    together: int = 1
    """Most variants that one job trains."""
    total_ms: float | None
    """Time for a step of each variant. None: the way is not possible."""
    gain: float | None
    """Times as fast as one variant after the other on all devices. None: one of the two is not possible."""
    memory_share: float | None
    """Of the fullest device. None: the way is not possible."""
    problem: str | None
    """None: the way is possible."""
    is_chosen: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantResult:
    """One variant, and what its training reached so far."""

    job: str
    variant: str | None = None
    """Its name in a job that trains several. None: the job is the variant."""
    number: int = 0
    """Its place in the sweep."""
    settings: Mapping[str, str]
    """Values by the short names of the fields that differ."""
    state: str = "waiting"
    """``waiting``, ``training``, ``done``, ``interrupted``, ``failed``, or ``diverged``, where the others of its set
    trained on; on a cluster the stage of the job."""
    num_devices: int | None = None
    """Of its part. None: not known."""
    step: int | None = None
    normalized_entropy: float | None = None
    auc: float | None = None
    loss: float | None = None
    """Of training."""
    seconds: float | None = None
    """Of the training stage: start of the processes, reading, and evaluations included."""
    samples_per_second: float | None = None
    """By its median step."""
    problem: str | None = None
    """Why it failed. None: it did not."""
    page: str | None = None
    """Relative path of its run's page. None: there is none."""

    @property
    def name(self) -> str:
        """Job, and variant where the job has several."""
        return self.job if self.variant is None else f"{self.job}/{self.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepView:
    """A sweep as it is shown."""

    name: str
    num_devices: int
    device_type: str
    ways: tuple[SweepWay, ...]
    results: tuple[VariantResult, ...]
    sources: tuple[str, ...]
    """Of the predicted times, each once."""
    counts_dense: bool
    """Whether the times have a dense part in them."""
    warnings: tuple[str, ...] = ()
    """Of the plans of the chosen parts, each once."""
    without_sets: str | None = None
    """Why variants do not train together. None: they may."""

    @property
    def is_simulated(self) -> bool:
        """Whether a time comes from a simulated device."""
        return any(source.startswith("simulated:") for source in self.sources)

    def way_row(self, way: SweepWay) -> tuple[str, ...]:
        """Return the cells of `WAY_COLUMNS`."""
        what = way_text(way, self.num_devices)
        if way.total_ms is None or way.memory_share is None:
            return (what, "not possible", "", "", "")
        gain = "-" if way.gain is None else f"{way.gain:.2f}"
        return (
            what,
            format_ms(way.total_ms),
            gain,
            format_percent(way.memory_share),
            "chosen" if way.is_chosen else "",
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return sentences about the ways, each with its name."""
        what = "of whole steps" if self.counts_dense else "of the embedding part and the host, without a dense part"
        found = [("times", f"{what}, predicted ({', '.join(self.sources)})")]
        found += [
            ("not possible", f"{way_text(way, self.num_devices)}: {way.problem}") for way in self.ways if way.problem
        ]
        if self.without_sets is not None:
            found.append(("not possible", f"variants together in one trainer: {self.without_sets}"))
        return [*found, *(("warning", text) for text in self.warnings)]

    def described(self) -> dict[str, object]:
        """Return everything as plain data, the results best first."""
        return {
            "sweep": self.name,
            "num_devices": self.num_devices,
            "device_type": self.device_type,
            "counts_dense": self.counts_dense,
            "sources": list(self.sources),
            "ways": [asdict(way) for way in self.ways],
            "variants": [asdict(result) for result in best_first(self.results)],
            "warnings": list(self.warnings),
            "without_sets": self.without_sets,
        }


def way_text(way: SweepWay, num_devices: int) -> str:
    """Return a way in words: how many variants, or sets of them, train on how many devices."""
    if way.together > 1 and len(way.sizes) == 1:
        return f"all together on {format_devices(way.sizes[0])}"
    sets = f"sets of up to {way.together}: " if way.together > 1 else ""
    if set(way.sizes) == {num_devices}:
        return f"{sets}one after the other on {num_devices}"
    numbers = {size: way.sizes.count(size) for size in sorted(set(way.sizes))}
    if len(numbers) > 1:
        return sets + ", ".join(f"{count} on {format_devices(size)} each" for size, count in numbers.items())
    [(size, count)] = numbers.items()
    at_once = min(count, num_devices // size)
    return f"{sets}{at_once} at a time on {format_devices(size)} each"


def diverged_text(step: int) -> str:
    """Return the reason that a variant of a set has no metrics.

    Args:
        step: after which its loss was found not to be finite.
    """
    return f"its loss was not finite after step {step:,}"


def best_first(results: Sequence[VariantResult]) -> list[VariantResult]:
    """Return variants by normalized entropy, AUC, and loss; those without metrics, and then failed ones, last.

    The metrics of one that failed are those of an evaluation before.
    """

    def key(result: VariantResult) -> tuple[bool, float, float, float]:
        entropy = inf if result.normalized_entropy is None else result.normalized_entropy
        auc, loss = inf if result.auc is None else -result.auc, inf if result.loss is None else result.loss
        return (result.problem is not None, entropy, auc, loss)

    return sorted(results, key=key)


def result_columns(results: Sequence[VariantResult]) -> tuple[str, ...]:
    """Return the titles of `result_row`: job, fields that differ, and `RESULT_COLUMNS`."""
    return ("job", *(results[0].settings if results else ()), *RESULT_COLUMNS)


def result_row(result: VariantResult) -> tuple[str, ...]:
    """Return the cells of a variant."""
    return (
        result.name,
        *result.settings.values(),
        "" if result.normalized_entropy is None else f"{result.normalized_entropy:.4f}",
        "" if result.auc is None else f"{result.auc:.4f}",
        "" if result.loss is None else f"{result.loss:.4f}",
        "" if result.seconds is None else f"{result.seconds:,.0f}",
        "" if result.samples_per_second is None else format_count(round(result.samples_per_second)),
        "" if result.step is None else f"{result.step:,}",
        result.state,
    )
