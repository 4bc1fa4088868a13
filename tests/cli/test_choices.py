from typing import get_args

from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.process.optimizer_choice import OptimizerChoice
from neuroshard_dlrm.choices import (
    AlgorithmChoice,
)


def test_choices_are_the_enumerations_of_the_documents() -> None:
    """They are spelt out twice for a quick start, and must not drift apart."""
    assert get_args(OptimizerChoice) == tuple(Optimizer)
    assert get_args(AlgorithmChoice) == tuple(Algorithm)
