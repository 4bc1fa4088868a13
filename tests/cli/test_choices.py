from typing import get_args

from neuroshard_api.request import Algorithm
from neuroshard_api.tables import DataType, Optimizer
from neuroshard_cli.choices import AlgorithmChoice, DataTypeChoice, OptimizerChoice


def test_choices_are_the_enumerations_of_the_documents() -> None:
    """They are spelt out twice for a quick start, and must not drift apart."""
    assert get_args(OptimizerChoice) == tuple(Optimizer)
    assert get_args(DataTypeChoice) == tuple(DataType)
    assert get_args(AlgorithmChoice) == tuple(Algorithm)
