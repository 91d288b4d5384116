"""Attack an installed dsearch from outside for a few minutes: kill, flip, fuzz, poison and overload rounds.

    python scripts/trials/attack.py                                  # about three minutes, default encoder
    python scripts/trials/attack.py --kills 50 --flips 2000 --fuzz 20000 --seconds 60
    python scripts/trials/attack.py --encoder FOLDER --rounds kill,flip

It uses the commands, the HTTP API and `dsearch.open` of the package that this Python finds, and none of the
project's own tests. It prints one table and exits with 1 if a promise was broken:

- kill      SIGKILL of the server at random moments while documents are written: whatever was acknowledged is
            there after the restart.
- flip      a flipped bit, a zeroed block or a cut end in a random file of a copy of the home: every answer is
            the one of before, or an error in words, or `dsearch verify` names the damage.
- fuzz      mutated request lines, JSON bodies and heads: never a 500 (or another 5xx but overload), and the
            server lives.
- poison    clicks of many clients on the last hit, and events that name what was never shown: without a
            promoted model no ranking changes; events that cannot be true are refused.
- overload  many clients beside slow ones: answers are 200, 503 or 504; afterwards the server is ready and the
            answer is the one of before.
- slow      a thousand connections that send almost nothing, beside uploads: these come through.
- full      no file of the home can grow, at several sizes: writes are refused in words, what was acknowledged
            is there after a restart.
- home      a second server and a second writer of one home are refused.
- restore   backups of other formats, with hostile FAISS files or links are refused in words.
- bomb      models and files that stand for terabytes are refused, and the server's memory stays bounded.
- site      hosts and origins of other sites, and their page in a browser: nothing is read or changed.
- scope     each cell of the guide's table of routes and keys. The last round: the home has keys then.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import break_ins
from attacked import (
    ANSWERS_WITHIN_S,
    BUSY,
    COLLECTION,
    QUERIES,
    URL,
    WORDS,
    Outcome,
    Server,
    documents,
    filled,
)

SPLICED = (b"null", b"1e999", b'"\\ud800"', b"[[[[", b"-1", b"\0", b"9" * 400)


# ---- rounds


def kill(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Kill the server while two threads write."""
    outcome = Outcome("kill")
    acknowledged: dict[str, str] = {}
    for number in range(options.kills):
        stop = threading.Event()

        def write(writer: int, number: int = number, stop: threading.Event = stop) -> None:
            own, batch = random.Random(f"{options.seed}-{number}-{writer}"), 0
            while not stop.is_set():
                batch += 1
                sent = documents(3, f"k{number}-{writer}-{batch}", own)
                with suppress(OSError, http.client.HTTPException):
                    if server.ask("PUT", f"{URL}/documents", sent)[0] in (200, 201):
                        acknowledged.update((one["id"], one["text"]) for one in sent)

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(2)]
        for writer in writers:
            writer.start()
        time.sleep(generator.uniform(0.05, 1.5))
        server.stop(signal.SIGKILL)
        stop.set()
        for writer in writers:
            writer.join()
        server.start()
        outcome.trials += 1
        for id, text in acknowledged.items():
            status, document = server.patient("GET", f"{URL}/documents/{id}")
            if status != 200 or document["text"] != text:
                outcome.broken.append(f"kill {number}: {id} was acknowledged; now {status}")
    outcome.seen["documents acknowledged"] = len(acknowledged)
    return outcome


def flip(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Damage files of copies of the closed home."""
    import dsearch
    from dsearch.config import load_settings
    from dsearch.encoder import load_encoder
    from dsearch.engine.maintenance.verify import verify_collection
    from dsearch.errors import DsearchError

    outcome = Outcome("flip")
    server.stop()
    name = options.encoder or load_settings(home=server.home).encoder
    encoder = load_encoder(name)

    def reads(home: Path) -> list[Callable[[], object]]:
        def ask(work: Callable[[Any], object]) -> Callable[[], object]:
            def opened() -> object:
                with dsearch.open(home, readonly=True, encoder=lambda: encoder) as engine:
                    return work(engine.engine.collection(COLLECTION))

            return opened

        def hits(query: str, mode: str) -> Callable[[Any], object]:
            return lambda found: [(hit.id, hit.text) for hit in found.search(query, mode=mode, limit=20).hits]

        return [
            ask(lambda found: [(one.id, one.text) for one in found.store.list(limit=1000)]),
            ask(lambda found: [value.documents for value in found.store.facets("number", limit=1000)]),
            *(ask(hits(query, mode)) for query in QUERIES[:1] for mode in ("hybrid", "keyword")),
        ]

    expected = [read() for read in reads(server.home)]
    with tempfile.TemporaryDirectory(dir=server.home.parent) as scratch:
        for number in range(options.flips):
            copy = Path(scratch) / f"copy-{number}"
            shutil.copytree(server.home, copy)
            files = sorted(
                path
                for path in (copy / COLLECTION).rglob("*")
                if path.is_file() and path.stat().st_size and not path.name.startswith("feedback")
            )
            database = copy / COLLECTION / "documents.db"
            path = database if number % 2 == 0 else generator.choice(files)
            content = bytearray(path.read_bytes())
            at = generator.randrange(len(content))
            if (kind := generator.choice(("flip", "flip", "block", "cut"))) == "flip":
                content[at] ^= 1 << generator.randrange(8)
            elif kind == "block":
                start = at - at % 512
                content[start : start + 512] = bytes(len(content[start : start + 512]))
            else:
                del content[at:]
            path.write_bytes(content)
            outcome.trials += 1
            for read, right in zip(reads(copy), expected, strict=True):
                try:
                    given = read()
                except DsearchError:
                    outcome.seen["answers refused in words"] += 1
                except Exception as error:  # any other one is a finding
                    outcome.broken.append(f"{kind} in {path.relative_to(copy)} at {at}: {error!r}")
                else:
                    if given == right:
                        outcome.seen["answers as before"] += 1
                    elif verify_collection(copy / COLLECTION).ok:
                        outcome.broken.append(f"{kind} in {path.relative_to(copy)} at {at}: another answer")
                    else:
                        outcome.seen["other answers whose damage verify names"] += 1
            shutil.rmtree(copy)
    server.start()
    return outcome


def fuzz(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Send mutated requests."""
    outcome = Outcome("fuzz")
    search = json.dumps({"query": "red apple", "limit": 3, "filter": {"number": {"gt": 3}}}).encode()
    event = {"action_name": "click", "object_id": "first-1", "user_query": "red", "client_id": "x"}
    stored = json.dumps([{"id": "f", "text": "red", "metadata": {"a": [1, None]}}]).encode()
    head = server.ask("GET", f"{URL}/models/v0/head")[1]
    model = head.encode("latin-1") if isinstance(head, str) else b"{}"
    bodies = (
        ("POST", f"{URL}/search", search, "application/json"),
        ("POST", f"{URL}/attend", b'{"queries": ["red"], "candidates": 5}', "application/json"),
        ("POST", f"{URL}/feedback", json.dumps([event]).encode(), "application/json"),
        ("PUT", f"{URL}/documents", stored, "application/json"),
        ("POST", f"{URL}/models", model, "application/x-safetensors"),
        ("POST", f"{URL}/models?parent=v0", model, "application/x-safetensors"),
    )
    for number in range(options.fuzz):
        method, path, body, kind = generator.choice(bodies)
        sent = bytearray(body)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(sent) or 1)
            change = generator.choice(("byte", "cut", "double", "word"))
            if change == "byte" and sent:
                sent[at] = generator.randrange(256)
            elif change == "cut":
                del sent[at : at + generator.randint(1, 16)]
            elif change == "double":
                sent[at:at] = sent[at : at + 32]
            else:
                sent[at:at] = generator.choice(SPLICED)
        line = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
        if number % 4 == 0:
            broken = bytearray(line)
            broken[generator.randrange(len(broken))] = generator.randrange(256)
            line = bytes(broken)
        headers = f"Content-Type: {kind}\r\nContent-Length: {len(sent)}\r\nConnection: close\r\n\r\n"
        answered = server.raw(line + headers.encode() + bytes(sent))
        outcome.trials += 1
        status = answered[9:12].decode("ascii", "replace") or "nothing"
        outcome.seen[f"× {status[0]}xx" if status[0].isdigit() else "× no answer"] += 1
        if status.startswith("5") and int(status) not in BUSY:
            outcome.broken.append(f"{method} {path} {bytes(sent)[:200]!r}: {status}")
    if server.patient("GET", "/readyz")[0] != 200:
        outcome.broken.append("the server is not ready after it")
    return outcome


def poison(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Click on the last hit as many clients."""
    outcome = Outcome("poison")
    before = server.rankings()
    for number in range(options.events):
        query = generator.choice(QUERIES)
        _, page = server.patient("POST", f"{URL}/search", {"query": query})
        event: dict[str, Any] = {
            "query_id": page["query_id"],
            "action_name": generator.choice(("click", "thumbs_up")),
            "object_id": page["hits"][-1]["id"],
            "client_id": f"client-{number}",
        }
        lie = number % 4 == 0
        if lie:
            event |= {"query_id": f"never-{number}"}
        status, answer = server.patient("POST", f"{URL}/feedback", [event])
        outcome.trials += 1
        outcome.seen["recorded" if status < 300 else "refused"] += 1
        if lie and status < 300:
            outcome.broken.append(f"an event on a search that never was: {status} {answer}")
        if status >= 500 and status not in BUSY:
            outcome.broken.append(f"event {number}: {status} {answer}")
    if server.rankings() != before:
        outcome.broken.append("clicks changed a ranking without a model")
    return outcome


def overload(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Ask with many clients at once, beside connections that send almost nothing."""
    outcome, lock, started = Outcome("overload"), threading.Lock(), time.monotonic()
    before = server.rankings()
    slow = []
    for _ in range(options.clients * 2):
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            connection.sendall(b"POST /v1/collections HTTP/1.1\r\nHost: ")
            slow.append(connection)

    def ask(client: int) -> None:
        own = random.Random(f"{options.seed}-{client}")
        # On a busy machine the first answer may come late.
        while (took_s := time.monotonic() - started) < options.seconds or (
            not outcome.seen["× 200"] and took_s < ANSWERS_WITHIN_S
        ):
            try:
                status, _ = server.ask("POST", f"{URL}/search", {"query": " ".join(own.choices(WORDS, k=3))})
            except (OSError, http.client.HTTPException):
                status = 0
            with lock:
                outcome.trials += 1
                outcome.seen[f"× {status or 'no answer'}"] += 1
                if status not in (200, 0, *BUSY):
                    outcome.broken.append(f"a search got {status}")

    clients = [threading.Thread(target=ask, args=(client,)) for client in range(options.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for connection in slow:
        connection.close()
    if outcome.seen["× 200"] == 0:
        outcome.broken.append("nobody was answered")
    if server.patient("GET", "/readyz")[0] != 200 or server.rankings() != before:
        outcome.broken.append("another answer after it")
    return outcome


ROUNDS: dict[str, Callable[[Server, argparse.Namespace, random.Random], Outcome]] = {
    "kill": kill,
    "flip": flip,
    "fuzz": fuzz,
    "poison": poison,
    "overload": overload,
    "slow": break_ins.slow,
    "full": break_ins.full,
    "home": break_ins.home,
    "restore": break_ins.restore,
    "bomb": break_ins.bomb,
    "site": break_ins.site,
    "scope": break_ins.scope,
}


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", default=",".join(ROUNDS), help="comma-separated")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--fuzz", type=int, default=2000, help="requests")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=15.0, help="of overload")
    parser.add_argument("--slow", type=int, default=1000, help="connections that send almost nothing")
    parser.add_argument("--uploads", type=int, default=20, help="beside them")
    parser.add_argument("--limits", type=int, default=4, help="sizes beyond which no file grows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--encoder", help="a sentence-transformers model or folder; the default one when left out"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.rounds.split(",") if name not in ROUNDS]:
        parser.error(f"no round {unknown[0]!r}; use some of {', '.join(ROUNDS)}")
    return options


def main() -> int:
    """Run the rounds and print the table; 1 if a promise was broken."""
    options = parsed()
    # A build of a server that was killed may write for a moment longer.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        server = Server(Path(scratch) / "home", options.encoder)
        server.home.mkdir()
        os.environ.pop("DSEARCH_HOME", None)
        os.environ.setdefault("DSEARCH_BACKEND", "torch")  # hits of equal scores keep their order
        outcomes: list[Outcome] = []
        try:
            filled(server, random.Random(options.seed))
            outcomes += [
                ROUNDS[name](server, options, random.Random(f"{options.seed}-{name}"))
                for name in options.rounds.split(",")
            ]
        finally:
            server.stop(signal.SIGKILL)
    print(f"{'round':<9} {'trials':>7} {'broken':>7}  seen")
    for outcome in outcomes:
        print(outcome.row())
    for outcome in outcomes:
        for line in outcome.broken[:20]:
            print(f"broken in {outcome.name}: {line}", file=sys.stderr)
    return int(any(outcome.broken for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
