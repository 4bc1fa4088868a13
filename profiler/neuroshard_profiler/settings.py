"""What a profile is asked for, and what a job asks. Measures nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from neuroshard_api.documents.document import read_data
from neuroshard_api.documents.presets import DevicePreset, preset
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.documents.tables import Optimizer, TableSet
from neuroshard_api.job.job_file import is_job_file
from neuroshard_api.job.preparation import ProfilerBackend
from neuroshard_api.job.profile_time import profile_seconds
from neuroshard_api.job.settings import Settings, with_settings
from neuroshard_api.job.stage_commands import NODE_RANK_VARIABLE, meeting_seconds
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_api.sharding.kernels import DeviceKind

from neuroshard_profiler.backends.select import BackendName
from neuroshard_profiler.errors import SettingsError

DEFAULT_BUDGET_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuringProcess:
    """One of several measuring processes, each on a separate GPU and with every n-th sample."""

    index: int = 0
    count: int = 1

    @classmethod
    def parsed(cls, text: str) -> "MeasuringProcess":
        """Return the part that a text such as ``3/8`` names: the fourth of eight. Raises SettingsError."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise SettingsError(
                f"part: {text!r} is not a part; hint: write its index and their number, such as 0/8 to 7/8"
            )
        return cls(index=int(found[1]), count=int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def share_of(self, number: int) -> int:
        """Return each part's share of that many records, rounded up."""
        return -(-number // self.count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where two nodes meet to measure the network between them, and which of them this is."""

    endpoint: str
    """Host and port of node 0, as `host:port`."""
    node_rank: int
    """0 for the node that writes the profile, 1 for its peer."""

    num_nodes: ClassVar[int] = 2

    @classmethod
    def at(cls, endpoint: str, *, node_rank: str | None) -> "Meeting":
        """Return the meeting of this node. Raises SettingsError for an address or a number that is none."""
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal():
            raise SettingsError(f"meet: {endpoint!r} is not an address; hint: write host:port of node 0")
        if node_rank not in {"0", "1"}:
            raise SettingsError(
                f"meet: {NODE_RANK_VARIABLE} must be 0 on the node that writes the profile and 1 on its peer, "
                f"found {node_rank!r}; hint: set it, as torchrun and Indexed Jobs do"
            )
        return cls(endpoint=endpoint, node_rank=int(node_rank))


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSettings:
    """One run of the profiler."""

    out: Path
    """Folder of the records, the bundle and hardware.json; one that is there is continued."""
    tables_file: Path | None = None
    """The job's tables, half of what is measured. None: sets that are spread widely, only."""
    backend: BackendName | None = None
    """None: FBGEMM where it is installed, else torch's own EmbeddingBag."""
    device_kind: DeviceKind | None = None
    """What a torch backend times on. None: a GPU if there is one."""
    device_type: str | None = None
    """A preset: what is simulated, and what a GPU that is not a preset by name is taken for."""
    budget_seconds: float = DEFAULT_BUDGET_SECONDS
    """Time for all of it, roughly."""
    max_records: int | None = None
    """Of each kind. None: as many as the time allows, or 256 simulated ones."""
    batch_size_per_device: int = 8192
    """The job's."""
    num_nodes: int = 1
    """The job's."""
    devices_per_node: int | None = None
    """The job's. None: as many as processes measure."""
    num_processes: int | None = None
    """Processes that measure here. None: the job's devices per node; without a job all GPUs. On one CPU node at least
    two."""
    meeting: Meeting | None = None
    """Where the other node is met. None: the devices of this node exchange among themselves."""
    meeting_seconds: float = 180.0
    """How long each of two nodes waits for the other."""
    part: MeasuringProcess = MeasuringProcess()
    """Of the table sets, where several processes measure them."""
    optimizer: Optimizer | None = None
    """The job's, the only one that is measured. None: all that the backend has."""
    seed: int = 0

    @property
    def global_batch_size(self) -> int:
        """Samples of one step over all devices of the job."""
        return self.batch_size_per_device * self.num_job_devices

    @property
    def num_job_devices(self) -> int:
        """Devices of the job."""
        return self.num_nodes * (self.devices_per_node or self.num_processes or 1)

    @property
    def preset(self) -> DevicePreset | None:
        """The preset that is named. Raises SettingsError for a name that is none."""
        try:
            return preset(self.device_type) if self.device_type else None
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def tables(self) -> TableSet | None:
        """Read the job's tables. Raises DocumentError."""
        return read_table_set(self.tables_file) if self.tables_file else None


FIELDS: Final[Mapping[str, str]] = {
    "spec.profiler.backend": "backend",
    "spec.profiler.deviceType": "device_type",
    "spec.profiler.budgetSeconds": "budget_seconds",
    "spec.experimental.profiler.timeoutSeconds": "meeting_seconds",
    "spec.model.batchSizePerDevice": "batch_size_per_device",
    "spec.model.embeddingOptimizer": "optimizer",
    "spec.trainer.numNodes": "num_nodes",
    "spec.trainer.numProcPerNode": "devices_per_node",
}
"""Fields of a job that a profile depends on, and what they are in ProfileSettings."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "profile"},
    "spec": {"model": {"embeddingTablesFrom": {"file": "tables.json"}}},
}


def job_and_tables(files: Sequence[Path]) -> tuple[Path | None, Path | None]:
    """Return the files of a job and of tables among those given. Raises DocumentError, or SettingsError for others."""
    jobs = [path for path in files if is_job_file(path)]
    others = [path for path in files if path not in jobs]
    if len(jobs) > 1 or len(others) > 1:
        names = ", ".join(map(str, jobs if len(jobs) > 1 else others))
        raise SettingsError(f"{names}: a profile is for one job with one set of tables; hint: leave the others out")
    return (jobs[0] if jobs else None), (others[0] if others else None)


def job_settings(path: Path | None, settings: Settings) -> dict[str, Any]:
    """Return the profile settings of a job, by the names of ProfileSettings.

    Args:
        path: of the job's file. None: there is none, and only settings say something.
        settings: fields by path, over what the file says.

    Raises:
        DocumentError: the job is not valid.
        CommandError: there is no such field.
        SettingsError: a setting says nothing of a profile.
    """
    vain = next((name for name in settings if name not in FIELDS), None)
    if path is None:
        job = DLRMTrainingJob.from_data(with_settings(_DEFAULTS, settings), where="--set")
    else:
        document = read_data(path)
        changed = with_settings(document, settings) if settings and isinstance(document, Mapping) else document
        job = DLRMTrainingJob.from_data(changed, where=str(path))
    if vain is not None:
        raise SettingsError(f"--set {vain}: does not change what is measured; hint: fields are {', '.join(FIELDS)}")
    profiler, trainer = job.spec.profiler, job.spec.trainer
    simulated = profiler.backend is ProfilerBackend.SIMULATED
    found = {
        # Where the GPUs of a job cannot be used, a profile of the CPU would be of no use.
        "device_kind": "cuda" if trainer.num_gpus_per_node > 0 and not simulated else None,
        "backend": profiler.backend.option,
        "device_type": profiler.device_type,
        "batch_size_per_device": job.spec.model.batch_size_per_device,
        "num_nodes": trainer.num_nodes,
        "devices_per_node": trainer.devices_per_node,
        "optimizer": job.spec.model.embedding_optimizer.optimizer,
        "budget_seconds": profile_seconds(job.spec),
        "meeting_seconds": meeting_seconds(job.spec),
    }
    return found if path is not None else {name: found[name] for name in (FIELDS[each] for each in settings)}
