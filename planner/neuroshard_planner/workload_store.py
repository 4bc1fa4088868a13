"""Table sets of public models that come with the package, by name. Reads files, changes nothing in them."""

from difflib import get_close_matches
from importlib.resources import files

from neuroshard_api.documents.document import parse_data
from neuroshard_api.documents.tables import TableSet

from neuroshard_planner.errors import RequestError

_SUFFIX = ".yaml"
_FOLDER = files("neuroshard_planner") / "workloads"


def workload_names() -> tuple[str, ...]:
    """Return the names of all bundled workloads in alphabetical order."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def read_workload(name: str) -> TableSet:
    """Return a bundled workload, such as ``mlperf-dlrm-dcnv2``. Raises RequestError for a name that is not bundled."""
    names = workload_names()
    if name not in names:
        close = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the bundled workloads are {', '.join(names)}"
        raise RequestError(f"no bundled workload is named {name!r}; hint: {hint}")
    text = (_FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return TableSet.from_data(parse_data(text, where=name, is_json=False), where=name)
