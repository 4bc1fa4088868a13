"""The part of a profile that measures all-to-alls: starts the ranks on this node, and reads the links they found."""

import sys
from pathlib import Path

from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.topology import DeviceType, Link
from neuroshard_costs.fitting.records import read_records
from rich.progress import Progress

from neuroshard_profiler.backends.base import Backend
from neuroshard_profiler.benches.comm_sampling import CommunicationSpace
from neuroshard_profiler.benches.comm_simulated import simulate_communication
from neuroshard_profiler.budget import Budget, BudgetBar
from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.processes import SILENT_SECONDS, Measurer, run_measurers
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.settings import ProfileSettings

COMMUNICATION_LOG = "communication.log"


def measure_communication(
    settings: ProfileSettings, backend: Backend, path: Path, budget_seconds: float, progress: Progress
) -> None:
    """Append records of all-to-alls to a file until the time or the settings' number of records is reached."""
    num_processes = settings.num_processes or 1
    if settings.preset is not None and backend.kind == "simulated":
        space = CommunicationSpace(
            num_nodes=settings.num_nodes,
            devices_per_node=num_processes,
            intra_node=settings.preset.intra_node if num_processes > 1 else None,
            inter_node=settings.preset.inter_node if settings.num_nodes > 1 else None,
            job=settings.tables(),
            job_batch_size_per_device=settings.batch_size_per_device,
        )
        if num_processes * settings.num_nodes > 1:
            with RecordsFile(path, source=backend.source) as file:
                budget = Budget(
                    seconds=budget_seconds, max_records=settings.max_records, earlier_seconds=file.elapsed_seconds
                )
                simulate_communication(settings.preset.device, space, file, budget=budget, seed=settings.seed)
    elif num_processes > 1 or settings.meeting is not None:
        budget = Budget(seconds=budget_seconds, max_records=settings.max_records)
        bar = BudgetBar(progress, "all-to-all", budget)
        command = _ranks_command(settings, backend, path, budget)
        measurer = Measurer(command=command, records=path, log=path.with_name(COMMUNICATION_LOG))
        meets_within_s = settings.meeting_seconds if settings.meeting else 0.0
        run_measurers([measurer], on_poll=bar.update, silent_seconds=SILENT_SECONDS + meets_within_s)


def _ranks_command(settings: ProfileSettings, backend: Backend, path: Path, budget: Budget) -> list[str]:
    """Return the command of this node's launcher."""
    meeting = settings.meeting
    if meeting is None:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    else:  # torchrun with an exit code that tells a peer that did not come from other failures
        command = [sys.executable, "-m", "neuroshard_trainer.launch", f"--nnodes={meeting.num_nodes}"]
        command += [f"--node-rank={meeting.node_rank}", "--rdzv-backend=static", f"--rdzv-endpoint={meeting.endpoint}"]
        command += [f"--rdzv-conf=timeout={settings.meeting_seconds:.0f}"]
    command += [f"--nproc-per-node={settings.num_processes}", "-m", "neuroshard_profiler", "collect-comm"]
    command += ["--out", str(path), "--budget", f"{budget.seconds:.3f}s", "--device", backend.kind]
    command += ["--seed", str(settings.seed), "--batch-size", str(settings.batch_size_per_device)]
    command += ["--tables", str(settings.tables_file)] if settings.tables_file else []
    command += ["--max-records", str(settings.max_records)] if settings.max_records else []
    return command


def require_network(settings: ProfileSettings, device: DeviceType, path: Path) -> None:
    """Raise SettingsError, before measuring, if the job's network between nodes would remain unknown."""
    known = settings.meeting or settings.device_type or device.name in load_presets()
    if settings.num_nodes > 1 and not known and measured_links(path)[1] is None:
        raise SettingsError(
            f"the job has {settings.num_nodes} nodes, one node cannot measure the network between them, and no usual "
            f"one is known for the device {device.name!r}"
            "; hint: name a device type of `neuroshard devices` whose network is like this one (--device-type, "
            "spec.profiler.deviceType), or measure on two nodes (--meet)"
        )


def measured_links(path: Path) -> tuple[Link | None, Link | None]:
    """Return the link inside a node and the one between nodes, each None where it was not spanned."""
    for record in read_records(path) if path.exists() else ():
        if record.communication is not None:
            return record.communication.intra_node, record.communication.inter_node
    return None, None
