"""How the service stands overload: requests at a constant rate (open loop) to a server in another process.

    python scripts/trials/soak.py                        # a minute a phase
    python scripts/trials/soak.py --overload 600         # twice the capacity for ten minutes
    python scripts/trials/soak.py --seconds 15 --rounds 5        # medians, where the machine is not quiet
    python scripts/trials/soak.py --fake --seconds 5     # no weights needed: does it work at all?

Four phases: as fast as 32 connections get answers (capacity), 80 % of that, twice that, and half of it again;
`--rounds` repeats them. At the end, as fast as 32 connections get answers once more. On a machine that others
use as well, what is answered of an overload is held against the capacity before and after it, and each
promise by the median of its rounds.
Requests are sent when they are due, whether earlier ones were answered or not: a client that waits for its
answers slows down with the server and hides what it does to the others.

Where there are two cores or more, the last one is the client's and the others are the server's, so that
neither takes from the other. What a third party takes shows in the columns "CPU" (processor seconds that the
server got in each second) and "late" (how much later than due requests were sent, p99).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

CONNECTIONS = 32
WORDS = [
    *("attention", "query", "key", "value", "softmax", "head", "pool", "search", "index", "memory"),
    *("river", "stone", "lamp", "music", "garden", "engine", "window", "paper", "sound", "light"),
    *("winter", "bridge", "market", "letter", "forest", "copper", "engineer", "planet", "harbour"),
]


@dataclass
class Phase:
    """What became of the requests of one phase."""

    name: str
    seconds: float = 0.0
    sent: int = 0
    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    other: dict[str, int] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)
    memory_mib: float = 0.0
    processor: float = 0.0

    def row(self) -> list[str]:
        """As a row of the table."""
        accepted = len(self.accepted_ms)
        return [
            self.name,
            f"{self.sent / self.seconds:.0f}",
            f"{accepted / self.seconds:.0f}",
            *(_quantile(self.accepted_ms, q) for q in (50, 99)),
            str(len(self.refused_ms)),
            _quantile(self.refused_ms, 99),
            str(self.without_retry_after),
            ", ".join(f"{count} {what}" for what, count in sorted(self.other.items())) or "0",
            f"{self.memory_mib:.0f}",
            f"{self.processor:.2f}",
            _quantile(self.late_ms, 99),
        ]


HEADINGS = [
    *("phase", "sent/s", "answered/s", "p50 ms", "p99 ms", "refused", "p99 ms of refusals"),
    *("without Retry-After", "other", "MiB", "CPU", "late ms"),
]


class Connections:
    """Plain HTTP/1.1 connections that are used again: a client that costs little beside the server."""

    def __init__(self, port: int, collection: str):
        self._port, self._path = port, f"/v1/collections/{collection}/search"
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._draw = random.Random(0)

    async def ask(self, phase: Phase) -> None:
        """One search, noted in `phase`."""
        body = json.dumps({"query": " ".join(self._draw.choices(WORDS, k=5)), "limit": 10}).encode()
        request = (
            f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        phase.sent += 1
        started = time.perf_counter()
        try:
            while True:
                fresh = not self._idle
                streams = await self._open() if fresh else self._idle.pop()
                try:
                    status, headers = await self._exchange(streams, request)
                    break
                except (OSError, asyncio.IncompleteReadError):
                    streams[1].close()
                    if fresh:
                        raise  # one that lay idle may have been closed meanwhile; a new one may not
        except (OSError, asyncio.IncompleteReadError) as error:
            _count(phase, type(error).__name__)
            return
        took_ms = (time.perf_counter() - started) * 1000
        if b"\r\nconnection: close" not in headers.lower():
            self._idle.append(streams)
        if status == 200:
            phase.accepted_ms.append(took_ms)
        elif status in (429, 503):
            phase.refused_ms.append(took_ms)
            phase.without_retry_after += b"\r\nretry-after:" not in headers.lower()
        else:
            _count(phase, f"status {status}")

    def close(self) -> None:
        """Close what is open."""
        for _, writer in self._idle:
            writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def _exchange(
        self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
    ) -> tuple[int, bytes]:
        reader, writer = streams
        writer.write(request)
        headers = await reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return int(headers[9:12]), headers


async def closed_loop(connections: Connections, name: str, seconds: float) -> Phase:
    """As many requests as `CONNECTIONS` that wait for their answers make."""
    phase = Phase(name)
    started = time.perf_counter()

    async def one() -> None:
        while time.perf_counter() - started < seconds:
            refused = len(phase.refused_ms)
            await connections.ask(phase)
            if len(phase.refused_ms) > refused:
                await asyncio.sleep(0.02)

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    phase.seconds = time.perf_counter() - started
    return phase


async def open_loop(connections: Connections, name: str, rate: float, seconds: float) -> Phase:
    """Requests at a constant rate, whatever becomes of them."""
    phase = Phase(name, seconds)
    started = time.perf_counter()
    running: set[asyncio.Task[None]] = set()
    for number in range(max(1, round(rate * seconds))):
        wait = started + number / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        phase.late_ms.append((time.perf_counter() - started - number / rate) * 1000)
        task = asyncio.create_task(connections.ask(phase))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return phase


@dataclass
class Round:
    """The phases of one round, and the capacity after it."""

    capacity: Phase
    normal: Phase
    double: Phase
    after: Phase
    later: Phase


async def soak(
    port: int, process: int, collection: str, seconds: float, overload_s: float, rounds: int
) -> list[Round]:
    """The phases, one after the other."""
    connections = Connections(port, collection)
    await closed_loop(connections, "warm-up", min(5.0, seconds))
    used = [processor_s(process)]

    def note(phase: Phase) -> Phase:
        phase.memory_mib = memory_mib(process)
        used.append(processor_s(process))
        phase.processor = (used[-1] - used[-2]) / phase.seconds
        print(f"{phase.name}: {len(phase.accepted_ms)} of {phase.sent} answered", file=sys.stderr, flush=True)
        return phase

    async def full() -> Phase:
        return note(await closed_loop(connections, f"{CONNECTIONS} connections", seconds))

    done: list[Round] = []
    capacity = await full()
    for _ in range(rounds):
        rate = len(capacity.accepted_ms) / capacity.seconds
        others = [
            note(await open_loop(connections, f"{share:.0%} of that", share * rate, length))
            for share, length in ((0.8, seconds), (2.0, overload_s), (0.5, min(5.0, seconds)))
        ]
        later = await full()
        done.append(Round(capacity, *others, later))
        capacity = later
    connections.close()
    return done


def main() -> None:
    """Build a collection, serve it, ask, print a table and what was promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="of each phase")
    parser.add_argument("--overload", type=float, help="seconds of twice the capacity; as the others if not")
    parser.add_argument("--rounds", type=int, default=1, help="of the phases; of each promise the median")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--record", action="store_true", help="write it into the results")
    parser.add_argument("--fake", action="store_true", help="an encoder of the tests in place of a real one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        build(home, chosen.documents, chosen.fake)
        theirs, ours = cores()
        run_on(theirs)  # a process begins on the cores of who starts it, and counts its threads by them
        process, port = serve(home, chosen.fake)
        run_on(ours)
        try:
            overload = chosen.overload or chosen.seconds
            rounds = asyncio.run(soak(port, process.pid, "soak", chosen.seconds, overload, chosen.rounds))
        finally:
            process.terminate()
            status = process.wait(60)
    phases = [rounds[0].capacity]
    phases += [phase for one in rounds for phase in (one.normal, one.double, one.after, one.later)]
    rows = [HEADINGS, *(phase.row() for phase in phases)]
    print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores\n")
    print("\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(HEADINGS), *rows[1:]]))
    print()
    for said, kept in promises(rounds, status):
        print(f"{'yes' if kept else 'NO '}  {said}")
    if chosen.record:
        write(rounds, status, chosen.overload or chosen.seconds)


@dataclass(frozen=True)
class Summary:
    """Medians over rounds: shares of the capacity around them, ratios to 80 % load, milliseconds.

    Attributes:
        goodput: answered at twice the capacity, as a share of the capacity before and after.
        ratio: p99 of the answered, times that at 80 % load.
        refused_ms: p99 of refusals.
        grown: the most memory, times that at first.
        calm: in which rounds half the capacity was answered as before, five seconds later.
    """

    goodput: float
    ratio: float
    refused_ms: float
    grown: float
    calm: list[bool]


def summary(rounds: list[Round]) -> Summary:
    """Reduce the rounds to the figures that are promised."""
    shares = [2 * _rate(one.double) / (_rate(one.capacity) + _rate(one.later)) for one in rounds]
    ratios = [_p99(one.double.accepted_ms) / _p99(one.normal.accepted_ms) for one in rounds]
    calm = [
        _p99(one.after.accepted_ms) <= 2 * _p99(one.normal.accepted_ms) and not one.after.refused_ms
        for one in rounds
    ]
    return Summary(
        float(np.median(shares)),
        float(np.median(ratios)),
        float(np.median([_p99(one.double.refused_ms) for one in rounds])),
        max(one.double.memory_mib for one in rounds) / rounds[0].capacity.memory_mib,
        calm,
    )


def promises(rounds: list[Round], status: int) -> list[tuple[str, bool]]:
    """What is promised of overload, and whether it was kept."""
    of, double = summary(rounds), [one.double for one in rounds]
    return [
        (f"twice the capacity: answered {of.goodput:.0%} of it (90 %)", of.goodput >= 0.9),
        (f"p99 of the answered {of.ratio:.1f} × that at 80 % (2 ×)", of.ratio <= 2),
        (f"p99 of refusals {of.refused_ms:.0f} ms (50 ms)", of.refused_ms <= 50),
        ("every refusal has Retry-After", not any(phase.without_retry_after for phase in double)),
        ("nothing but answers and refusals", not any(phase.other for phase in double)),
        (f"memory {of.grown:.2f} × (1.2 ×)", of.grown <= 1.2),
        (f"normal again within 5 s, in {sum(of.calm)} of {len(of.calm)}", 2 * sum(of.calm) > len(of.calm)),
        ("ended by SIGTERM with 0", status == 0),
    ]


def write(rounds: list[Round], status: int, seconds: float) -> None:
    """Write the record `overload`."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
    from records import Record, describe_machine, present_commit, today, write_record

    of = summary(rounds)
    answered = sum(len(one.double.accepted_ms) for one in rounds)
    refused = sum(len(one.double.refused_ms) for one in rounds)
    capacities = [_rate(rounds[0].capacity), *(_rate(one.later) for one in rounds)]
    rows = [
        ["queries answered", f"{answered:,}", ""],
        ["queries refused", f"{refused:,}", ""],
        ["refused without Retry-After", str(sum(one.double.without_retry_after for one in rounds)), "0"],
        ["answered, share of capacity", f"**{of.goodput:.0%}**".replace("%", " %"), "90 %"],
        ["p99, times that at 80 % load", f"{of.ratio:.1f}", "2"],
        ["p99 of refusals", f"{of.refused_ms:.0f} ms", "50 ms"],
        ["memory, times", f"{of.grown:.2f}", "1.2"],
        ["normal again within 5 s", f"{sum(of.calm)} of {len(of.calm)}", ""],
        ["capacity before and after, queries/s", ", ".join(f"{rate:.0f}" for rate in capacities), ""],
        ["exit code after SIGTERM", str(status), "0"],
    ]
    title = "Twice the capacity, real encoder, one core for the server and one for clients"
    note = (
        f"Overload of {seconds:g} s, {len(rounds)} times; the capacity is that before and after. Two bounded "
        "caches of queries and pages, 64 MiB each, fill in that time."
    )
    command = f"python scripts/trials/{' '.join([Path(__file__).name, *sys.argv[1:]])}"
    columns = ["measurement", "figure", "aim"]
    machine, commit = describe_machine(), present_commit()
    write_record(
        "overload", Record("Service", title, [command], today(), commit, machine, columns, rows, [note])
    )


def _rate(phase: Phase) -> float:
    return len(phase.accepted_ms) / phase.seconds


def _p99(values: list[float]) -> float:
    return float(np.percentile(values or [0.0], 99))


def build(home: Path, count: int, fake: bool) -> None:
    """A collection of texts of a few words."""
    from dsearch.engine import SearchEngine
    from dsearch.types import Document

    draw = np.random.default_rng(0)
    documents = [Document(f"d{i}", " ".join(draw.choice(WORDS, 40))) for i in range(count)]
    with SearchEngine(home, encoder=_fake_encoder if fake else None) as engine:
        engine.create("soak").ingest(documents)


def serve(home: Path, fake: bool) -> tuple[subprocess.Popen[bytes], int]:
    """A server that is ready, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if fake:
        command = [sys.executable, __file__, "--serve-fake", str(home), str(port)]
    else:
        command = [sys.executable, "-m", "dsearch", "serve", "--home", str(home), "--port", str(port)]
    process = subprocess.Popen(command)
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                    return process, port
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.2)
    process.kill()
    raise SystemExit("the server did not become ready")


def serve_fake(home: str, port: int) -> None:
    """What `--fake` starts."""
    from dsearch.engine import SearchEngine
    from dsearch.service import create_app
    from dsearch.service.server import run_server
    from dsearch.threads import set_threads

    set_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with SearchEngine(home, encoder=_fake_encoder) as engine:
        run_server(create_app(engine), port=port)


def _fake_encoder() -> object:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support.fakes import HashingEncoder

    return HashingEncoder()


def cores() -> tuple[set[int], set[int]]:
    """Those of the server, and the last one, for this process; all for both where there is but one."""
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    *others, last = sorted(os.sched_getaffinity(0))
    return set(others or [last]), {last}


def run_on(chosen: set[int]) -> None:
    """Keep this process, and those that it starts, on these cores."""
    if chosen:
        os.sched_setaffinity(0, chosen)


def processor_s(process: int) -> float:
    """Processor seconds that a process has had; 0 where they cannot be read."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(process: int) -> float:
    """Resident memory of a process; 0 where it cannot be read."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _quantile(values: list[float], q: float) -> str:
    return f"{np.percentile(values, q):.0f}" if values else "–"


def _count(phase: Phase, what: str) -> None:
    phase.other[what] = phase.other.get(what, 0) + 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve-fake"]:
        serve_fake(sys.argv[2], int(sys.argv[3]))
    else:
        main()
