"""``--batch-size`` with several numbers: the list, a request for each, and what each comes to as plain data."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.options import BATCH_PLACEHOLDER, RequestOptions

from neuroshard_cli.shared.output import print_document, print_text

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import Plan
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_dlrm.requests import Source
    from neuroshard_report.explain.batch_sizes import BatchSize

MOST_SIZES = 16
_MOST_SAMPLES = 2**24


def parse_batch_sizes(text: str | None) -> tuple[int, ...]:
    """Return the samples per device of a text such as ``8192`` or ``8192,4096``; none for None. Raises CommandError."""
    if text is None:
        return ()
    hint = "hint: give a whole number, or several with commas between them, each once, such as 8192,4096"
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= int(word) <= _MOST_SAMPLES):
            raise CommandError(f"--batch-size: is not a number from 1 to {_MOST_SAMPLES:,} (found {word!r}); {hint}")
    sizes = tuple(map(int, words))
    twice = next((size for size in sizes if sizes.count(size) > 1), None)
    if twice is not None:
        raise CommandError(f"--batch-size: has {twice} twice; {hint}")
    if len(sizes) > MOST_SIZES:
        raise CommandError(f"--batch-size: plans at most {MOST_SIZES} sizes (found {len(sizes)}); hint: give fewer")
    return sizes


def requests_of(source: "Source", options: RequestOptions, sizes: tuple[int, ...]) -> "list[PlanRequest]":
    """Return the request of a source at each of several batch sizes; none for one. Raises as `request_of`."""
    from neuroshard_dlrm.requests import request_of

    if len(sizes) < 2:  # noqa: PLR2004 - there is nothing to compare
        return []
    if options.dense is not None and BATCH_PLACEHOLDER not in str(options.dense):
        raise CommandError(
            f"--batch-size: a dense part is counted for one batch size (found --dense {options.dense})"
            f"; hint: count it for each, and give the files' name with {BATCH_PLACEHOLDER} in the place of the number: "
            f"--dense dense-{BATCH_PLACEHOLDER}.json"
        )
    return [request_of(source, replace(options, batch_size=size), None, with_dense_of_jobs=True) for size in sizes]


def print_sizes(found: "Sequence[BatchSize]", *, source: str, as_json: bool) -> None:
    """Show the results of batch sizes, without a plan; nothing where there are none."""
    from neuroshard_report.terminal.batch_sizes import render_batch_sizes

    if found and as_json:
        print_document(with_sizes(None, found))
    elif found:
        print_text(render_batch_sizes(found, source=source))


def with_sizes(plan: "Plan | None", found: "Sequence[BatchSize]") -> str:
    """Return a plan and what batch sizes come to as JSON: the plan alone where there are none. None: no plan."""
    if plan is not None and not found:
        return plan.to_json()
    whole = {
        "plan": None if plan is None else json.loads(plan.to_json()),
        "batch_sizes": [_described(each) for each in found],
    }
    return json.dumps(whole, indent=1) + "\n"


def _described(found: "BatchSize") -> dict[str, object]:
    """Return a batch size as plain data: its numbers, or the problem why it has no plan."""
    first: dict[str, object] = {"batch_size_per_device": found.samples_per_device}
    return {**first, "problem": found.problem} if found.plan is None else {**first, **asdict(found.plan)}
