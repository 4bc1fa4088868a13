"""Checkpoints of a run: folders that are there whole or not at all. Knows nothing of what is in a state.

    checkpoints/
      step-00000200/          the newest ``keep`` of these, and one more until the newest is evaluated
        __0_0.distcp ...      torch.distributed.checkpoint: each rank's shards
        .metadata
        checkpoint.json       where training was, and the hash of every other file; written last
      .step-00000300.part/    being written; renamed when complete
      .owner                  which start of the run the folder belongs to: the newest one

All ranks must see the same folder. A start that another one has superseded completes no checkpoint and removes none: a
pod on a node that the cluster has lost may train on.
"""

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from neuroshard_api.documents.document import Document, DocumentError
from neuroshard_api.documents.progress import GuardRecord
from neuroshard_api.process.errors import StorageError
from pydantic import Field
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from neuroshard_trainer.files import disk_full, storage_error, write_file
from neuroshard_trainer.ranks.agreement import gathered

MANIFEST_FILE = "checkpoint.json"
SPARE_BYTES = 2**20
"""Room for metadata and file headers in addition to the tensors."""
_PREFIX, _PART = "step-", ".part"
_OWNER_FILE = ".owner"

State = Mapping[str, Any]
"""Nested mappings of tensors, as torch.distributed.checkpoint takes them."""
T = TypeVar("T")

logger = logging.getLogger(__name__)


class CheckpointManifest(Document):
    """``checkpoint.json``: where training was, and which files belong to it."""

    schema_name: ClassVar[str] = "trainer-checkpoint/v1"

    schema_version: Literal["trainer-checkpoint/v1"] = "trainer-checkpoint/v1"
    step: int
    """Steps done."""
    position: int
    """Training samples used, over all epochs and ranks; the next batch begins with the one behind them."""
    world_size: int
    global_batch_size: int | None = None
    """Samples of a step on all ranks. None: an earlier release wrote it."""
    plan_sha256: str
    """Hash of the plan file that it was trained under."""
    table_widths: dict[str, tuple[int, ...]]
    """Columns of each table's shards, by columns."""
    moment_scale: int = 1
    """The tables' sums of squared gradients over those of one model: the number of groups, with Adagrad."""
    signature: dict[str, str]
    """What must be the same in a run and its continuation, by the job's field."""
    text_features: tuple[str, ...] = ()
    """Features whose ids are texts by the types of the data."""
    guard: GuardRecord | None = None
    """Of narrow types. If unset: there was no guard."""
    gradient_guard: GuardRecord | None = None
    """Of the dense part's gradients. If unset: there was no guard."""
    carries_gradients: bool = False
    """Whether it has what was left over of gradients."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file, by name."""


class CheckpointFolder:
    """The checkpoints of one run. All ranks make one, and call its methods together.

    Args:
        folder: seen by all ranks.
        keep: newest checkpoints that stay.
        group: of all ranks, for CPU tensors.
    """

    def __init__(self, folder: Path, *, keep: int, group: dist.ProcessGroup) -> None:
        self._folder = folder
        self._keep = keep
        self._group = group
        self._rank = dist.get_rank()
        self._token = secrets.token_hex(8)

    def prepare(self) -> None:
        """Make the folder, take it over, and remove what an interrupted run left unfinished. Raises StorageError."""
        self._on_first_rank(self._take_over)

    def save(self, state: State, manifest: CheckpointManifest) -> Path:
        """Write a checkpoint next to the newest ``keep`` before it; older ones go first. Returns its folder.

        Raises:
            StorageError: it does not fit or cannot be written, or a newer start of the run has taken over the folder;
                earlier checkpoints are as they were.
        """
        final = self._folder / f"{_PREFIX}{manifest.step:08d}"
        part = self._folder / f".{final.name}{_PART}"
        needed = torch.tensor(_local_bytes(state), dtype=torch.int64)
        dist.all_reduce(needed, group=self._group)
        self._on_first_rank(lambda: self._make_room(part, final, int(needed)))
        try:
            state_dict_saver.save(dict(state), storage_writer=FileSystemWriter(part), process_group=self._group)
            hashes = self._everyone(lambda: _hashes(part, f"__{self._rank}_*"))
        except (CheckpointException, StorageError) as error:
            failure = _save_failure(self._folder, error)
            reasons = self._everyone(lambda: str(failure))  # before the space is free again
            self._on_first_rank(lambda: shutil.rmtree(part, ignore_errors=True))
            raise StorageError(reasons[0]) from error
        files = {name: digest for each in hashes for name, digest in each.items()}
        self._on_first_rank(lambda: self._complete(part, final, manifest.model_copy(update={"files": files})))
        return final

    def prune(self, newest: Path) -> None:
        """Remove those that are too many, as the newest is known to be good. Raises StorageError."""

        def prune() -> None:
            if self._is_owner():
                self._prune(lambda path: path.name <= newest.name)

        self._on_first_rank(prune)

    def whole(self) -> Iterator[tuple[Path, CheckpointManifest]]:
        """Yield the checkpoints that are undamaged, from the newest on; a warning names each that is not."""
        names = self._everyone(lambda: sorted((path.name for path in self._folder.glob(f"{_PREFIX}*")), reverse=True))
        for name in names[0]:
            folder = self._folder / name
            problems = [problem for problem in self._everyone(lambda: self._damage(folder)) if problem]  # noqa: B023 - called at once
            if problems:
                if self._rank == 0:
                    logger.warning("checkpoint %s is damaged (%s); taking the one before", folder, problems[0])
                continue
            yield folder, CheckpointManifest.read(folder / MANIFEST_FILE)

    @staticmethod
    def saved_names(folder: Path, part: str) -> set[str]:
        """Return the names of the tensors that a checkpoint has in a part of the state. Raises StorageError."""
        try:
            keys = FileSystemReader(folder).read_metadata().state_dict_metadata
        except OSError as error:
            raise StorageError(f"{folder}: cannot be read: {error.strerror or error}") from error
        return {key.removeprefix(f"{part}.") for key in keys if key.startswith(f"{part}.")}

    def load(self, folder: Path, state: State) -> None:
        """Read a checkpoint's tensors into the state's own, each rank what it holds. Raises StorageError."""
        try:
            state_dict_loader.load(dict(state), storage_reader=FileSystemReader(folder), process_group=self._group)
        except CheckpointException as error:
            _, (cause, _) = next(iter(error.failures.items()))
            raise StorageError(
                f"{folder}: cannot be loaded: {cause}; hint: remove it to start from the one before"
            ) from error

    def _take_over(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file(self._folder / _OWNER_FILE, self._token)
        for part in self._folder.glob(f".{_PREFIX}*{_PART}"):
            shutil.rmtree(part)

    def _check_owner(self) -> None:
        """Raise StorageError where a newer start of the run has taken over the folder."""
        if not self._is_owner():
            raise StorageError(
                f"{self._folder}: a newer start of this run has taken over the folder; this one writes no checkpoint"
                "; hint: end one of the two, or give each a folder"
            )

    def _is_owner(self) -> bool:
        owner = self._folder / _OWNER_FILE
        return not owner.exists() or owner.read_text(encoding="utf-8") == self._token

    def _prune(self, counts: Callable[[Path], bool]) -> None:
        for old in sorted(filter(counts, self._folder.glob(f"{_PREFIX}*")))[: -self._keep]:
            shutil.rmtree(old)

    def _make_room(self, part: Path, final: Path, needed_bytes: int) -> None:
        """Make the folder for a checkpoint. Raises StorageError where the disk has no room, or it is another's."""
        self._check_owner()
        self._prune(lambda path: path.name < final.name)
        _make_room(part, needed_bytes)

    def _complete(self, part: Path, final: Path, manifest: CheckpointManifest) -> None:
        files = {**manifest.files, **_hashes(part, ".metadata")}
        write_file(part / MANIFEST_FILE, manifest.model_copy(update={"files": files}).to_json())
        self._check_owner()
        shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step
        part.rename(final)
        _sync(self._folder)

    def _damage(self, folder: Path) -> str | None:
        """Return the damage of this rank's share of the files; None: there is none."""
        return _damage(folder, part=self._rank, num_parts=dist.get_world_size())

    def _on_first_rank(self, action: Callable[[], None]) -> None:
        """Let rank 0 do something. Raises StorageError on all ranks where it fails."""
        self._everyone(action if self._rank == 0 else lambda: None)

    def _everyone(self, action: Callable[[], T]) -> list[T]:
        """Let every rank do something and return what each got. Raises StorageError on all ranks where one fails."""
        outcome: tuple[T | None, str | None]
        try:
            outcome = (action(), None)
        except OSError as error:
            outcome = (None, str(storage_error(self._folder, error)))
        except StorageError as error:
            outcome = (None, str(error))
        outcomes = gathered(outcome, self._group)
        problem = next((problem for _, problem in outcomes if problem is not None), None)
        if problem is not None:
            raise StorageError(problem)
        return [cast("T", result) for result, _ in outcomes]


def has_earlier(checkpoint: Path) -> bool:
    """Whether the folder of a checkpoint holds one of an earlier step."""
    return any(path.name < checkpoint.name for path in checkpoint.parent.glob(f"{_PREFIX}*"))


def newest_whole(folder: Path) -> tuple[Path, CheckpointManifest] | None:
    """Return the newest undamaged checkpoint of a folder, for a process alone. None: there is none."""
    for path in sorted(folder.glob(f"{_PREFIX}*"), reverse=True):
        problem = _damage(path, part=0, num_parts=1)
        if problem is None:
            return path, CheckpointManifest.read(path / MANIFEST_FILE)
        logger.warning("checkpoint %s is damaged (%s); taking the one before", path, problem)
    return None


def save_alone(folder: Path, state: State, manifest: CheckpointManifest) -> Path:
    """Write a checkpoint into a folder that no run uses, by a process alone, and return where. Raises StorageError."""
    final = folder / f"{_PREFIX}{manifest.step:08d}"
    part = folder / f".{final.name}{_PART}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(part, sum(tensor.nbytes for tensor in state.values()))
        state_dict_saver.save(dict(state), storage_writer=FileSystemWriter(part), no_dist=True)
        files = {**_hashes(part, "__0_*"), **_hashes(part, ".metadata")}
        write_file(part / MANIFEST_FILE, manifest.model_copy(update={"files": files}).to_json())
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        _sync(folder)
    except CheckpointException as error:
        raise _save_failure(folder, error) from error
    except OSError as error:
        raise storage_error(folder, error) from error
    return final


def _damage(folder: Path, *, part: int, num_parts: int) -> str | None:
    """Return the damage of one of several equal parts of a checkpoint's files; None: there is none."""
    try:
        files = CheckpointManifest.read(folder / MANIFEST_FILE).files
        for name in sorted(files)[part::num_parts]:
            if _sha256(folder / name) != files[name]:
                return f"{name} is not what was written"
    except DocumentError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _make_room(part: Path, needed_bytes: int) -> None:
    """Make the folder for a checkpoint. Raises StorageError where the disk has no room for it."""
    shutil.rmtree(part, ignore_errors=True)
    free_bytes = shutil.disk_usage(part.parent).free
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise disk_full(part.parent, f"a checkpoint needs {needed_bytes} bytes, {free_bytes} are free")
    part.mkdir()


def _save_failure(folder: Path, error: CheckpointException | StorageError) -> StorageError:
    if isinstance(error, StorageError):
        return error
    causes = [cause for cause, _ in error.failures.values()]
    failed_write = next((cause for cause in causes if isinstance(cause, OSError)), None)
    if failed_write is not None:
        return storage_error(folder, failed_write)
    if shutil.disk_usage(folder).free < SPARE_BYTES:  # torch's own writer does not say so
        return disk_full(folder, "the checkpoint did not fit")
    return StorageError(f"{folder}: the checkpoint could not be written: {causes[0]}; hint: start again")


def _local_bytes(state: object) -> int:
    """Return the bytes of this rank's tensors; what all ranks hold alike counts on rank 0 only."""
    if isinstance(state, Mapping):
        return sum(_local_bytes(value) for value in state.values())
    if isinstance(state, ShardedTensor):
        return sum(shard.tensor.nbytes for shard in state.local_shards())
    if isinstance(state, torch.Tensor) and dist.get_rank() == 0:
        return state.nbytes
    return 0


def _hashes(folder: Path, pattern: str) -> dict[str, str]:
    return {path.name: _sha256(path) for path in folder.glob(pattern)}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    """Make a rename in the folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
