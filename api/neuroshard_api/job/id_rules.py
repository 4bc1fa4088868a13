"""The rule by which ids of a log become rows of a table, where the table or the format of the data decides it."""

from neuroshard_api.documents.tables import IdRule, Table
from neuroshard_api.job.training import DataFormat

_MODULO_FORMATS = (DataFormat.CRITEO_TSV, DataFormat.CRITEO_BINARY, DataFormat.CRITEO_MULTI_HOT)
_FORMATS_OF_ROWS = (DataFormat.SYNTHETIC, DataFormat.MOVIELENS_100K, DataFormat.DATASET)


def id_rule_of(table: Table, data_format: DataFormat) -> IdRule:
    """Return the rule of a table's ids: its own, or that of the format of its data, which may have rows alone."""
    default = default_rule(data_format)
    return default if data_format in _FORMATS_OF_ROWS else table.id_rule or default


def default_rule(data_format: DataFormat) -> IdRule:
    """Return the rule of tables that have none."""
    return IdRule.MODULO if data_format in _MODULO_FORMATS else IdRule.EXACT
