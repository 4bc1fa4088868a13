"""The devices that options describe, and the cost models of these devices."""

import contextlib
from pathlib import Path

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import DevicePreset, preset
from neuroshard_api.documents.topology import DeviceType, Topology
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import MANIFEST_FILE, CostBundle, bundle_at, bundled_bundle, load_bundle
from neuroshard_costs.errors import BundleDeviceError, BundleNotFoundError, CostModelError

from neuroshard_dlrm.options import RequestOptions


def find_preset(device_type: str, *, option: str = "--device-type") -> DevicePreset:
    """Return a known device type. Raises CommandError of the option that names it, listing their names."""
    try:
        return preset(device_type)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from error


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
    """Return the bundle of the directory or of that name, or the bundled one of the device.

    Raises:
        BundleError: it cannot be read, or it is of another device and ``any_device`` does not allow that.
    """
    if path is None:
        return bundled_bundle(device.name)
    bundle = bundle_at(path)
    problem = bundle.device_problem(device)
    if problem is not None and not any_device:
        raise BundleDeviceError(
            f"{path}: {problem}"
            f"; hint: give the cost models of the device, or `--any-device` to plan with these all the same"
        )
    return bundle


def bundle_of_plan(plan: Plan, file: Path) -> CostBundle:
    """Return the cost models that a plan was made with: from a run's folder that the file is in, or the bundled ones.

    Raises:
        BundleError: neither has them, or one of them cannot be read.
    """
    folder = file.absolute().parent
    for manifest in sorted({*folder.glob(f"*/*/{MANIFEST_FILE}"), *folder.glob(f"*/{MANIFEST_FILE}")}):
        with contextlib.suppress(CostModelError):  # a damaged bundle is another one's
            found = load_bundle(manifest.parent)
            if found.manifest.weights_sha256 == plan.bundle.weights_sha256:
                return found
    try:
        return bundled_bundle(plan.request.topology.device.name)
    except BundleNotFoundError as error:
        raise BundleNotFoundError(
            f"{file}: the plan was made with the cost models {plan.bundle.name!r}, and its folder does not have them"
            f"; hint: give their folder with --bundle"
        ) from error
