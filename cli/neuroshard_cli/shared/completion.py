"""Values that the shell completes: names of devices and of bundled table sets, read when the shell asks."""


def complete_device_types(incomplete: str) -> list[str]:
    """Return the device types with built-in data that begin so, of a list with commas its last word."""
    from neuroshard_api.documents.presets import load_presets

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in load_presets() if name.startswith(last)]


def complete_workloads(incomplete: str) -> list[str]:
    """Return the bundled table sets that begin so; the shell adds its files where there are none."""
    from neuroshard_planner.workload_store import workload_names

    return [name for name in workload_names() if name.startswith(incomplete)]
