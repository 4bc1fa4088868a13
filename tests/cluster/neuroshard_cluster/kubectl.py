"""A thin client over the `kubectl` program: dicts in, dicts out, one cluster, no ambient kubeconfig."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard_cluster.commands import run
from neuroshard_cluster.waiting import eventually

Object = dict[str, Any]  # a Kubernetes object as JSON has it
CALL_TIMEOUT_S = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubectl:
    """Speaks to the cluster of `kubeconfig`, in `namespace` unless a call says otherwise."""

    kubeconfig: Path
    program: str
    namespace: str = "default"

    def in_namespace(self, namespace: str) -> "Kubectl":
        """Return the same client for another namespace."""
        return Kubectl(kubeconfig=self.kubeconfig, program=self.program, namespace=namespace)

    @property
    def prefix(self) -> list[str]:
        """The words that every call begins with, for a caller who runs kubectl in the background."""
        # kubectl refuses objects of another namespace than a named one, so the default one goes unnamed.
        chosen = [] if self.namespace == "default" else [f"--namespace={self.namespace}"]
        return [self.program, f"--kubeconfig={self.kubeconfig}", *chosen]

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which helm and the like find this cluster and no other."""
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def __call__(self, *words: str, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Run `kubectl words...` and return its output.

        Raises:
            CommandError: kubectl failed; the message is its own.
        """
        return run([*self.prefix, *words], stdin=stdin, timeout_s=timeout_s)

    def get(self, kind: str, name: str) -> Object:
        """Return one object."""
        found: Object = json.loads(self("get", kind, name, "--output=json"))
        return found

    def list(self, kind: str, *, selector: str = "") -> Sequence[Object]:
        """Return the objects of a kind that `selector` matches, in the order of their names."""
        items: Sequence[Object] = json.loads(self("get", kind, f"--selector={selector}", "--output=json"))["items"]
        return items

    def apply(self, *documents: Mapping[str, Any] | str) -> None:
        """Apply objects, or YAML text, on the server's side."""
        texts = [text if isinstance(text, str) else json.dumps(text) for text in documents]
        self("apply", "--server-side", "--force-conflicts", "--filename=-", stdin="\n---\n".join(texts))

    def define(self, name: str, definition: Mapping[str, Any] | str) -> None:
        """Apply the definition of a custom resource `name` (plural.group) and wait until it is served."""
        self.apply(definition)
        # `kubectl wait` fails on a definition that has no conditions yet.
        established = ("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
        eventually(f"{name} is served", lambda: self(*established) + self("get", name))

    def create(self, *documents: Mapping[str, Any]) -> None:
        """Create objects, which must not be there yet."""
        self("create", "--filename=-", stdin="\n---\n".join(json.dumps(document) for document in documents))

    def patch(self, kind: str, name: str, change: Mapping[str, object], *, subresource: str = "") -> None:
        """Apply a JSON merge patch."""
        extra = [f"--subresource={subresource}"] if subresource else []
        self("patch", kind, name, "--type=merge", f"--patch={json.dumps(change)}", *extra)

    def delete(self, kind: str, name: str, *flags: str) -> None:
        """Delete one object and wait until it is gone; harmless when it is not there."""
        self("delete", kind, name, "--ignore-not-found", *flags)
