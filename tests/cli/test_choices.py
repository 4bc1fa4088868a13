from typing import get_args

from neuroshard_api.documents.dense_layout import CheckpointingChoice, DensePolicy, GroupChoice, SplittingChoice
from neuroshard_api.documents.request import Algorithm, ComputePeak, Pipeline
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.training import NEEDS_NO_PATH, DataFormat
from neuroshard_api.process.optimizer_choice import OptimizerChoice
from neuroshard_api.sharding.kernels import TRAINING_KERNELS
from neuroshard_cli.shared.choices import DataFormatChoice
from neuroshard_dlrm.choices import (
    AlgorithmChoice,
    ComputePeakChoice,
    DenseCheckpointingChoice,
    DenseGroupChoice,
    DensePolicyChoice,
    DenseSplittingChoice,
    OutputTypeChoice,
    PipelineChoice,
)


def test_choices_are_the_enumerations_of_the_documents() -> None:
    """They are spelt out twice for a quick start, and must not drift apart."""
    assert get_args(OptimizerChoice) == tuple(Optimizer)
    assert get_args(OutputTypeChoice) == TRAINING_KERNELS["cuda"].output_types
    assert get_args(PipelineChoice) == tuple(Pipeline)
    assert get_args(ComputePeakChoice) == tuple(ComputePeak)
    assert get_args(DensePolicyChoice) == tuple(DensePolicy)
    assert get_args(DenseGroupChoice) == tuple(GroupChoice)
    assert get_args(DenseCheckpointingChoice) == tuple(CheckpointingChoice)
    assert get_args(DenseSplittingChoice) == tuple(SplittingChoice)
    assert get_args(AlgorithmChoice) == tuple(Algorithm)
    assert get_args(DataFormatChoice) == tuple(each for each in DataFormat if each not in NEEDS_NO_PATH)
