"""Keys, certificates and kubeconfigs of one cluster, by `openssl`. They die with the cluster's folder."""

from pathlib import Path

import yaml
from neuroshard_cluster.commands import run

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "365", "-config", "/dev/null"]


class Authority:
    """A certificate authority in a folder, and the identities that it vouches for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def certificate(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "ca.crt"

    def path(self, name: str, suffix: str) -> Path:
        """Return the path of the `crt` or `key` of identity `name`."""
        return self.folder / f"{name}.{suffix}"

    def create(self) -> None:
        """Make the authority, and the key that signs service account tokens.

        That key must be in the SEC1 format: a PKCS#8 one stops the API server.
        """
        self.folder.mkdir(parents=True)
        is_authority = ["-addext", "basicConstraints=critical,CA:true", "-subj", "/CN=test-cluster"]
        files = ["-keyout", str(self.path("ca", "key")), "-out", str(self.certificate)]
        run(["openssl", "req", "-x509", *EC, *files, *is_authority])
        run(["openssl", "ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", self.path("tokens", "key")])

    def issue(self, name: str, subject: str, *, serves: tuple[str, ...] = ()) -> None:
        """Make `name`'s key and certificate: a server's for the alternative names `serves`, else a client's."""
        extensions = ["-addext", f"extendedKeyUsage={'serverAuth' if serves else 'clientAuth'}"]
        if serves:
            extensions += ["-addext", "subjectAltName=" + ",".join(serves)]
        signed = ["-CA", str(self.certificate), "-CAkey", str(self.path("ca", "key")), "-subj", subject]
        files = ["-keyout", str(self.path(name, "key")), "-out", str(self.path(name, "crt"))]
        run(["openssl", "req", "-x509", *EC, *files, *signed, *extensions])

    def write_kubeconfig(self, path: Path, *, identity: str, server: str, context: str) -> None:
        """Write a kubeconfig whose one context lets `identity` talk to `server`."""
        user = {"client-certificate": str(self.path(identity, "crt")), "client-key": str(self.path(identity, "key"))}
        cluster = {"server": server, "certificate-authority": str(self.certificate)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": identity, "user": user}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": identity}}],
            "current-context": context,
        }
        path.write_text(yaml.safe_dump(document))
