"""The plan request of a job file: the one that the operator makes, on devices that are here or not."""

from dataclasses import replace

from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.process.failures import CommandError

from neuroshard_dlrm.devices import build_topology
from neuroshard_dlrm.options import RequestOptions

OF_DEVICES = frozenset(
    {"tables", "devices", "nodes", "device_type", "topology", "bundle", "any_device", "dense", "batch_size", "batches"}
)
"""Options that hold for a job too: its devices may not be here, and its dense part is counted by a command with torch.
All others say what the job says."""


def request_of_job(file: JobFile, options: RequestOptions, algorithm: Algorithm | str | None) -> PlanRequest:
    """Return the request of a job on the devices that the options name; what they leave out, the job names.

    Raises:
        CommandError: an option says what the job says, or nothing names the type of the devices.
        DocumentError: the tables cannot be read, or not be planned so.
    """
    other = next((name for name in options.given() if name not in OF_DEVICES), None)
    if other is not None:
        raise CommandError(
            f"--{other.replace('_', '-')}: {file.path} is a job, which says this itself; hint: set it in the job's spec"
        )
    job = file.job
    if options.batch_size is not None:
        model = job.spec.model.model_copy(update={"batch_size_per_device": options.batch_size})
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})
    topology = build_topology(_with_devices_of(file, options))
    chosen = None if algorithm is None else Algorithm(algorithm)
    request = plan_request(job, tables=file.tables(), topology=topology, algorithm=chosen)
    if options.dense is None:
        return request
    counted = options.dense_path(request.batch_size_per_device)
    return request.with_dense(DenseProfile.read(counted), where=str(counted))


def _with_devices_of(file: JobFile, options: RequestOptions) -> RequestOptions:
    """Return the options with the devices of the job where they name none. Raises CommandError."""
    if options.topology is not None:
        return options
    spec = file.job.spec
    device_type = options.device_type or spec.profiler.device_type
    if device_type is None:
        raise CommandError(
            f"--device-type: is missing, and {file.path} names none in spec.profiler.deviceType"
            "; hint: give --device-type, one of `neuroshard devices`"
        )
    if options.devices is not None:
        return replace(options, device_type=device_type)
    nodes = options.nodes or spec.trainer.num_nodes
    return replace(options, device_type=device_type, nodes=nodes, devices=nodes * spec.trainer.devices_per_node)
