"""A port for a server that has to be told one."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)  # below those that systems give to whoever asks for any, above Ray's workers


def free_port(host: str = "127.0.0.1") -> int:
    """A port at which nothing listens; tests beside this one are not given it before it is used."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
