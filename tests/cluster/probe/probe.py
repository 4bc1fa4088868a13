"""The pod's side of the conformance probe: one small verb for each thing that a check looks at."""

import http.server
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

LOOKUP_TRIES = 6000
"""Ten minutes: the pod of a name may start later, on another node."""
ADDED = "# added by a container"


def serve() -> None:
    """Answer every request with this pod's name."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(socket.gethostname().encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
            print("served", format % args, flush=True)

    http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()


def fetch(url: str) -> None:
    """Print the answer of `url`."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            print(answer.read().decode(), flush=True)
    except OSError as error:
        raise SystemExit(f"{url}: {error}") from error


def resolve(*names: str) -> None:
    """Print the address of every name; a name that is not there yet is asked for again."""
    for name in names:
        for left in reversed(range(LOOKUP_TRIES)):
            try:
                print(name, socket.gethostbyname(name), flush=True)
                break
            except OSError as error:
                if not left:
                    raise SystemExit(f"{name}: {error}") from error
                time.sleep(0.1)


def leave(code: str) -> None:
    """Exit with `code`; or, if it is `index`, with 0 for the first pod of a Job and 42 for the others."""
    if code == "index":
        raise SystemExit(0 if os.environ["JOB_COMPLETION_INDEX"] == "0" else 42)
    raise SystemExit(int(code))


def fill(mebibytes: str) -> None:
    """Use so much memory, then wait."""
    kept = bytearray(int(mebibytes) << 20)
    for place in range(0, len(kept), 4096):
        kept[place] = 1
    time.sleep(3600)


def overwrite() -> None:
    """Add a line to this very file, which is part of the image; print how many such lines it had before and has now."""
    here = Path(__file__)
    before = here.read_text(encoding="utf-8").splitlines().count(ADDED)
    with here.open("a", encoding="utf-8") as file:
        file.write(f"{ADDED}\n")
    print(before, here.read_text(encoding="utf-8").splitlines().count(ADDED), flush=True)


def wait() -> None:
    """Do nothing until asked to end."""
    time.sleep(3600)


VERBS: dict[str, Callable[..., None]] = {
    "serve": serve,
    "fetch": fetch,
    "resolve": resolve,
    "exit": leave,
    "fill": fill,
    "overwrite": overwrite,
    "wait": wait,
}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
