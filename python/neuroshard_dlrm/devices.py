"""The devices that options describe, and the cost models of these devices."""

from pathlib import Path

from neuroshard_api.documents.presets import DevicePreset, preset
from neuroshard_api.documents.topology import DeviceType, Topology
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import CostBundle, bundled_bundle, load_bundle
from neuroshard_costs.errors import BundleDeviceError

from neuroshard_dlrm.options import RequestOptions


def find_preset(device_type: str) -> DevicePreset:
    """Return a known device type. Raises CommandError, listing their names."""
    try:
        return preset(device_type)
    except ValueError as error:
        raise CommandError(f"--device-type: {error}") from error


def build_topology(options: RequestOptions) -> Topology:
    """Return the devices that the options describe, in one of the two ways."""
    if options.topology is not None:
        if options.devices is not None or options.nodes is not None or options.device_type is not None:
            raise CommandError("--topology: already says what --devices, --nodes and --device-type say; hint: give one")
        return Topology.read(options.topology) if isinstance(options.topology, Path) else options.topology
    if options.devices is None or options.device_type is None:
        raise CommandError(
            "--devices and --device-type: both are needed, or --topology; hint: see `neuroshard devices`"
        )
    found = find_preset(options.device_type)
    nodes = options.nodes if options.nodes is not None else -(-options.devices // found.devices_per_node)
    per_node, rest = divmod(options.devices, nodes)
    if rest:
        raise CommandError(f"--devices: {options.devices} do not fill {nodes} equal nodes; hint: give another --nodes")
    return found.topology(num_nodes=nodes, devices_per_node=per_node)


def find_bundle(path: Path | None, device: DeviceType, *, any_device: bool) -> CostBundle:
    """Return the bundle of the directory, or the bundled one of the device.

    Raises:
        BundleError: it cannot be read, or it is of another device and ``any_device`` does not allow that.
    """
    if path is None:
        return bundled_bundle(device.name)
    bundle = load_bundle(path)
    problem = bundle.device_problem(device)
    if problem is not None and not any_device:
        raise BundleDeviceError(
            f"{path}: {problem}"
            f"; hint: give the cost models of the device, or `--any-device` to plan with these all the same"
        )
    return bundle
