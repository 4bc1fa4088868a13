"""Public training scripts of TorchRec and DLRM, run as their users run them; for public_examples."""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

MLPERF_ROWS = (
    "40000000,39060,17295,7424,20265,3,7122,1543,63,40000000,3067956,405282,10,2209,11938,155,4,976,14,40000000,"
    "40000000,40000000,590152,12973,108,36"
)
"""Rows that the README of torchrec_dlrm gives for MLPerf DLRM v2."""
SMALL_ROWS = 10_000
"""Of each table where the example is trained."""
_CLICKS = 4096
"""Of each part of nvt_dataloader's data: 32 batches on each of four processes."""
_BUILT_AFTER_TRAINING = ("faiss", "faiss.contrib", "faiss.contrib.torch_utils")
"""Packages that an example imports for the search index that it builds when it has been trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A public example."""

    key: str
    name: str
    folder: Path
    """That imports begin in."""
    script: str
    """Its module."""
    run: Callable[[ModuleType], object]
    """Runs it as its user would."""
    train: Callable[[ModuleType], object]
    """Runs it with tables that two processes of a small machine hold."""
    trained: str
    """What `train` changes, in words."""


def examples(torchrec: Path, dlrm: Path) -> Sequence[Example]:
    """Return the examples that need neither a GPU nor a data set."""
    dcn = ["--interaction_type=dcn", "--embedding_dim=128", "--dense_arch_layer_sizes=512,256,128"]
    random = ["--dataset_name", "random", "--mode", "dmp"]
    return (
        Example(
            key="golden_training",
            name="torchrec: golden_training",
            folder=torchrec,
            script="examples.golden_training.train_dlrm",
            run=lambda module: module.train(),
            train=lambda module: module.train(num_embeddings=SMALL_ROWS),
            trained=f"{SMALL_ROWS:,} rows per table",
        ),
        Example(
            key="data_parallel",
            name="torchrec: golden_training, one table data-parallel",
            folder=torchrec,
            script="examples.golden_training.train_dlrm_data_parallel",
            run=lambda module: module.train(),
            train=lambda module: module.train(num_embeddings=SMALL_ROWS),
            trained=f"{SMALL_ROWS:,} rows per table",
        ),
        Example(
            key="nvt_dataloader",
            name="torchrec: nvt_dataloader",
            folder=torchrec / "examples" / "nvt_dataloader",
            script="train_torchrec",
            run=lambda module: _on_clicks(module, "--num_embeddings=1000000"),
            train=lambda module: _on_clicks(module, f"--num_embeddings={SMALL_ROWS}", "--learning_rate=0.1"),
            trained=f"{SMALL_ROWS:,} rows per table, a learning rate of 0.1 in place of 15, drawn clicks",
        ),
        Example(
            key="two_towers",
            name="torchrec: retrieval, two towers",
            folder=torchrec / "examples" / "retrieval",
            script="two_tower_train",
            run=lambda module: module.train(),
            train=lambda module: module.train(num_embeddings=SMALL_ROWS),
            trained=f"{SMALL_ROWS:,} rows per table",
        ),
        Example(
            key="bert4rec",
            name="torchrec: bert4rec",
            folder=torchrec / "examples" / "bert4rec",
            script="bert4rec_main",
            run=lambda module: module.main(random),
            train=lambda module: module.main([*random, "--train_batch_size=8"]),
            trained="batches of 8",
        ),
        Example(
            key="torchrec_dlrm",
            name="dlrm: torchrec_dlrm, MLPerf v2",
            folder=dlrm / "torchrec_dlrm",
            script="dlrm_main",
            run=lambda module: module.main([*dcn, f"--num_embeddings_per_feature={MLPERF_ROWS}"]),
            train=lambda module: module.main([*dcn, f"--num_embeddings={SMALL_ROWS}", "--learning_rate=0.1"]),
            trained=f"{SMALL_ROWS:,} rows per table, a learning rate of 0.1 in place of 15",
        ),
    )


def _on_clicks(script: ModuleType, *arguments: str) -> None:
    """Run nvt_dataloader's script on clicks that are drawn here. It asks a GPU for its memory; there is none."""
    script.torch.cuda.get_device_properties = lambda _: SimpleNamespace(total_memory=80 * 2**30)
    names = importlib.import_module("torchrec.datasets.criteo")
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("train", "validation", "test"):
            held = Path(folder, part)
            held.mkdir()
            random.integers(0, 2, _CLICKS).astype(np.float32).tofile(held / "label.bin")
            random.random((_CLICKS, len(names.DEFAULT_INT_NAMES)), np.float32).tofile(held / "numerical.bin")
            for name in names.DEFAULT_CAT_NAMES:
                random.integers(0, SMALL_ROWS, _CLICKS).astype(np.int32).tofile(held / f"{name}.bin")
        script.main([f"--binary_path={folder}", *arguments])


@contextmanager
def imported(example: Example) -> Iterator[ModuleType]:
    """Import the script of an example. Modules of its folder are forgotten at the end: others have the same names."""
    before = set(sys.modules)
    sys.path.insert(0, str(example.folder))
    try:
        root = _BUILT_AFTER_TRAINING[0]
        if root not in sys.modules and importlib.util.find_spec(root) is None:
            sys.modules.update({name: _AbsentPackage(name) for name in _BUILT_AFTER_TRAINING})
        yield importlib.import_module(example.script)
    finally:
        sys.path.remove(str(example.folder))
        for name in set(sys.modules) - before:
            if _is_within(sys.modules[name], example.folder):
                del sys.modules[name]


def replace_sharding(script: ModuleType, shard: Callable[..., Any]) -> None:
    """Call a function in the place of a script's DistributedModelParallel."""
    for name in ("DistributedModelParallel", "DMP"):
        if hasattr(script, name):
            setattr(script, name, shard)


def replace_planner(script: ModuleType, planner: Callable[..., Any]) -> None:
    """Make another planner in the place of a script's EmbeddingShardingPlanner, where it has one."""
    if hasattr(script, "EmbeddingShardingPlanner"):
        script.EmbeddingShardingPlanner = planner  # type: ignore[attr-defined] # checked above


def join_alone() -> None:
    """Set what torchrun sets, for one process."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")  # any free one


class _AbsentPackage(ModuleType):
    """A package that is not installed, of which nothing is called: every attribute is a type."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def _is_within(module: ModuleType, folder: Path) -> bool:
    """Return whether a module, or a package without a file, is of a folder."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return any(Path(place).is_relative_to(folder) for place in places if place)
