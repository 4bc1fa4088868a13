import shutil
from pathlib import Path

import pytest
from neuroshard_cluster import dockerfiles, node_image
from neuroshard_cluster.components import KIND, KUBEADM, KUBERNETES
from neuroshard_cluster.errors import CommandError, HostError
from neuroshard_cluster.folders import Home


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the recipe that a test may change."""
    copy = tmp_path / "recipe"
    shutil.copytree(node_image.RECIPE, copy)
    monkeypatch.setattr(node_image, "RECIPE", copy)
    return copy


@pytest.mark.parametrize("file", ["node/Dockerfile", "node/default-cni.yaml", "kube-proxy/podnet"])
def test_every_part_of_the_recipe_makes_another_image(recipe: Path, file: str) -> None:
    """An image is never taken from the cache for another recipe."""
    before = node_image.name()

    (recipe / file).write_text((recipe / file).read_text() + "\n")

    assert node_image.name() != before


@pytest.mark.parametrize("file", ["node_image.py", "tiny_images.py"])
def test_another_way_to_put_the_parts_together_makes_another_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Which programs a node has, how its static pods are packed, how `pause` is compiled: the code says it."""
    before = node_image.name()
    copies = [Path(shutil.copy(path, tmp_path)) for path in node_image.CODE]
    monkeypatch.setattr(node_image, "CODE", copies)
    assert node_image.name() == before

    (tmp_path / file).write_text((tmp_path / file).read_text() + "\n")

    assert node_image.name() != before


@pytest.mark.parametrize(("part", "value"), [("SUITE", "trixie"), ("PACKAGES", ("python3",))])
def test_another_base_makes_another_image(monkeypatch: pytest.MonkeyPatch, part: str, value: object) -> None:
    """The suite of Debian and its packages are below everything else."""
    before = node_image.name()
    monkeypatch.setattr(dockerfiles, part, value)

    assert node_image.name() != before


def test_a_node_runs_one_version_of_kubernetes() -> None:
    """The program kubeadm has a go.mod of its own; it must set up the version that kubelet and API server have."""
    assert KUBEADM.version == KUBERNETES.version


def test_the_dry_run_names_the_image_and_every_input() -> None:
    """What `make kind-image` prints says which version, module or file changed the image."""
    first, *inputs = node_image.recipe()

    assert first == node_image.name()
    assert f"  kubeadm {KUBEADM.version} {KUBEADM.digest()}" in inputs
    assert any(line.startswith("  node/Dockerfile ") for line in inputs)
    assert any(line.startswith("  tiny_images.py ") for line in inputs)
    assert any(line.startswith("  base of Debian bookworm ") for line in inputs)


def test_a_built_image_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is found by the hash of its inputs."""
    home = Home(root=tmp_path)
    archive = home.images / f"kind-node_{node_image.digest()}.tar"
    archive.parent.mkdir(parents=True)
    archive.touch()
    monkeypatch.setattr(node_image, "_build", lambda *_, **__: pytest.fail("it was built again"))

    assert node_image.node_image(home, say=print) == archive


def test_kinds_own_node_image_is_read_from_its_source(tmp_path: Path) -> None:
    """The name is not repeated here, and a digest is left to kind."""
    home = Home(root=tmp_path)
    KIND.target(home).mkdir(parents=True)
    (KIND.target(home) / "image.go").write_text('const Image = "kindest/node:v1.2.3@sha256:0123"\n')

    assert node_image.kinds_own(home, say=print) == "kindest/node:v1.2.3"


def test_another_layout_of_kinds_source_is_told(tmp_path: Path) -> None:
    """A newer kind that keeps these values elsewhere fails with a sentence."""
    home = Home(root=tmp_path)
    config = KIND.target(home) / "base" / "etc" / "containerd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("version = 3\n")
    (KIND.target(home) / "image.go").write_text("package defaults\n")

    with pytest.raises(CommandError, match="names no default node image"):
        node_image.kinds_own(home, say=print)
    with pytest.raises(CommandError, match="names no sandbox_image"):
        node_image.sandbox_image(home)


def test_a_machine_without_the_builder_is_told_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image builder's tools are checked first, for the programs take minutes."""
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(HostError, match=r"not on PATH: .*buildah"):
        node_image.node_image(Home(root=tmp_path), say=print)
