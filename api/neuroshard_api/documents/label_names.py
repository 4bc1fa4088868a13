"""Names that labels usually have: a feature of such a name may be what the model is to predict."""

from collections.abc import Iterator, Sequence

from neuroshard_api.documents.tables import IdRule, Table

LABEL_ROWS = 2  # of a table of labels: clicked or not
HASHED_LABEL_ROWS = 4  # of the same as texts: `neuroshard stats` gives each two rows
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


def label_warnings(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a sentence for each table that may be of the label: data is not seen here, rows and names are."""
    for table in tables:
        named = next((name for name in table.features if is_named_like_label(name)), None)
        hashed = HASHED_LABEL_ROWS if table.id_rule is IdRule.HASH else LABEL_ROWS
        if named is not None and table.num_embeddings <= hashed:
            yield (
                f"tables: {table.name!r} has {table.num_embeddings} rows, and its feature {named!r} is named like a "
                "label; a model that looks up its label predicts it; hint: if it is the label, remove the table "
                f"(`neuroshard stats --label {named}`)"
            )
