"""Values that options may take, spelt out so that parsing and help need no import of ours; equal to api's enums."""

from typing import Literal

OutputTypeChoice = Literal["FP32", "FP16", "BF16"]
PipelineChoice = Literal["none", "sparse-dist"]
ComputePeakChoice = Literal["separate", "joint"]
DensePolicyChoice = Literal["auto", "replicate", "shard"]
DenseGroupChoice = Literal["auto", "node", "world"]
DenseCheckpointingChoice = Literal["auto", "never", "always"]
DenseSplittingChoice = Literal["auto", "never", "always"]
AlgorithmChoice = Literal[
    "neuroshard", "random", "dim_greedy", "size_greedy", "lookup_greedy", "size_lookup_greedy", "torchrec"
]
