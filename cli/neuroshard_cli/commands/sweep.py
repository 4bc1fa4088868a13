"""``neuroshard sweep``: several models at once."""

import json as json_format
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.options import MOST_DEVICES, RequestOptions

from neuroshard_cli.commands.run import require_local, require_trainable
from neuroshard_cli.shared.output import print_document, print_text, progress_console, write_file
from neuroshard_cli.shared.request_options import (
    MOST_USED,
    BundleOption,
    DenseOption,
    DeviceTypeOption,
    JsonOption,
)

if TYPE_CHECKING:
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_api.job.job_file import JobFile
    from neuroshard_dlrm.sweeps import SweepChoice
    from neuroshard_dlrm.variants import Variant
    from neuroshard_report.explain.device_counts import DeviceCount

    from neuroshard_cli.local.sweep_folder import SweepFolder
    from neuroshard_cli.local.sweep_results import SweepResults


def sweep(  # noqa: PLR0917 - typer passes by name
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A DLRMTrainingJob in YAML or JSON.")],
    devices: Annotated[
        int,
        typer.Option(min=1, max=MOST_DEVICES, help="Devices for all variants together.", rich_help_panel=MOST_USED),
    ],
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="FIELD=A,B,C",
            help="A field of the job, and its values; several fields make every combination.",
            rich_help_panel=MOST_USED,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder of the variants' jobs, and of their runs.", rich_help_panel=MOST_USED),
    ],
    run: Annotated[
        bool, typer.Option("--run", help="Train the variants on this machine.", rich_help_panel=MOST_USED)
    ] = False,
    device_type: DeviceTypeOption = None,
    bundle: BundleOption = None,
    dense: DenseOption = None,
    json: JsonOption = False,
) -> None:
    """Divide devices among variants of a job so that all train in the least time, write a job for each, and train them.

    With --run and without --device-type, this machine is measured. An interrupted sweep resumes where it stopped.
    """
    from neuroshard_api.job.job_file import read_job_file
    from neuroshard_dlrm.sweeps import require_one_dense_part, require_sweepable
    from neuroshard_dlrm.variants import expanded, parse_choices
    from neuroshard_report.terminal.sweep import render_results, render_ways

    from neuroshard_cli.local.inputs import data_root
    from neuroshard_cli.local.sweep_folder import SweepFolder
    from neuroshard_cli.local.sweep_results import SweepResults

    file = read_job_file(job)
    require_sweepable(file)
    variants = expanded(file, parse_choices(set_))
    if dense is not None:
        require_one_dense_part(variants)
    root = data_root(job, file.job.spec.data)
    if run:
        _require_runnable(file, variants, root=root, devices=devices)
    folder = SweepFolder(out)
    folder.require_for(variants)
    with folder.runs.locked():
        options = RequestOptions(tables=str(job), device_type=device_type, bundle=bundle, dense=dense)
        choice, models, without_sets = _chosen(file, variants, options, folder, devices=devices, is_run=run, quiet=json)
        _write_jobs(variants, choice, folder)
        results = SweepResults(file, variants, choice, folder, without_sets=without_sets)
        write_file(folder.page, results.page())
        if not json:
            print_text(render_ways(results.view()))
        if run:
            try:
                _train(choice, folder, results, models=models, root=root)
            except KeyboardInterrupt:
                say(f"interrupted; run the same command again to resume: {folder.path}")
                raise
    view = results.view()
    if json:
        print_document(json_format.dumps(view.described(), indent=1) + "\n")
    elif run:
        print_text("")
        print_text(render_results(view.results))
    _say_what_is_next(folder, choice, is_run=run, quiet=json)
    failed = {each.name: each.state for each in view.results if each.state in {"failed", "diverged"}}
    if run and failed:
        again = "the same command tries again those whose job failed"
        raise CommandError(
            f"{len(failed)} of {len(variants)} variants failed: {', '.join(failed)}"
            f"; hint: their logs are in {folder.runs.path / 'logs'}; "
            f"{again if 'failed' in failed.values() else 'give those that diverged lower rates in another sweep'}",
            ExitCode.JOB_FAILED,
        )


def _require_runnable(file: "JobFile", variants: "Sequence[Variant]", *, root: Path, devices: int) -> None:
    """Do nothing for variants that can train here, as far as files and the driver show. Raises CommandError."""
    from neuroshard_api.job.spec import LaunchPolicy
    from neuroshard_dlrm.sweeps import on_part
    from neuroshard_report.explain.divisions import Room

    policy = file.job.spec.launch_policy
    if policy is not LaunchPolicy.AUTO:
        raise CommandError(
            f"{file.path}: spec.launchPolicy: is {policy}, so that nothing trains by itself"
            "; hint: leave out --run, or the field"
        )
    require_local(on_part(file, 1, Room(num_nodes=1, devices_per_node=1)).job, where=str(file.path))
    for variant in variants:
        require_trainable(variant.file.job, variant.file.tables(), root=root)
    gpus = visible_gpus()
    if gpus and devices > len(gpus):
        raise CommandError(f"--devices: is {devices}, and this machine has {len(gpus)} GPUs; hint: give at most those")


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, in the words of CUDA_VISIBLE_DEVICES; none on a CPU."""
    from neuroshard_api.process.gpu_driver import gpu_names

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = gpu_names()
    if given is None or not names:
        return [str(number) for number in range(len(names))]
    return [word.strip() for word in given.split(",") if word.strip() not in {"", "-1"}]


def _chosen(
    file: "JobFile",
    variants: "Sequence[Variant]",
    options: RequestOptions,
    folder: "SweepFolder",
    *,
    devices: int,
    is_run: bool,
    quiet: bool,
) -> "tuple[SweepChoice, Path, str | None]":
    """Return the choice, the bundle that it was made with, and why variants do not train together, or None."""
    from dataclasses import replace

    from neuroshard_costs.bundle import bundled_root
    from neuroshard_dlrm.device_counts import planned_counts
    from neuroshard_dlrm.devices import find_bundle
    from neuroshard_dlrm.requests import request_of
    from neuroshard_dlrm.sweeps import chosen_division, part_requests
    from neuroshard_dlrm.variant_sets import sets_in
    from neuroshard_report.explain.divisions import Room
    from neuroshard_report.terminal.progress import activity

    from neuroshard_cli.local.sweep_models import measured_models

    models = options.bundle
    if (
        is_run
        and options.device_type is None
        and (models is None or models.is_dir())
        and file.job.spec.profiler.device_type is None
    ):
        models, topology = measured_models(file, folder.runs, given=models, devices=devices)
        options = replace(options, bundle=models)
    else:
        whole = replace(options, devices=devices, bundle=None, dense=None)
        topology = request_of(file, whole, algorithm=None).topology
        if models is None or not models.exists():
            models = bundled_root() / (topology.device.name if models is None else models.name)
    found = find_bundle(options.bundle, topology.device)
    room = Room(num_nodes=topology.num_nodes, devices_per_node=topology.devices_per_node)
    if is_run and room.num_nodes > 1:
        raise CommandError(
            f"--devices: {devices} {topology.device.name} are {room.num_nodes} nodes, and --run trains on this machine"
            f"; hint: give at most {room.devices_per_node}, or apply the jobs to a cluster"
        )
    sets, without_sets = sets_in(file, variants)
    if options.dense is not None:
        sets, without_sets = (), "--dense is the count of one variant"
    asked = part_requests(options, topology, room)
    with activity("planning", is_silent=quiet) as shown:

        def planned(distinct: "list[PlanRequest]") -> "Mapping[int, DeviceCount]":
            ready = planned_counts(distinct, bundle=None if options.bundle is None else models, prices={})
            return dict(shown.of(ready, total=len(distinct), amount=lambda _: 1))

        choice = chosen_division(
            variants, sets, room, device_type=found.manifest.device.name, asked=asked, planned=planned
        )
    return choice, models, without_sets


def _write_jobs(variants: "Sequence[Variant]", choice: "SweepChoice", folder: "SweepFolder") -> None:
    from neuroshard_dlrm.sweeps import moved_to, on_part

    folder.take(variants)
    for place, job in enumerate(choice.jobs):
        part = on_part(job.file, choice.sizes[place], choice.room)
        folder.write_job(moved_to(part, folder.path))
    folder.keep_jobs([job.name for job in choice.jobs], of=[variant.name for variant in variants])


def _train(
    choice: "SweepChoice",
    folder: "SweepFolder",
    results: "SweepResults",
    *,
    models: Path,
    root: Path,
) -> None:
    """Train the jobs in the order of the chosen division."""
    from neuroshard_cli.local.progress_view import RunView
    from neuroshard_cli.local.sweep_runs import NEUROSHARD, VariantRun, train_variants

    assert choice.chosen.division is not None, "it is possible"
    runs = []
    for turn in choice.chosen.division.turns:
        name = choice.jobs[turn.variant].name
        directory = folder.run_directory(name)
        given = {"--run-dir": directory.path, "--bundle": models.absolute()}
        words = [str(word) for option in given.items() for word in option]
        command = (*NEUROSHARD, "run", str(folder.job_file(name).absolute()), *words)
        runs.append(VariantRun(name=name, command=command, directory=directory, num_devices=len(turn.devices)))

    def ended(run: VariantRun, status: int) -> None:
        results.end(run.name, status)
        write_file(folder.page, results.page())

    with RunView(tuple(run.name for run in runs), progress_console()) as view:
        train_variants(runs, choice.room, base=folder.runs, view=view, gpus=visible_gpus(), root=root, ended=ended)


def _say_what_is_next(folder: "SweepFolder", choice: "SweepChoice", *, is_run: bool, quiet: bool) -> None:
    from neuroshard_api.job.model import ONLY_LOCAL_FILE

    if quiet:
        return
    say(f"sweep: {folder.page}")
    if is_run:
        return
    first, last = (folder.job_file(choice.jobs[place].name) for place in (0, -1))
    source = choice.jobs[0].file.job.spec.model.embedding_tables_from
    is_local = source is not None and source.file is not None
    applied = f"`kubectl apply -f {shlex.quote(str(folder.path))}` trains them"
    then = f"for a cluster: {ONLY_LOCAL_FILE}" if is_local else applied
    files = f"{first}" if first == last else f"{first} to {last.name}"
    say(f"written: {files}; {then}")
