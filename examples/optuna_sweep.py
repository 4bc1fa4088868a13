"""Optuna chooses learning rates, and `neuroshard sweep` trains four of them at a time on this machine.

    pip install optuna
    python optuna_sweep.py 01-smallest.yaml --rounds 3

Each round is a sweep, in a folder that resumes.
"""  # noqa: INP001 - a script, not a package

import argparse
import json
import subprocess
from pathlib import Path

import optuna

RATES = ("denseLearningRate", "embeddingLearningRate")


def main() -> None:
    """Ask for trials, train them, tell their normalized entropy, and print the best."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--devices", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=4, help="of a round")
    parser.add_argument("--out", type=Path, default=Path("optuna-sweep"))
    options = parser.parse_args()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))
    for number in range(options.rounds):
        trials = [study.ask() for _ in range(options.trials)]
        points = [{name: str(each.suggest_float(name, 1e-4, 1e-1, log=True)) for name in RATES} for each in trials]
        settings = "spec.training=" + ",".join(map(json.dumps, points))
        command = ["neuroshard", "sweep", str(options.job), "--devices", options.devices, "--set", settings]
        command += ["--out", str(options.out / f"round-{number}"), "--run", "--json"]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout  # noqa: S603 - the words above
        for each in json.loads(printed)["variants"]:
            is_done = each["state"] == "done" and each["normalized_entropy"] is not None
            state = None if is_done else optuna.trial.TrialState.FAIL
            study.tell(trials[each["number"]], each["normalized_entropy"] if is_done else None, state=state)
    print(json.dumps({"normalized_entropy": study.best_value, **study.best_params}, indent=1))  # noqa: T201 - a script


if __name__ == "__main__":
    main()
