"""A pod's spec merged over another, as `kubectl patch` does it: lists whose entries have a key are merged by it."""

from collections.abc import Mapping, Sequence
from typing import Any

# The patch merge keys of a PodSpec in Kubernetes' API; lists that are not here are replaced as a whole.
MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
}


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the fields of `overlay`; null removes a field, other lists and values replace."""
    result = dict(base)
    for key, value in overlay.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS and _all_have(value, MERGE_KEYS[key]):
            result[key] = _by_key(result.get(key) or [], value, MERGE_KEYS[key])
        else:
            result[key] = value
    return result


def _by_key(base: Sequence[Mapping[str, Any]], overlay: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """Merge the entries that agree in `key`; the others of `overlay` come after those of `base`."""
    entries = {entry[key]: dict(entry) for entry in base}
    for entry in overlay:
        entries[entry[key]] = merged(entries.get(entry[key], {}), entry)
    return list(entries.values())


def _all_have(entries: Sequence[Any], key: str) -> bool:
    return all(isinstance(entry, Mapping) and isinstance(entry.get(key), str | int) for entry in entries)
