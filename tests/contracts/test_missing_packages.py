"""Commands of pods in an environment that lacks a package: one sentence with what to install, and its exit code."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from neuroshard_api.process.exit_codes import ExitCode

FORKED = """
import json, os, runpy, sys, tempfile, traceback
from importlib.machinery import PathFinder


def without(missing):
    class Finder(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name.partition(".")[0] == missing else super().find_spec(name, path, target)

    return Finder


def run(missing, module, *arguments):
    sys.meta_path = [without(missing) if each is PathFinder else each for each in sys.meta_path]
    sys.argv = [module, *arguments]
    try:
        if arguments:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            __import__(module)
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return -1
    return 0


def ended(child, err):
    _, status = os.waitpid(child, 0)
    err.seek(0)
    return os.waitstatus_to_exitcode(status), err.read()


results = []
for preloaded, *command in json.load(sys.stdin):
    if preloaded:
        __import__(preloaded)
    with tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(err.fileno(), 2)
            code = run(*command)
            sys.stderr.flush()
            os._exit(code & 0xFF)
        results.append(ended(child, err))
json.dump(results, sys.stdout)
"""
"""Runs modules as ``python -m`` does, or only imports them, where one package is not installed.

Each runs in a child of an interpreter that has imported nothing but what later rows name as preloaded.
"""
PLAN = ("neuroshard_planner", "--request", "r.json", "--bundle", "h100-80gb", "--out", "p.json")
PROFILE = (
    *("neuroshard_profiler", "profile", "--out", "x"),
    *("--set", "spec.profiler.backend=Simulated", "--set", "spec.profiler.deviceType=h100-80gb"),
)
TRAIN = ("neuroshard_trainer", "job.yaml", "--plan", "p.json", "--run-dir", "x")
LAUNCH = ("neuroshard_trainer.launch", "--standalone", "-m", *TRAIN)
API = "neuroshard_api.documents.records"
MISSING = (
    ("", "pydantic", PLAN, "pip install . in"),
    (API, "numpy", PLAN, "pip install . in"),
    (API, "numpy", PROFILE, "profiler"),
    (API, "rich", PROFILE, "profiler"),
    (API, "typer", PROFILE, "profiler"),
    (API, "torch", (*PROFILE[:4], "--set", "spec.profiler.backend=TorchNative"), "torch"),
    (API, "torch", TRAIN, "trainer"),
    (API, "torch", LAUNCH, "trainer"),
)
"""What is imported before, what is not installed, the command, and what installs it."""
NO_KERNELS = ("torch", "fbgemm_gpu", (*PROFILE[:4], "--set", "spec.profiler.backend=FBGEMM"), "fbgemm-gpu")
NO_TORCHREC = ("torch", "torchrec", "neuroshard_profiler.backends.fbgemm")


def ends_of(*rows: Sequence[str]) -> list[tuple[int, str]]:
    """Return exit code and stderr of each row: what is imported before, what is not installed, a command or module."""
    program = [sys.executable, "-W", "ignore", "-c", FORKED]
    found = subprocess.run(program, input=json.dumps(rows), capture_output=True, text=True, check=True)
    return [(code, text) for code, text in json.loads(found.stdout)]


def names(text: str, *words: str) -> bool:
    """Return whether a text is one sentence with these words, and its hint on the same line or the next."""
    first, *others = text.splitlines()
    is_alone = not others or (len(others) == 1 and others[0].startswith("hint: "))
    return first.startswith("error: ") and is_alone and all(word in text for word in words)


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    """An image that lacks a package ends with 5 and one sentence; no retry would change that."""
    ends = ends_of(*((preloaded, missing, *command) for preloaded, missing, command, _ in MISSING))

    assert [
        (missing, command[0], code, text)
        for (_, missing, command, extra), (code, text) in zip(MISSING, ends, strict=True)
        if code != ExitCode.MISSING_PACKAGE or not names(text, missing, extra)
    ] == []


@pytest.mark.long
def test_a_profile_needs_kernels_and_no_torchrec() -> None:
    """Without FBGEMM it ends with 5. Without TorchRec codecs are not measured, and everything else is."""
    preloaded, missing, command, extra = NO_KERNELS
    (code, text), without_torchrec = ends_of((preloaded, missing, *command), NO_TORCHREC)

    assert (code, names(text, missing, extra)) == (ExitCode.MISSING_PACKAGE, True), text
    assert without_torchrec == (0, "")
