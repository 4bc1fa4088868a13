"""Ports for servers that a test cannot let choose one themselves, or that come back."""

import random
import socket
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000
LOCALHOST = "127.0.0.1"


def quiet_port() -> int:
    """Return a free port of this machine that the kernel gives to nobody who asks for any.

    One that it has just given out as free may go to the next program that asks before the server listens.
    """
    highest = int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    for port in random.SystemRandom().sample(range(LOWEST, max(highest, LOWEST + 1000)), k=100):
        with socket.socket() as probe:
            try:
                probe.bind((LOCALHOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {LOWEST} to {highest} is free")


def held_port() -> socket.socket:
    """Return a socket that keeps a free port, also while its server restarts: only one that shares it can take it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((LOCALHOST, 0))
    return held
