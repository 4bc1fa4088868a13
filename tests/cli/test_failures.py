import errno
import json

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError, report_failure
from neuroshard_costs.errors import BundleError, CostModelError
from neuroshard_planner.errors import InfeasibleError, PlannerError, RequestError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("--out: is a directory"), ExitCode.INVALID_INPUT),
        (DocumentError("t.json", ["tables: is missing"]), ExitCode.INVALID_INPUT),
        (RequestError("constraints: no device is left"), ExitCode.INVALID_INPUT),
        (InfeasibleError("tables need more memory"), ExitCode.INFEASIBLE),
        (BundleError("manifest.json is missing"), ExitCode.UNUSABLE_BUNDLE),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), ExitCode.MISSING_PACKAGE),
        (ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"), ExitCode.MISSING_PACKAGE),
        (ModuleNotFoundError("No module named 'neuroshard_x'", name="neuroshard_x"), ExitCode.INTERNAL_ERROR),
        (OSError(errno.ENOSPC, "No space left on device", "bundle/weights"), ExitCode.INVALID_INPUT),
        (OSError(errno.ENOENT, "No such file or directory", "lost"), ExitCode.INTERNAL_ERROR),
        (ZeroDivisionError("division by zero"), ExitCode.INTERNAL_ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_every_error_has_its_exit_code(error: Exception, code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    """Expected errors are one sentence and its remedy; only bugs of ours show a traceback."""
    assert report_failure(error, as_json=False) is code

    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err
    only_the_error = all(line.startswith(("error: ", "hint: ")) for line in err.splitlines())
    assert only_the_error is (code is not ExitCode.INTERNAL_ERROR)


@pytest.mark.parametrize("base", [CostModelError, PlannerError])
def test_every_error_of_a_room_is_expected(base: type[CostModelError | PlannerError]) -> None:
    """A new kind of error of planner or cost models never ends as a bug of ours."""
    kinds = [base]
    for kind in kinds:
        kinds += kind.__subclasses__()

    assert all(report_failure(kind("sentence"), as_json=True) is not ExitCode.INTERNAL_ERROR for kind in kinds)


def test_a_bug_asks_to_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what to send."""
    report_failure(ZeroDivisionError("division by zero"), as_json=True)

    answer = json.loads(capsys.readouterr().err)
    assert answer["exit_code"] == 1
    assert "please report it" in answer["error"]
    assert "ZeroDivisionError" in answer["traceback"]
