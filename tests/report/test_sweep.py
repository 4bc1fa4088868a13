"""Results of a sweep in their order."""

from neuroshard_report.sweep import VariantResult, best_first


def test_a_variant_that_failed_is_after_all_that_did_not() -> None:
    """Its metrics are those of an evaluation before it failed."""
    results = [
        VariantResult(job="failed", settings={}, normalized_entropy=0.5, problem="the loss is nan"),
        VariantResult(job="waiting", settings={}),
        VariantResult(job="good", settings={}, normalized_entropy=0.7, auc=0.8),
        VariantResult(job="better", settings={}, normalized_entropy=0.7, auc=0.9),
    ]

    assert [each.job for each in best_first(results)] == ["better", "good", "waiting", "failed"]
