"""The devices that options describe, and the cost models of these devices."""

import contextlib
import re
from pathlib import Path

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import DevicePreset, preset
from neuroshard_api.documents.topology import DeviceType, Topology
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import MANIFEST_FILE, CostBundle, bundle_at, bundled_bundle, load_bundle
from neuroshard_costs.errors import BundleNotFoundError, CostModelError

from neuroshard_dlrm.options import RequestOptions

_NODES = re.compile(r"(?:(\d+)x)?(\d+)")
"""Of devices as ``16``, or as ``2x8``: nodes, and devices of each."""


def find_preset(device_type: str, *, option: str = "--device-type") -> DevicePreset:
    """Return a known device type. Raises CommandError of the option that names it, listing their names."""
    try:
        return preset(device_type)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from error


def parse_devices(text: str) -> tuple[int | None, int] | None:
    """Return the nodes and the devices of all of them, of ``2x8`` or ``16``, which names no nodes. None: it is a file.

    Raises CommandError where it is neither.
    """
    found = _NODES.fullmatch(text)
    hint = "hint: write 16, or 2x8 for 2 nodes of 8 devices, or the path of a topology file"
    if found is None and (Path(text).suffix or Path(text).is_file()):
        return None
    if found is None:
        raise CommandError(f"--devices: is neither a number nor a file (found {text!r}); {hint}")
    nodes = None if found[1] is None else int(found[1])
    count = int(found[2]) * (1 if nodes is None else nodes)
    if not count:
        raise CommandError(f"--devices: must be at least 1 (found {text}); {hint}")
    return nodes, count


def described_devices(options: RequestOptions) -> Topology | None:
    """Return the topology that the options give whole, or the file of. None: they give a number, or no devices.

    Raises:
        DocumentError: the file cannot be read, or is another document.
        CommandError: the device type is given too, or the devices are neither a number nor a file.
    """
    given = options.devices
    if given is None or isinstance(given, int) or (isinstance(given, str) and parse_devices(given) is not None):
        return None
    if options.device_type is not None:
        raise CommandError("--device-type: the topology of --devices already says it; hint: give one of them")
    return Topology.read(Path(given)) if isinstance(given, str | Path) else given


def build_topology(options: RequestOptions) -> Topology:
    """Return the devices that the options describe: by a topology, or by their number and type. Raises CommandError."""
    described = described_devices(options)
    if described is not None:
        return described
    if options.devices is None or options.device_type is None:
        raise CommandError(
            "--devices and --device-type: both are needed, or a topology file as --devices"
            "; hint: see `neuroshard devices`"
        )
    found = find_preset(options.device_type)
    parsed = parse_devices(str(options.devices))
    assert parsed is not None, "a file is a topology"
    nodes, count = parsed
    nodes = nodes or -(-count // found.devices_per_node)
    per_node, rest = divmod(count, nodes)
    if rest:
        raise CommandError(
            f"--devices: {count} do not fill {nodes} equal nodes; hint: write nodes and devices of each, such as "
            f"{nodes}x{per_node + 1}"
        )
    return found.topology(num_nodes=nodes, devices_per_node=per_node)


def find_bundle(path: Path | None, device: DeviceType) -> CostBundle:
    """Return the bundle of the directory or of that name, of whatever device, or the bundled one of the device.

    A plan with cost models of another device has a warning. Raises BundleError where they cannot be read.
    """
    return bundled_bundle(device.name) if path is None else bundle_at(path)


def bundle_of_plan(plan: Plan, file: Path) -> CostBundle:
    """Return the cost models that a plan was made with: from a run's folder that the file is in, or the bundled ones.

    A run keeps plans that it was not trained under in folders next to those of its cost models.

    Raises:
        BundleError: neither has them, or one of them cannot be read.
    """
    folder = file.absolute().parent
    near = (*folder.glob(f"*/*/{MANIFEST_FILE}"), *folder.glob(f"*/{MANIFEST_FILE}"))
    for manifest in sorted({*near, *folder.parent.glob(f"*/{BUNDLE_FOLDER}/{MANIFEST_FILE}")}):
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
