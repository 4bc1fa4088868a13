from pathlib import Path

import pytest
from neuroshard_cluster import components
from neuroshard_cluster.components import ALL, COREDNS, CRICTL, ETCD, JOBSET, KUBERNETES, KUEUE, Component, program_of
from neuroshard_cluster.folders import Home


@pytest.mark.parametrize("component", ALL, ids=lambda component: component.name)
def test_every_component_is_pinned(component: Component) -> None:
    """Its go.mod requires one version of its module, and go.sum has that version's hash."""
    assert f"{component.module} {component.version} h1:" in (component.folder / "go.sum").read_text()


def test_kubernetes_programs_are_told_their_version() -> None:
    """A client refuses a server that does not know its version."""
    assert f"gitVersion={KUBERNETES.version}" in KUBERNETES.go_flags[-1]


@pytest.mark.parametrize(
    ("component", "program"),
    [(ETCD, "server"), (KUEUE, "kueue"), (JOBSET, "jobset"), (COREDNS, "coredns"), (CRICTL, "crictl")],
)
def test_a_program_is_named_by_go_after_its_package(component: Component, program: str) -> None:
    """A major version at the end of a module's path does not name the program."""
    [package] = component.binaries.values()

    assert program_of(package) == program


def test_what_is_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named after these inputs is taken as it is."""
    home = Home(root=tmp_path)
    COREDNS.target(home).mkdir(parents=True)
    monkeypatch.setattr(components, "run", lambda *_, **__: pytest.fail("it was built again"))

    assert components.built(COREDNS, home, say=print) == COREDNS.target(home)
