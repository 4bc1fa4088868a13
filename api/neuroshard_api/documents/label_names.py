"""Names that labels usually have: a feature of such a name may be what the model is to predict."""

LABEL_NAMES = frozenset(
    {
        *("label", "labels", "is_label", "target", "targets", "outcome", "response", "y", "y_true", "ground_truth"),
        *("click", "clicks", "clicked", "is_click", "is_clicked", "has_click", "has_clicked"),
        *("conversion", "converted", "is_conversion", "is_converted", "purchase", "purchased", "is_purchase"),
        *("buy", "bought", "installed", "is_install", "like", "liked", "is_liked", "rating"),
    }
)


def is_named_like_label(name: str) -> bool:
    """Return whether a column or a feature has a usual name of a label, in any case."""
    return name.lower().replace("-", "_").replace(" ", "_") in LABEL_NAMES
