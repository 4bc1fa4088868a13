"""Holds the device simulator against public measurements and prints tables, calibrating and held-out ones apart.

python -m benchmarks simulator_vs_published
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.published_measurements import Basis, Measurement, measurements, sources

MEBIBYTE = 2**20
AIMS = {
    "kernel": 1.15,
    "host memory": 1.5,
    "collective below 1 MiB": 1.5,
    "collective from 1 MiB": 1.1,
}
"""Largest factor that the geometric mean of held-out errors should stay within."""
BASES: tuple[Basis, Basis] = ("calibrating", "held out")


class Compared(NamedTuple):
    """A published number next to the simulator's."""

    measurement: Measurement
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over published time; of rates the other way round."""
        ratio = self.simulated / self.measurement.published
        return ratio if self.measurement.is_time() else 1 / ratio

    @property
    def factor(self) -> float:
        """How far both are apart, at least 1."""
        return max(self.ratio, 1 / self.ratio)


def kind_of(measurement: Measurement) -> str:
    """Return the group of a number in the tables."""
    if measurement.kind != "collective":
        return measurement.kind
    num_bytes = measurement.what.get("bytes", MEBIBYTE)
    return f"collective {'below' if num_bytes < MEBIBYTE else 'from'} 1 MiB"


def compared(*, with_steps: bool) -> list[Compared]:
    """Return every number that the simulator has one for. ``with_steps``: also plan whole steps, some minutes."""
    return [
        Compared(each, each.simulated())
        for each in measurements()
        if each.not_compared is None and (with_steps or each.kind != "step")
    ]


def geometric_mean(found: Sequence[Compared]) -> float:
    """Return the geometric mean of how far simulated and published numbers are apart, as a factor."""
    return math.exp(sum(math.log(each.factor) for each in found) / len(found))


def report() -> str:
    """Return the comparison as Markdown."""
    found = compared(with_steps=True)
    steps = [each for each in found if each.measurement.kind == "step"]
    others = [each for each in found if each.measurement.kind != "step"]
    left_out = [each for each in measurements() if each.not_compared is not None]
    lines = [
        "# Device simulator next to public measurements",
        "",
        "Made by `python -m benchmarks simulator_vs_published` from benchmarks/data/published_measurements.json.",
        f"Nothing was measured here. {len(found) + len(left_out)} numbers of {len(sources())} sources; a source either",
        "sets constants of the simulator (calibrating) or judges it (held out), with all its numbers. Errors are",
        "factors: 1.10 is 10 % above or below.",
        "",
        *_summary(others),
        "",
        *_steps(steps),
        "",
        "## Numbers",
        "",
        "Times: simulated over published; of rates the other way round. Above 1 the simulator is too slow.",
        "",
        "| source | basis | what | published | simulated | ratio |",
        "|---|---|---|---|---|---|",
        *(_line(each) for each in found),
        "",
        "## Not compared",
        "",
        "| source | published | why |",
        "|---|---|---|",
        *(_row(each.source, f"{each.published:g} {each.unit}", str(each.not_compared)) for each in left_out),
        "",
        "## Sources",
        "",
        "| source | basis | where | hardware | setting | sets |",
        "|---|---|---|---|---|---|",
        *(
            _row(name, *(each.get(column, "-") for column in ("basis", "where", "hardware", "setting", "sets")))
            for name, each in sources().items()
        ),
    ]
    return "\n".join([*lines, ""])


def _summary(found: Sequence[Compared]) -> list[str]:
    """Return the table of errors by kind, and what fails its aim."""
    lines = [
        "| kind | calibrating: numbers | geometric mean | worst | held out: numbers | geometric mean | worst | aim |",
        "|---|---|---|---|---|---|---|---|",
    ]
    failing = []
    for kind in dict.fromkeys(kind_of(each.measurement) for each in found):
        cells = [kind]
        for basis in BASES:
            part = [each for each in found if kind_of(each.measurement) == kind and each.measurement.basis == basis]
            worst = max(part, key=lambda each: each.factor, default=None)
            cells += (
                ["0", "-", "-"]
                if worst is None
                else [str(len(part)), f"{geometric_mean(part):.2f}", f"{worst.factor:.2f} ({worst.measurement.source})"]
            )
            aim = AIMS.get(kind)
            if basis == "held out" and part and aim is not None:
                beyond = Counter(each.measurement.source for each in part if each.factor > aim)
                if beyond:
                    mean = "met" if geometric_mean(part) <= aim else "**missed**"
                    names = ", ".join(f"{count} of {name}" for name, count in beyond.items())
                    failing.append(f"- {kind}: the mean's aim is {mean}; beyond {aim:g} are {names}.")
        aim = AIMS.get(kind)
        lines.append(_row(*cells, "-" if aim is None else f"{aim:g}"))
    return [*lines, "", "Held-out numbers beyond their aim:", "", *(failing or ["- none"])]


def _steps(steps: Sequence[Compared]) -> list[str]:
    above = [each for each in steps if each.ratio >= 1]
    verdict = "It is below everywhere." if not above else f"It is not below in {len(above)}."
    return [
        "## Whole steps",
        "",
        f"{len(steps)} published whole steps of other systems, all held out. The simulated embedding part of the",
        f"planner's own plan must be below the whole step, which has the dense part too. {verdict}",
        "",
        "| workload | hardware | batch | published step, ms | simulated embedding part, ms | share |",
        "|---|---|---|---|---|---|",
        *(_step_line(each) for each in steps),
    ]


def _step_line(found: Compared) -> str:
    what, published = found.measurement.what, found.measurement.published
    hardware = f"{what['devices']} x {what['device']}"
    times = (f"{published:.2f}", f"{found.simulated:.2f}", f"{found.ratio:.0%}")
    return _row(what["workload"], hardware, f"{what['batch']:,}", *times)


def _line(found: Compared) -> str:
    each = found.measurement
    what = ", ".join(f"{name} {value}" for name, value in each.what.items() if name != "device" and value is not None)
    published, simulated = (f"{value:.4g} {each.unit}" for value in (each.published, found.simulated))
    device = each.what["device"]
    return _row(each.source, each.basis, f"{device}: {what}", published, simulated, f"{found.ratio:.2f}")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(report(), end="")
