"""TorchRec's own tests, run over the installed TorchRec with NeuroShard's planner in the place of TorchRec's.

A clone of TorchRec, which the caller names, has the tests; what is tested is the installed package. A copy of the
package gets the clone's test folders, and is imported in the installed one's place. Each test folder replaces the
planner when it is imported, so that processes which a test starts have it replaced too.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

TEST_FOLDERS = frozenset({"tests", "api_tests"})
PLANNER_TESTS = (
    "distributed/planner/tests/test_planners.py",
    "distributed/planner/tests/test_embedding_utils.py",
    "distributed/planner/tests/test_embeddingbag_utils.py",
    "distributed/planner/tests/test_stats.py",
    "distributed/planner/tests/test_types.py",
    "schema/api_tests/test_planner_schema.py",
)
GLOO_TESTS = ("distributed/tests/test_model_parallel_gloo.py",)
"""Sharded trainings on processes that compute on the CPU, compared with unsharded ones."""
HERE = Path(__file__).parent


def installed_package() -> Path:
    """Return the folder of the installed TorchRec."""
    spec = find_spec("torchrec")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def with_tests(package: Path, clone: Path, folder: Path) -> Path:
    """Return a copy of a package with the test folders of a clone.

    Args:
        package: the installed TorchRec.
        clone: a git repository of TorchRec; the tests are those of its HEAD.
        folder: emptied, and filled with the copy.

    Raises:
        SystemExit: the clone has no such repository.
    """
    git = shutil.which("git") or "git"
    found = subprocess.run([git, "-C", clone, "archive", "HEAD", "torchrec"], capture_output=True, check=False)
    if found.returncode:
        raise SystemExit(f"TORCHREC={clone}: is no clone of TorchRec: {found.stderr.decode().strip()}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(package, folder / "torchrec")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        members = [each for each in archive if TEST_FOLDERS & {*Path(each.name).parts[:-1]}]
        archive.extractall(folder, members=members, filter="data")
    for tests in {parent for each in members for parent in Path(each.name).parents if parent.name in TEST_FOLDERS}:
        initial = folder / tests / "__init__.py"
        own = initial.read_text() if initial.exists() else ""
        initial.write_text(f"import peer.substitute  # noqa\n{own}")
    return folder


def main(arguments: Sequence[str]) -> int:
    """Run the tests. Returns pytest's exit code."""
    parser = argparse.ArgumentParser(prog="test-peer")
    parser.add_argument("clone", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/peer"))
    parser.add_argument("--only", choices=("planner", "gloo"))
    parser.add_argument("--planner", choices=("neuroshard", "torchrec"), default="neuroshard")
    options, of_pytest = parser.parse_known_args(arguments)
    folder = with_tests(installed_package(), options.clone, options.folder.absolute())
    chosen = {"planner": PLANNER_TESTS, "gloo": GLOO_TESTS, None: (*PLANNER_TESTS, *GLOO_TESTS)}[options.only]
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(folder), *of_pytest]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (folder, HERE.parent, os.environ.get("PYTHONPATH", "")))),
        "NEUROSHARD_PEER_PLANNER": options.planner,
    }
    files = [str(folder / "torchrec" / each) for each in chosen]
    return subprocess.run([*command, *files], env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
