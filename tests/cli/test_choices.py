from typing import get_args

from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.training import NEEDS_NO_PATH, DataFormat
from neuroshard_api.process.optimizer_choice import OptimizerChoice
from neuroshard_cli.shared.choices import DataFormatChoice
from neuroshard_dlrm.choices import (
    AlgorithmChoice,
)


def test_choices_are_the_enumerations_of_the_documents() -> None:
    """They are spelt out twice for a quick start, and must not drift apart."""
    assert get_args(OptimizerChoice) == tuple(Optimizer)
    assert get_args(AlgorithmChoice) == tuple(Algorithm)
    assert get_args(DataFormatChoice) == tuple(each for each in DataFormat if each not in NEEDS_NO_PATH)
