"""``neuroshard publish``: runs a command in a pod and puts what it wrote into a ConfigMap."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuroshard_api.pod.child_process import KEPT, child, exit_code
from neuroshard_api.pod.place import INDEX_VARIABLE, NODES_BEFORE_VARIABLE
from neuroshard_api.pod.pod_api import SERVICE_ACCOUNT, ApiUnavailableError, PodApi, persistently
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError, report_failure
from neuroshard_api.process.hints import say

if TYPE_CHECKING:
    from neuroshard_api.documents.config_map import ConfigMapContents


def publish(
    *,
    config_map: Annotated[str, typer.Option(metavar="NAME", help="A ConfigMap of this namespace, which must exist.")],
    results: Annotated[
        list[Path], typer.Option("--from", metavar="PATH", help="What to publish: a file, or a folder's files.")
    ],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="What writes it.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Publish whenever it changed, while the command runs.")
    ] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Watching, look this often.")] = 30.0,
    retry: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="At the end, try for so long to reach the API server.")
    ] = 300.0,
    service_account: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the pod's token, ca.crt and namespace are.")
    ] = SERVICE_ACCOUNT,
) -> None:
    """Run a command in a pod, and publish what it wrote as a ConfigMap.

    Signals go to the command, and its exit code is ours. A command that fails publishes nothing, unless watched. Of the
    pods of a job's workers, which may share a volume with the reports, only the first publishes: it is that of rank 0.
    """
    if not command and not watch:
        raise CommandError(
            "there is nothing to run; hint: give a command after `--`, or --watch to publish what others write"
        )
    publication = Publication(pod_api(service_account), config_map, results, retry_s=retry)
    is_first = {os.environ.get(name, "0") for name in (INDEX_VARIABLE, NODES_BEFORE_VARIABLE)} == {"0"}
    if not command:
        raise typer.Exit(_watch_files(publication, every, publishes=is_first))
    with child(command) as process:
        if watch and not is_first:
            process.wait()
            code = exit_code(process)
        elif watch:
            code = _watch_command(publication, process, every)
        else:
            process.wait()
            code = exit_code(process)
            if code == ExitCode.OK and is_first:
                publication.finish()
    raise typer.Exit(code)


class Publication:
    """The files of one ConfigMap, and what was last sent to it."""

    def __init__(self, api: PodApi, config_map: str, results: Sequence[Path], *, retry_s: float) -> None:
        self._api = api
        self._config_map = config_map
        self._results = results
        self._retry_s = retry_s
        self._sent: ConfigMapContents | None = None
        self._told: str | None = None

    def finish(self) -> None:
        """Publish the files, which must be there, persistently.

        Raises:
            CommandError: a file is missing, or the API server refuses or is out of reach.
            ConfigMapTooLargeError: the files do not fit.
        """
        for path in self._results:
            if not path.exists():
                raise CommandError(f"{path}: the command succeeded and did not write it; hint: check --from")
        contents = self._pack()
        if not contents.data and not contents.binary_data:
            raise CommandError(
                f"{self._results[0]}: the command succeeded and left the folder empty; hint: check --from"
            )
        persistently(lambda: self._send(contents), for_s=self._retry_s)

    def update(self) -> None:
        """Publish what has changed, and tell each problem once: what is measured must not stop the measured."""
        try:
            self._send(self._pack())
        except (ApiUnavailableError, CommandError, OSError, ValueError) as error:
            if str(error) != self._told:
                say(f"warning: {self._config_map} is not up to date: {error}")
            self._told = str(error)

    def last_update(self) -> ExitCode:
        """Publish what has changed, persistently, and tell whether it succeeded."""
        try:
            contents = self._pack()
            persistently(lambda: self._send(contents), for_s=self._retry_s)
        except Exception as error:  # noqa: BLE001 - the command's own exit code must survive
            return report_failure(error, as_json=False)
        return ExitCode.OK

    def _pack(self) -> "ConfigMapContents":
        from neuroshard_api.documents.config_map import pack_files

        return pack_files(read_files(self._results))

    def _send(self, contents: "ConfigMapContents") -> None:
        nothing_yet = self._sent is None and not contents.data and not contents.binary_data
        if contents != self._sent and not nothing_yet:
            self._api.apply_config_map(self._config_map, contents)
            self._sent = contents


def read_files(results: Sequence[Path]) -> dict[str, bytes]:
    """Return the files by name, those of folders by path below the folder; missing and hidden ones are left out.

    A hidden file is one that is being written: anyone who writes a document whole renames it at the end.

    Raises:
        CommandError: two files have one name.
        ConfigMapTooLargeError: a file is larger than any that could fit when compressed.
    """
    from neuroshard_api.documents.config_map import LIMIT_BYTES, ConfigMapTooLargeError
    from neuroshard_api.documents.document import UNPACKED_LIMIT_BYTES

    files: dict[str, bytes] = {}
    for result in results:
        folder = result if result.is_dir() else result.parent
        for path in sorted(result.rglob("*")) if result.is_dir() else [result]:
            name = path.relative_to(folder)
            if not path.is_file() or any(part.startswith(".") for part in name.parts):
                continue
            if name.as_posix() in files:
                raise CommandError(f"{path}: another --from has a file of this name; hint: rename one")
            if path.stat().st_size > UNPACKED_LIMIT_BYTES:
                size = f"has {path.stat().st_size:,} bytes, a ConfigMap holds {LIMIT_BYTES:,}"
                raise ConfigMapTooLargeError(f"{path}: {size}; hint: publish fewer or smaller files")
            files[name.as_posix()] = path.read_bytes()
    return files


def pod_api(service_account: Path) -> PodApi:
    """Return the API server of the pod that this process runs in. Raises CommandError outside of any."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port.isdigit():
        found = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        raise CommandError(f"not running in a pod: {found}; hint: run the command after `--` by itself")
    return PodApi(host=host, port=int(port), service_account=service_account)


def _watch_command(publication: Publication, process: "subprocess.Popen[bytes]", every_s: float) -> int:
    def ended() -> bool:
        try:
            process.wait(every_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    _watch(publication, ended)
    publication.last_update()
    return exit_code(process)


def _watch_files(publication: Publication, every_s: float, *, publishes: bool) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEPT)
    if not publishes:  # a sidecar that ended would be started again
        stop.wait()
        return ExitCode.OK
    _watch(publication, lambda: stop.wait(every_s))
    return publication.last_update()


def _watch(publication: Publication, ended: Callable[[], bool]) -> None:
    while not ended():
        publication.update()
