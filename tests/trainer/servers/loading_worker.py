"""One of several ranks, trainers first: loads the newest checkpoint of a run, and writes what it has then.

Arguments: the job, the plan, the run directory, and the folder to write to.
"""

from pathlib import Path

from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.ranks.process import Launched, start_process
from neuroshard_trainer.run import RunPaths, set_up
from neuroshard_trainer.sharding.plan_adapter import read_plan
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter


def main(job_file: str, plan_file: str, run_dir: str, out: str) -> None:
    """Write the loaded state."""
    job, launched = read_job(Path(job_file)), Launched.from_environment()
    plan = read_plan(Path(plan_file), world_size=launched.world_size, has_servers=True)
    process = start_process(job, plan, launched, "cpu", nccl_log_folder=Path(run_dir))
    places = RunPaths(plan_file=Path(plan_file), run_dir=Path(run_dir), data_dir=Path(run_dir))
    loop = set_up(job, plan, places, process)
    assert loop.step, "there is a checkpoint"
    state = dict(loop._state.tensors())
    state_dict_saver.save(state, storage_writer=FileSystemWriter(out), process_group=process.group)
