"""Values that options may take, spelt out so that parsing and help need no import of ours; equal to api's enums."""

from typing import Literal

AlgorithmChoice = Literal[
    "neuroshard", "random", "dim_greedy", "size_greedy", "lookup_greedy", "size_lookup_greedy", "torchrec"
]
