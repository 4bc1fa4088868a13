"""A rank that is killed or stopped at any moment of a training, on real processes."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from support.trainer.rank_server import Ended, RankServer, output
from support.trainer.trainer_builders import job_data, plan_of, write_job, write_plan

WORKER = Path(__file__).with_name("failure_worker.py")
LOST_FILE = "lost"
LIMIT_SECONDS = 60.0
"""Ten times the shortened times of the worker's heartbeat: a survivor that hangs is killed then."""

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@dataclass(frozen=True, slots=True)
class Moment:
    """A call in the trainer, by its place and its number."""

    function: str
    call: int = 1
    on_first_rank_only: bool = False
    is_always_on_both: bool = False
    """Whether the first rank is lost there without --long, too. At most moments it does what the second one does."""
    is_stopped_too: bool = False
    """Whether the second rank is also stopped there, which takes the heartbeat's timeout."""


MOMENTS = {
    "set-up": Moment("neuroshard_trainer.run:open_training_data", is_stopped_too=True),
    "proof": Moment("neuroshard_trainer.run:prove_sharding"),
    "resume": Moment("neuroshard_trainer.state.checkpoint:CheckpointFolder.whole"),
    "first step": Moment("neuroshard_trainer.training:TrainingLoop._loss"),
    "training": Moment(
        "neuroshard_trainer.training:TrainingLoop._loss", call=7, is_always_on_both=True, is_stopped_too=True
    ),
    "report": Moment("neuroshard_trainer.measure.step_reporter:StepReporter.report"),
    "checkpoint's begin": Moment("neuroshard_trainer.state.checkpoint:CheckpointFolder.save"),
    "checkpoint's tensors": Moment(
        "torch.distributed.checkpoint.filesystem:FileSystemWriter.write_data", is_stopped_too=True
    ),
    "checkpoint's metadata": Moment(
        "torch.distributed.checkpoint.filesystem:FileSystemWriter.finish", on_first_rank_only=True
    ),
    "checkpoint's end": Moment(
        "neuroshard_trainer.state.checkpoint:CheckpointFolder._complete", on_first_rank_only=True
    ),
    "evaluation": Moment("neuroshard_trainer.metrics:Evaluation.add"),
    "metrics": Moment("neuroshard_trainer.metrics:Evaluation.compute"),
    "end": Moment("neuroshard_trainer.ranks.heartbeat:Heartbeat.__exit__"),
}
KILLED = [
    pytest.param(
        moment,
        lost,
        signal.SIGKILL,
        id=f"{name}, rank {lost}, killed",
        marks=() if lost or moment.on_first_rank_only or moment.is_always_on_both else pytest.mark.long,
    )
    for name, moment in MOMENTS.items()
    for lost in ((0,) if moment.on_first_rank_only else (0, 1))
]
STOPPED = [
    pytest.param(moment, 1, signal.SIGSTOP, id=f"{name}, rank 1, stopped")
    for name, moment in MOMENTS.items()
    if moment.is_stopped_too
]


def fail(
    ranks: RankServer,
    folder: Path,
    moment: Moment,
    lost: int,
    number: signal.Signals | None,
    *,
    timeout_seconds: int = 3600,
    heartbeat_seconds: float = 5.0,
    in_background: bool = False,
) -> Ended:
    """Train on two ranks of which one fails; by default collectives alone would wait for an hour."""
    spec: dict[str, Any] = {
        "data": {"numSamples": 400},
        "checkpoint": {"everySteps": 4},
        "experimental": {
            "rendezvous": {"timeoutSeconds": timeout_seconds},
            "checkpoint": {"inBackground": in_background},
        },
    }
    job = write_job(folder, job_data(world_size=2, **spec))
    plan = write_plan(folder, plan_of({"user": ((0, 16), (1, 16))}, world_size=2))
    return ranks.run(
        f"{WORKER}:main",
        [str(job), "--plan", str(plan), "--run-dir", str(folder / "run")],
        lost,
        moment.function,
        moment.call,
        {"signal": number, "file": folder / LOST_FILE, "heartbeat_seconds": heartbeat_seconds},
        folder=folder,
        count=2,
        # One that is stopped does not end: it is killed once the survivor has failed.
        after_failure_s=0 if number is signal.SIGSTOP else LIMIT_SECONDS,
    )


def seconds_to_end(ended: Ended, folder: Path, lost: int) -> float:
    """Return the seconds that the survivor took to end after the loss."""
    return ended.ended_at[1 - lost] - float((folder / LOST_FILE).read_text())


def errors_of(folder: Path, rank: int) -> list[str]:
    """Return the error sentences of a rank."""
    return [line for line in output(folder, rank).splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(("moment", "lost", "number"), [*KILLED, *STOPPED])
def test_the_survivor_ends_as_one_that_lost_a_peer(
    ranks: RankServer, tmp_path: Path, moment: Moment, lost: int, number: signal.Signals
) -> None:
    """By code 7 and one sentence, whatever the ranks were at."""
    found = fail(ranks, tmp_path, moment, lost, number)

    assert found.codes[1 - lost] == ExitCode.PEER_LOST
    assert seconds_to_end(found, tmp_path, lost) < LIMIT_SECONDS
    (sentence,) = errors_of(tmp_path, 1 - lost)
    assert re.search(r"(while|after step \d+).* another process was gone or did not answer", sentence)


def test_a_rank_that_hangs_is_lost_to_the_others_after_the_collectives_timeout(
    ranks: RankServer, tmp_path: Path
) -> None:
    """Where that is shorter than the heartbeat's."""
    found = fail(ranks, tmp_path, MOMENTS["training"], 1, signal.SIGSTOP, timeout_seconds=8, heartbeat_seconds=60.0)

    assert found.codes[0] == ExitCode.PEER_LOST
    (sentence,) = errors_of(tmp_path, 0)
    assert re.search(r"after step \d+ another process was gone or did not answer .*([Tt]imed out|timeout)", sentence)


def test_all_ranks_end_alike_where_the_logits_of_one_are_not_finite(ranks: RankServer, tmp_path: Path) -> None:
    """The count is that of all ranks, so that none takes the others for lost."""
    found = fail(ranks, tmp_path, MOMENTS["evaluation"], 1, None)

    assert found.codes == [ExitCode.INVALID_INPUT, ExitCode.INVALID_INPUT]
    for rank in range(2):
        (sentence,) = errors_of(tmp_path, rank)
        assert re.search(r"\d+ of 40 logits of the evaluation are not finite", sentence)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_killed_while_it_saves_in_the_background_costs_the_newest_steps_only(
    ranks: RankServer, tmp_path: Path, lost: int
) -> None:
    """What was being written is none; the next start resumes from the checkpoint before it."""
    second_save = Moment(MOMENTS["checkpoint's tensors"].function, call=2)
    never = Moment(second_save.function, call=1000)

    found = fail(ranks, tmp_path, second_save, lost, signal.SIGKILL, in_background=True)
    assert found.codes[1 - lost] == ExitCode.PEER_LOST
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [path.name for path in checkpoints.glob("step-*")] == ["step-00000004"]
    assert (checkpoints / ".step-00000008.part").exists()

    assert fail(ranks, tmp_path, never, lost, None, in_background=True).codes == [ExitCode.OK, ExitCode.OK]
    assert "going on from step 4" in output(tmp_path, 0)
    assert not (checkpoints / ".step-00000008.part").exists()
