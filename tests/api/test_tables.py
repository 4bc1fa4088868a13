"""Tables and table sets."""

from builders import table_set


def test_a_set_survives_json() -> None:
    """Reading what was written gives the same value."""
    tables = table_set()

    assert type(tables).from_json(tables.to_json()) == tables
