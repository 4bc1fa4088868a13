from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from neuroshard_cluster import workflows
from neuroshard_cluster.workflows import WORKFLOWS, Outcome, Step, outcomes, steps


def shell(command: str, condition: str = "", environment: Mapping[str, str] | None = None) -> Step:
    """Return a step that runs a command."""
    return Step(title=command, command=command, condition=condition, environment=environment or {})


def codes(ended: list[Outcome]) -> list[int | None]:
    """Return the exit codes of steps; None for those that did not run."""
    return [outcome.exit_code for outcome in ended]


def test_steps_run_in_order_in_the_folder(tmp_path: Path) -> None:
    """A step sees the files of the steps before it, as on one machine of GitHub's."""
    ended = list(outcomes([shell("echo one >file"), shell("grep one file >>log; echo two >>log")], tmp_path))

    assert codes(ended) == [0, 0]
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_line_that_fails_ends_its_step(tmp_path: Path) -> None:
    """GitHub runs a step with `bash -e`."""
    (ended,) = outcomes([shell("exit_with() { return $1; }\nexit_with 3\ntouch after")], tmp_path)

    assert ended.exit_code == 3
    assert not (tmp_path / "after").exists()


def test_after_a_failure_only_unconditional_steps_run(tmp_path: Path) -> None:
    """A cluster is taken down also after its tests failed."""
    ended = list(outcomes([shell("exit 2"), shell("true"), shell("true", condition="always()")], tmp_path))

    assert codes(ended) == [2, None, 0]
    assert ended[1].reason == "a step before it failed"


def test_a_steps_environment_reaches_its_command(tmp_path: Path) -> None:
    """Values under `env` are set for that step alone."""
    ended = outcomes([shell('test "$NODES" = 2', environment={"NODES": "2"}), shell('test -z "$NODES"')], tmp_path)

    assert codes(list(ended)) == [0, 0]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step(title="actions/checkout@v4"), "an action of GitHub's"),
        (shell("true", condition="runner.os == 'Linux'"), "its condition needs GitHub: runner.os == 'Linux'"),
        (shell("echo ${{ github.sha }}"), "it uses values of GitHub's"),
        (shell("true", environment={"TOKEN": "${{ github.token }}"}), "it uses values of GitHub's"),
    ],
)
def test_what_only_github_can_run_is_named(tmp_path: Path, step: Step, reason: str) -> None:
    """Such a step counts neither as a success nor as a failure."""
    (ended,) = outcomes([step], tmp_path)

    assert (ended.exit_code, ended.reason) == (None, reason)


@pytest.mark.parametrize(
    ("workflow", "targets"),
    [("api", ["api-build", "test-api"]), ("e2e", ["kind-packages", "kind-check", "kind-e2e", "cluster-down"])],
)
def test_a_workflow_of_tests_runs_targets_of_the_makefile_alone(workflow: str, targets: list[str]) -> None:
    """What GitHub runs can be typed on any machine; nothing but its actions and its disk differs."""
    parsed = yaml.safe_load((WORKFLOWS / f"{workflow}.yaml").read_text())
    commands = [step.command for step in steps(parsed) if not step.obstacle]

    assert [command.split()[:2] for command in commands] == [["make", target] for target in targets]


def test_an_unknown_workflow_lists_those_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with 1 and a hint."""
    assert workflows.main(["weekly"]) == 1
    assert "hint: use one of api, ci, e2e, nightly, release" in capsys.readouterr().err
