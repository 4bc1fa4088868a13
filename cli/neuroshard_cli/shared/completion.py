"""Values that the shell completes, read when the shell asks: names of devices, workloads, fields, and commands."""

from collections.abc import Iterable


def complete_device_types(incomplete: str) -> list[str]:
    """Return the device types with built-in data that begin so, of a list with commas its last word."""
    from neuroshard_api.documents.presets import load_presets

    return _last_of_list(load_presets(), incomplete)


def complete_workloads(incomplete: str) -> list[str]:
    """Return the bundled table sets that begin so; the shell adds its files where there are none."""
    from neuroshard_planner.workload_store import workload_names

    return _beginning(workload_names(), incomplete)


def complete_bundles(incomplete: str) -> list[str]:
    """Return the devices with bundled cost models that begin so; the shell adds its folders where there are none."""
    from neuroshard_costs.bundle import bundled_names

    return _beginning(bundled_names(), incomplete)


def complete_commands(incomplete: str) -> list[str]:
    """Return the commands that begin so."""
    from neuroshard_cli.command_list import ENTRIES

    return _beginning(ENTRIES, incomplete)


def complete_settings(incomplete: str) -> list[str]:
    """Return the fields of a job that begin so, each with the equals sign of its value."""
    from neuroshard_api.job.settings import setting_paths

    return _beginning((f"{path}=" for path in setting_paths()), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _last_of_list(names: Iterable[str], incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(names, last)]
