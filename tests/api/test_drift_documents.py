"""Reports of drift, and statistics of inputs."""

from pathlib import Path

import pytest
from neuroshard_api.documents.document import Document, DocumentError
from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.step_report import HostBoundShares
from support import builders
from support.trainer import training_builders

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "file-formats.md"


@pytest.mark.parametrize("document", [DriftReport, InputStatistics], ids=["drift report", "input statistics"])
def test_the_example_of_the_reference_is_what_is_written(document: type[Document]) -> None:
    """Byte for byte: a change of fields, of their order, or of their words shows in the reference."""
    blocks = REFERENCE.read_text(encoding="utf-8").split("```json\n")[1:]
    (shown,) = (text for block in blocks if document.schema_name in (text := block.split("```")[0]))

    assert document.from_json(shown).to_json() == shown


@pytest.mark.parametrize(
    "document",
    [training_builders.drift_report(), training_builders.input_statistics()],
    ids=["drift report", "input statistics"],
)
def test_a_document_is_read_as_it_was_written(document: Document) -> None:
    """Through its JSON."""
    assert type(document).from_json(document.to_json()) == document


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("recent.1.rank", 2, r"recent\[\].rank: must be those of the reference, .*found \[0, 1\] and \[0, 2\]"),
        ("recent", [], "recent: needs at least 1 entries"),
        ("recent.0.step_ms", "NaN", r"recent\[0\].step_ms"),
        ("recent.0.step_ms", -1.0, r"recent\[0\].step_ms: .*greater than or equal to 0"),
        ("changes.0.cause", "Ghosts", r"changes\[0\].cause: .*InputsDrifted.*found \"Ghosts\""),
        ("changes.0.cause", "InputsDrifted", r"changes\[0\]: tables: are named for InputsDrifted"),
        ("changes.0.tables", ["item"], r"changes\[0\]: tables: .* found DeviceSlow"),
        ("changes.0.ranks", [7], r"changes\[\].ranks: must be among \[0, 1\], found \[7\]"),
        ("changes.0.evidence", [], r"changes\[0\].evidence: needs at least 1"),
        ("changes.0.since_step", -3, r"changes\[0\].since_step"),
        ("plan_sha256", "abc", "plan_sha256"),
        ("confidence", 1, "confidence: is not a known key"),
    ],
)
def test_a_broken_drift_report_names_the_field(path: str, value: object, sentence: str) -> None:
    """Ranks that are missing, times that are none, and causes that nobody knows."""
    with pytest.raises(DocumentError, match=sentence):
        DriftReport.from_data(
            builders.data_with(training_builders.drift_report(), path, value), where="drift-report.json"
        )


def test_a_headline_says_where_the_evidence_is_in_part_the_hosts_time() -> None:
    """On the rank that it is of; a part of another rank that the host bound is no evidence."""
    report = training_builders.drift_report()
    shares = HostBoundShares(forward_compute=0.9)
    (evidence, *_) = report.changes[0].evidence
    assert (evidence.part, evidence.rank) == ("compute", 1)

    def headline(rank: int) -> str:
        recent = [
            each.model_copy(update={"host_bound": shares if each.rank == rank else None}) for each in report.recent
        ]
        return report.model_copy(update={"recent": tuple(recent)}).headline or ""

    assert headline(1).endswith("DeviceSlow, rank 1; times of the parts include waiting for the host")
    assert headline(0).endswith("DeviceSlow, rank 1")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("features", [], "features: needs at least 1"),
        (
            "features.0.distinct_rows_per_lookup",
            1.5,
            r"features\[0\].distinct_rows_per_lookup: .*less than or equal to 1",
        ),
        ("features.0.reuse_histogram", [1.0], r"features\[0\].reuse_histogram: needs at least 17"),
        ("last_step", 0, None),
        ("first_step", 901, "last_step: must be at least first_step 901, found 900"),
        ("batch_size", 0, "batch_size"),
    ],
)
def test_broken_input_statistics_name_the_field(path: str, value: object, sentence: str | None) -> None:
    """Shares above 1, histograms of another length, and steps in the wrong order; one step alone is right."""
    data = builders.data_with(training_builders.input_statistics(), path, value)
    if sentence is None:
        assert InputStatistics.from_data(data).last_step == value
        return
    with pytest.raises(DocumentError, match=sentence):
        InputStatistics.from_data(data, where="input-statistics.json")


def test_a_feature_is_there_once() -> None:
    """Two rows of one feature cannot both be its mean."""
    feature = training_builders.input_statistics().features[0]

    with pytest.raises(ValueError, match="each feature must be there once, found 'item' again"):
        training_builders.input_statistics(features=(feature, feature))
