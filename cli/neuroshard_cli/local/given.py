"""What the user gives a run in place of its first stages: cost models, or a plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.documents.document import DocumentError, decoded, parse_data, read_data
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import GivenPlan, any_plan
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.stage_commands import HARDWARE_FILE
from neuroshard_api.job.variants import with_variants
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import bundled_bundle, bundled_root, load_bundle
from neuroshard_decisions.actions import BundleSource, GivenModels
from neuroshard_decisions.stages.input_hashes import takes_given_models
from neuroshard_dlrm.plan_file import mismatches

from neuroshard_cli.local.directory import file_digest

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.job.job_file import JobFile
    from neuroshard_api.job.spec import Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModels:
    """Cost models, and the devices that they are for."""

    folder: Path
    """As it was given."""
    bundle_dir: Path
    topology: Topology
    source: str

    @classmethod
    def read(cls, folder: Path, spec: "Spec") -> Self:
        """Return those in a bundle's folder, or in a profiler's with the bundle in it.

        Raises:
            BundleError: the bundle cannot be used.
            CommandError: nothing is known of the links between its devices.
        """
        bundle_dir = folder / BUNDLE_FOLDER if (folder / BUNDLE_FOLDER).is_dir() else folder
        manifest = load_bundle(bundle_dir).manifest
        trainer, beside = spec.trainer, bundle_dir.parent / HARDWARE_FILE
        preset = load_presets().get(manifest.device.name)
        if beside.is_file():
            topology = Hardware.read(beside).topology(
                num_nodes=trainer.num_nodes, devices_per_node=trainer.devices_per_node
            )
        elif preset is not None:
            topology = preset.topology(devices_per_node=trainer.devices_per_node)
        else:
            raise CommandError(
                f"{folder}: says nothing of the links between devices of {manifest.device.name}"
                f"; hint: give a folder that `neuroshard profile` wrote, with {HARDWARE_FILE} in it"
            )
        return cls(folder=folder, bundle_dir=bundle_dir, topology=topology, source=manifest.source)

    @property
    def given(self) -> GivenModels:
        """The same as decisions have them."""
        return GivenModels(bundle=BundleSource(), topology=self.topology)

    @property
    def profile(self) -> Path | None:
        """Profile that they are of. None: they come along with the planner, and no steps correct them."""
        return self.bundle_dir.parent if self.bundle_dir.name == BUNDLE_FOLDER else None

    @property
    def digests(self) -> list[str]:
        """Digests of the files that prices depend on."""
        return [str(file_digest(path)) for path in sorted(self.bundle_dir.glob("*.*")) if path.suffix != ".png"]


def given_models(file: "JobFile", bundle: Path | None) -> MeasuredModels | None:
    """Return the cost models that the command or the job names. None: they are measured.

    Raises:
        BundleError: the bundle cannot be used.
        CommandError: the job names a place in a cluster.
    """
    profiler = file.job.spec.profiler
    if bundle is not None:
        return MeasuredModels.read(bundle, file.job.spec)
    if not takes_given_models(file.job.spec):
        return None
    if profiler.device_type is None:
        raise CommandError(
            f"{file.path}: spec.profiler.costModelRef: names a place in a cluster"
            "; hint: give the bundle's folder with --bundle"
        )
    bundled_bundle(profiler.device_type)
    return MeasuredModels.read(bundled_root() / profiler.device_type, file.job.spec)


def given_plan(file: "JobFile", tables: "TableSet", path: Path | None) -> tuple[GivenPlan, str]:
    """Return a plan that was made before, and its place, once it is known to be for this model and this world size.

    Args:
        file: the job.
        tables: its tables.
        path: the plan's file. None: the ConfigMap that spec.planRef names is in the job's file.

    Raises:
        DocumentError: it is damaged, or for something else.
    """
    if path is None:
        reference = file.job.spec.plan_ref
        assert reference is not None, "the caller looked"
        where = f"{file.path}: ConfigMap {reference.name}, {reference.key}"
        text = file.content(reference.name, reference.key, field_path="spec.planRef")
        raw = parse_data(decoded(text, where=where), where=where, is_json=True)
    else:
        where, raw = str(path), read_data(path)
    plan, trainer = any_plan(raw, where=where), file.job.spec.trainer
    problems = mismatches(
        plan,
        with_variants(tables, file.job.spec.variants),
        world_size=trainer.world_size,
        devices_per_node=trainer.devices_per_node,
        servers=file.job.spec.experimental.embedding_servers,
    )
    if problems:
        raise DocumentError(where, problems)
    return plan, where
