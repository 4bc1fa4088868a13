"""Findings of the data watch, on batches with a fault planted in them."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from neuroshard_api.documents.finding import DataFinding, FindingKind
from neuroshard_api.documents.input_statistics import FeatureStatistics, InputStatistics
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.drift.data_watch import DataState, DataWatch, SampleCount
from neuroshard_trainer.drift.input_statistics import counts_of
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES, ROWS = 512, 1000
COLUMNS = DataColumns(label="click", dense=("age", "price"), fills=(0.0, float("nan")))


class Data:
    """Batches of one rank of two, of which one in 100 is sampled."""

    def __init__(self, *, seed: int = 0, state: DataState | None = None, first_step: int = 0) -> None:
        count = SampleCount(first_step=first_step, first_sample=2 * SAMPLES * first_step, per_step=2 * SAMPLES)
        self.watch = DataWatch(COLUMNS, count, state)
        self._rng, self._of_kinds = np.random.default_rng(seed), np.random.default_rng(100 + seed)

    def batch(
        self,
        *,
        rate: float = 0.1,
        empty: float = 0.0,
        missing: float = 0.1,
        price: float = 0.0,
        row: int = 0,
        usual: float = 0.5,
    ) -> Batch:
        """Return a batch."""
        dense = self._rng.normal(size=(SAMPLES, 2)).astype(np.float32) + np.array([0, price], dtype=np.float32)
        dense[self._rng.random(SAMPLES) < missing, 0] = 0.0
        labels = (self._rng.random(SAMPLES) < rate).astype(np.float32)
        lengths = (self._rng.random(SAMPLES) >= empty).astype(np.int32)
        rows = self._rng.integers(0, ROWS, size=int(lengths.sum()))
        rows[0] = row
        kinds = (self._of_kinds.random(SAMPLES) >= usual).astype(np.int64)
        lookups = KeyedJaggedTensor(
            keys=["item", "kind"],
            values=torch.from_numpy(np.concatenate((rows, kinds))),
            lengths=torch.from_numpy(np.concatenate((lengths, np.ones(SAMPLES, dtype=np.int32)))),
        )
        return Batch(
            dense=torch.from_numpy(dense),
            lookups=lookups,
            labels=torch.from_numpy(labels),
            num_real=SAMPLES,
            num_positive=int(labels.sum()),
        )

    def report(
        self,
        first: int,
        *,
        loss: float = 0.5,
        without_repeats: Sequence[str] = (),
        inputs: tuple[InputStatistics | None, InputStatistics | None] = (None, None),
        **faults: Any,
    ) -> None:
        """Take a report's 100 steps; all of rank 0's batches are the sampled one."""
        batch = self.batch(**faults)
        for step in range(first, first + 100):
            self.watch.offer(step, batch)
        noise = 1 + 0.01 * float(self._rng.normal())
        positive = int(self._rng.binomial(100 * SAMPLES, faults.get("rate", 0.1)))
        self.watch.add_report(first + 99, noise * loss, num_positive=positive, num_samples=100 * SAMPLES)
        self.watch.add_sample(
            first + 99,
            counts_of(batch.lookups),
            rows={"item": ROWS, "kind": 2},
            inputs=inputs,
            without_repeats=without_repeats,
        )

    def reports(self, first: int, last: int, **faults: Any) -> list[tuple[FindingKind, str | None]]:
        """Take the reports of some steps, and return what lasts."""
        for step in range(first, last, 100):
            self.report(step, **faults)
        return [(each.kind, each.column) for each in self.watch.findings if each.until_step is None]


def statistics(lookups: float, *, changed: Sequence[str] = ()) -> InputStatistics:
    """Return statistics of sampled batches."""
    feature = FeatureStatistics(
        feature="item", lookups_per_sample=lookups, distinct_rows_per_lookup=0.5, distinct_lists_per_sample=0.5
    )
    return InputStatistics(
        source="cpu:test",
        plan_sha256="0" * 64,
        first_step=0,
        last_step=299,
        num_batches=3,
        batch_size=SAMPLES,
        counted_samples=SAMPLES,
        changed_features=tuple(changed),
        features=(feature,),
    )


@pytest.mark.parametrize(
    ("fault", "kind", "column", "numbers"),
    [
        ({"empty": 0.2}, FindingKind.NULLS_ROSE, "item", (0.0, 0.2)),
        ({"missing": 0.4}, FindingKind.NULLS_ROSE, "age", (0.1, 0.4)),
        ({"price": 2.0}, FindingKind.VALUES_MOVED, "price", (0.0, 0.68)),
        ({"usual": 1.0}, FindingKind.VALUES_MOVED, "kind", (0.0, 0.5)),
        ({"usual": 0.8}, FindingKind.VALUES_MOVED, "kind", (0.0, 0.3)),
        ({"row": ROWS}, FindingKind.IDS_OUTSIDE, "item", (ROWS, ROWS)),
        ({"row": -1}, FindingKind.IDS_OUTSIDE, "item", (ROWS, -1)),
        ({"rate": 0.0}, FindingKind.LABELS_CONSTANT, "click", (0.9, 0.0)),
        ({"rate": 1.0}, FindingKind.LABELS_CONSTANT, "click", (0.1, 1.0)),
    ],
)
def test_a_fault_is_named_in_the_first_report_with_column_and_samples(
    fault: dict[str, Any],
    kind: FindingKind,
    column: str,
    numbers: tuple[float, float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once in the log, and in the range from the last report without it; the quiet reports before name nothing."""
    data = Data()
    assert data.reports(0, 1000) == []

    with caplog.at_level(logging.WARNING):
        assert data.reports(1000, 1100, **fault) == [(kind, column)]
        assert data.reports(1100, 1200, **fault) == [(kind, column)]

    (found,) = data.watch.findings
    assert [found.before, found.now] == [pytest.approx(each, abs=0.05) for each in numbers]
    assert found.first_step == 1000
    assert (found.last_step, found.first_sample, found.last_sample) == (1099, 1_024_000, 1_126_399)
    assert [record.message for record in caplog.records if record.name.startswith("neuroshard")] == [found.text]
    assert f"column '{column}'" in found.text
    assert "samples 1,024,000 to 1,126,399 (steps 1,000 to 1,099)" in found.text


def test_a_fault_that_ends_stays_with_its_end() -> None:
    """And would be found again."""
    data = Data()
    data.reports(0, 500)
    data.reports(500, 700, missing=0.5)
    assert data.reports(700, 800) == []
    assert data.reports(800, 900, missing=0.5) == [(FindingKind.NULLS_ROSE, "age")]

    first, second = data.watch.findings
    assert (first.last_step, first.until_step) == (599, 799)
    assert (second.last_step, second.until_step) == (899, None)
    assert first.text.endswith(", until step 799")


def test_a_risen_loss_is_named_with_its_level() -> None:
    """With the second report of it; so is the normalized entropy, as the label rate is as before."""
    data = Data()
    data.reports(0, 3000)

    assert data.reports(3000, 3100, loss=0.55) == []
    assert data.reports(3100, 3200, loss=0.55) == [(FindingKind.LOSS_ROSE, None), (FindingKind.ENTROPY_ROSE, None)]
    assert data.watch.findings[0].before == pytest.approx(0.5, abs=0.02)
    assert {(each.first_step, each.last_step) for each in data.watch.findings} == {(3000, 3199)}


def test_a_small_rise_began_in_one_of_the_last_ten_reports() -> None:
    """One that is found once it lasts."""
    data = Data()
    data.reports(0, 3000)

    data.reports(3000, 4000, loss=0.525)

    (found,) = [each for each in data.watch.findings if each.kind is FindingKind.LOSS_ROSE]
    assert found.first_step <= 3000 < found.last_step
    assert found.last_step - found.first_step == 999


def test_another_label_rate_is_named() -> None:
    """With the second report of it."""
    data = Data()
    data.reports(0, 1000)

    assert data.reports(1000, 1200, rate=0.3) == [(FindingKind.LABEL_RATE_MOVED, "click")]
    (found,) = data.watch.findings
    assert (found.first_step, found.last_step) == (1000, 1199)
    assert (found.first_sample, found.last_sample) == (1_024_000, 1_228_799)


def test_other_lookups_began_before_the_batch_that_shows_them_first() -> None:
    """They are found with the second batch, and stay found over a restart, which has seen one batch since."""
    data = Data()
    data.reports(0, 1000)
    usual, moved = statistics(1.0), statistics(2.0, changed=("item",))
    for step in (1000, 1100):
        data.report(step, inputs=(usual, usual if step == 1000 else moved))

    (found,) = data.watch.findings
    assert (found.kind, found.first_step, found.last_step) == (FindingKind.LOOKUPS_MOVED, 1000, 1199)

    again = Data(state=data.watch.state, first_step=1200)
    again.report(1200, inputs=(usual, statistics(2.0)))
    again.report(1300, inputs=(usual, moved))
    assert again.watch.findings == (found,)
    again.report(1400, inputs=(usual, usual))
    assert again.watch.findings[0].until_step == 1499


def test_constant_labels_that_end_before_the_report_are_named() -> None:
    """With the steps of the run."""
    data = Data()
    data.reports(0, 1000)
    for step in range(1000, 1100):
        data.watch.offer(step, data.batch(rate=0.0 if 1020 <= step < 1060 else 0.1))
    data.watch.add_report(1099, 0.5, num_positive=3072, num_samples=51_200)

    (found,) = data.watch.findings
    assert (found.kind, found.first_step, found.last_step) == (FindingKind.LABELS_CONSTANT, 1020, 1099)
    assert data.reports(1100, 1200) == []
    assert data.watch.findings[0].until_step == 1199


def test_a_batch_that_is_taken_in_ahead_is_behind_the_report() -> None:
    """Its labels are constant, and its step is not the report's."""
    data = Data()
    data.reports(0, 1000)
    data.watch.offer(1000, data.batch(rate=0.0))
    data.watch.add_report(999, 0.5, num_positive=0, num_samples=0)

    (found,) = data.watch.findings
    assert (found.first_step, found.last_step) == (1000, 1000)
    assert (found.first_sample, found.last_sample) == (1_024_000, 1_025_023)


def test_lists_that_are_left_out_as_repeats_are_no_missing_ids() -> None:
    """Features whose repeats are left out have empty lists in their place."""
    data = Data()
    data.reports(0, 500, without_repeats=["item"])

    assert data.reports(500, 600, empty=0.5, without_repeats=["item"]) == []


def test_200_quiet_reports_name_nothing() -> None:
    """Of labels, columns, and loss, drawn independently."""
    data = Data(seed=5)

    data.reports(0, 20_000)

    assert data.watch.findings == ()


def test_a_watch_goes_on_from_its_state() -> None:
    """The reference, and what lasts, are those of the start before; a fault is found with the first report."""
    before = Data()
    before.reports(0, 1000)
    before.reports(1000, 1100, missing=0.5)
    state = DataState.model_validate_json(before.watch.state.model_dump_json())
    data = Data(seed=9, state=state, first_step=1100)

    found = data.reports(1100, 1200, missing=0.5, price=2.0)

    assert found == [(FindingKind.NULLS_ROSE, "age"), (FindingKind.VALUES_MOVED, "price")]
    assert data.watch.findings[0].last_step == 1099


def test_what_was_found_in_later_steps_is_found_again() -> None:
    """A start that goes on from an earlier step has neither their findings nor their runs, levels, and rates."""
    before = Data()
    before.reports(0, 600)
    before.reports(600, 700, missing=0.5)
    before.reports(700, 4000, loss=0.4)
    before.reports(4000, 4100, loss=0.4, rate=0.0)
    before.reports(4100, 4300, loss=0.4)
    state = before.watch.state

    data = Data(seed=3, state=state, first_step=600)
    assert data.watch.findings == ()
    assert data.reports(600, 700, missing=0.5) == [(FindingKind.NULLS_ROSE, "age")]
    assert data.reports(700, 4000) == [], "the loss is that of these steps"
    assert data.reports(4000, 4100, rate=0.0) == [(FindingKind.LABELS_CONSTANT, "click")]

    later = Data(seed=4, state=state, first_step=750)
    assert [(each.kind, each.last_step, each.until_step) for each in later.watch.findings] == [
        (FindingKind.NULLS_ROSE, 699, None)
    ], "it had not ended by then"


def test_lookups_of_later_steps_are_found_again_without_reports() -> None:
    """As in a trainer of the user's own, whose losses and labels are not known."""

    def sampled(data: Data, first: int, last: int, **faults: Any) -> list[FindingKind]:
        for step in range(first + 99, last, 100):
            data.watch.add_sample(step, counts_of(data.batch(**faults).lookups), rows={}, inputs=(None, None))
        return [each.kind for each in data.watch.findings]

    before = Data()
    assert sampled(before, 0, 500) == []
    assert sampled(before, 500, 700, usual=1.0) == [FindingKind.VALUES_MOVED]

    again = Data(state=before.watch.state, first_step=400)
    assert again.watch.findings == ()
    assert sampled(again, 400, 500) == []
    assert sampled(again, 500, 600, usual=1.0) == [FindingKind.VALUES_MOVED]


def test_a_finding_is_one_line_for_every_kind() -> None:
    """With and without samples and numbers."""
    for kind in FindingKind:
        short = DataFinding(kind=kind, first_step=3, last_step=3)
        whole = DataFinding(
            kind=kind, column="c", first_step=3, last_step=9, first_sample=30, last_sample=99, before=0.25, now=0.5
        )
        assert short.text.startswith(f"{kind.value}: ")
        assert short.text.endswith("began in step 3")
        assert whole.text.endswith("began in samples 30 to 99 (steps 3 to 9)")
        assert "\n" not in whole.text
