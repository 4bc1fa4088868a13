"""Algorithms on one request, each timed, TorchRec's planner within a limit of time."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

from neuroshard_api.documents.plan_parts import BaselineCost
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import CostBundle
from neuroshard_planner.baselines.torchrec import require_torchrec
from neuroshard_report.explain.comparison import Comparison, compare
from neuroshard_report.terminal.comparison import Timed

from neuroshard_dlrm.time_limit import TimeLimitError, time_limit

TORCHREC_SECONDS = 60.0
"""Default limit of TorchRec's planner, whose search grows with the tables."""


def chosen_algorithms(names: Sequence[str] | None, *, option: str = "algorithms") -> list[Algorithm]:
    """Return the algorithms of these names, all for None. Raises CommandError for a name that there is not."""
    chosen = [str(name).strip() for name in names] if names is not None else list(Algorithm)
    unknown = [name for name in chosen if name not in list(Algorithm)]
    if unknown or not chosen:
        problem = f"there is no {unknown[0]!r}" if unknown else "names none"
        raise CommandError(f"{option}: {problem}; hint: choose among {', '.join(Algorithm)}")
    return [each for each in Algorithm if each in chosen]


def timed_comparison(
    request: PlanRequest, algorithm: Algorithm, *, bundle: CostBundle, torchrec_seconds: float = TORCHREC_SECONDS
) -> Timed:
    """Return the result and the time of one algorithm; TorchRec's planner has a problem where its limit passes.

    Raises CommandError for TorchRec's planner outside of the main thread, where nothing can be interrupted.
    """
    started = time.perf_counter()
    limit = torchrec_seconds if algorithm is Algorithm.TORCHREC else None
    if limit is not None:
        if threading.current_thread() is not threading.main_thread():
            raise CommandError(
                "algorithms: the time of TorchRec's planner is limited in the main thread alone; hint: leave "
                "torchrec out of them"
            )
        with suppress(MissingPackageError):  # which the comparison reports
            require_torchrec("the algorithm torchrec")  # an import must not be cut off
    try:
        with time_limit(limit):
            (found,) = compare(request, bundle=bundle, algorithms=(algorithm,))
    except TimeLimitError:
        problem = (
            f"TorchRec's planner took more than {limit:g} s; hint: torchrec_seconds of neuroshard_dlrm.compare raises "
            "the limit"
        )
        found = Comparison(algorithm=algorithm, evaluations=0, problem=problem)
    return Timed(comparison=found, seconds=time.perf_counter() - started)


def torchrec_cost(request: PlanRequest, *, bundle: CostBundle) -> tuple[BaselineCost, ...]:
    """Return the cost of TorchRec's own plan, or why it has none; nothing where TorchRec is not installed."""
    if find_spec("torchrec") is None:
        return ()
    found = timed_comparison(request, Algorithm.TORCHREC, bundle=bundle).comparison
    if found.outcome is None:
        return (BaselineCost(algorithm=Algorithm.TORCHREC, problem=found.problem),)
    total_ms, step_ms = found.outcome.predicted.total_ms, found.outcome.step.total_ms
    return (BaselineCost(algorithm=Algorithm.TORCHREC, total_ms=total_ms, step_ms=step_ms),)
