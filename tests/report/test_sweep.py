"""Results of a sweep in their order."""

from neuroshard_report.sweep import VariantResult, best_first, result_row


def test_a_variant_that_failed_is_after_all_that_did_not() -> None:
    """Its metrics are those of an evaluation before it failed."""
    results = [
        VariantResult(job="failed", settings={}, normalized_entropy=0.5, problem="the loss is nan"),
        VariantResult(job="waiting", settings={}),
        VariantResult(job="good", settings={}, normalized_entropy=0.7, auc=0.8),
        VariantResult(job="better", settings={}, normalized_entropy=0.7, auc=0.9),
    ]

    assert [each.job for each in best_first(results)] == ["better", "good", "waiting", "failed"]


def test_without_held_out_samples_the_loss_orders_variants() -> None:
    """There is no other metric."""
    results = [VariantResult(job=f"{loss}", settings={}, loss=loss) for loss in (0.6, 0.5)]

    assert [each.job for each in best_first(results)] == ["0.5", "0.6"]
    assert "0.5000" in result_row(results[1])
