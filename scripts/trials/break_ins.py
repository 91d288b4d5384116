"""Rounds of `attack.py` against what is not a single request: disk, home, backups, files, browsers, keys.

Each takes a running server, which answers as before afterwards, and returns an `Outcome`. `scope` comes last:
from then on the home needs keys.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import queue
import random
import re
import resource
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired, run
from typing import Any

from attacked import COLLECTION, URL, Outcome, Server, documents

ENDS_WITHIN_S = 600.0
MOST_GROWN_BYTES = 1 << 30  # of the server's memory, by any of the bombs
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_STARTS = (  # of requests that never end
    b"",
    b"POST /v1/collections HTTP/1.1\r\nHost: ",
    b"PUT /v1/collections/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost:",
)


def command(server: Server, *words: str) -> tuple[int, str]:
    """Exit status and all output of a command of dsearch."""
    path = server.home.parent / "command.log"
    with path.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "dsearch", *words], stdout=log, stderr=log)
        try:
            code = process.wait(ENDS_WITHIN_S)
        except TimeoutExpired:
            process.kill()
            process.wait()
            return -1, "it did not end"
    return code, path.read_text("utf-8", "replace")


def slow(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Upload documents beside many connections that send almost nothing."""
    outcome = Outcome("slow")
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = options.slow if most == resource.RLIM_INFINITY else min(options.slow, most - 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(least, count + 100), most))
    before, opened = server.rankings(), list[socket.socket]()
    for number in range(count):
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            opened.append(connection)
            connection.sendall(_STARTS[number % len(_STARTS)])
    outcome.seen["slow connections"] = len(opened)
    try:
        for number in range(options.uploads):
            status = server.patient("PUT", f"{URL}-slow", {})[0] if number == 0 else 200
            sent = documents(20, f"slow-{number}", generator)
            if status < 300:
                status, _ = server.patient("PUT", f"{URL}-slow/documents", sent)
            outcome.trials += 1
            outcome.seen[f"× {status}"] += 1
            if status not in (200, 201):
                outcome.broken.append(f"an upload beside slow clients got {status}")
    finally:
        for connection in opened:
            connection.close()
    stored = server.patient("GET", f"{URL}-slow")[1]
    if stored.get("documents") != 20 * options.uploads:
        outcome.broken.append(f"{20 * options.uploads} documents were acknowledged; there are {stored}")
    if server.patient("DELETE", f"{URL}-slow")[0] >= 300 or server.rankings() != before:
        outcome.broken.append("another answer after it")
    return outcome


def full(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Let no file of the server grow: the limit of a file's size fails writes in every file of the home."""
    outcome, before = Outcome("full"), server.rankings()
    click = {"action_name": "click", "object_id": "first-1", "user_query": "red"}
    assert server.process is not None
    acknowledged: list[str] = []
    for number in range(options.limits):
        limit = generator.choice((1, 4096, 32_768))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        writes: tuple[tuple[str, str, Any], ...] = (
            ("PUT", f"{URL}/documents", documents(40, f"full-{number}", generator)),
            ("PUT", f"{URL}-{number}", {}),
            ("POST", f"{URL}/feedback", [click]),
        )
        for method, path, body in writes:
            status, answer = server.ask(method, path, body)
            outcome.trials += 1
            outcome.seen[f"× {status}"] += 1
            if status == 500 or (status >= 400 and "detail" not in answer):
                outcome.broken.append(f"{method} {path} at {limit} bytes: {status} {answer}")
            if status < 300 and path.endswith("/documents"):
                acknowledged += [one["id"] for one in body]
        if server.ask("GET", "/healthz")[0] != 200:
            outcome.broken.append(f"not alive at {limit} bytes")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
        server.stop()
        server.start()
        for id in acknowledged:
            if (status := server.ask("GET", f"{URL}/documents/{id}")[0]) != 200:
                outcome.broken.append(f"{id} was acknowledged at {limit} bytes; now {status}")
        for id in acknowledged:
            server.ask("DELETE", f"{URL}/documents/{id}")
        acknowledged.clear()
        for left in range(number + 1):
            server.ask("DELETE", f"{URL}-{left}")
    if server.rankings() != before:
        outcome.broken.append("another answer after it")
    return outcome


def home(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Start a second server on the home, and open the home to write in this process."""
    import dsearch
    from dsearch.errors import HomeLocked

    outcome, before = Outcome("home"), server.rankings()
    other = str(Server(server.home, None).port)
    code, told = command(server, "serve", "--home", str(server.home), "--port", other)
    if code in (0, -1) or "Traceback" in told:
        outcome.broken.append(f"a second server: exit {code}, {told[-300:]}")
    try:
        with dsearch.open(server.home) as engine:
            engine.engine.create("second")
        outcome.broken.append("another process wrote into the home")
    except HomeLocked:
        outcome.seen["writer refused"] += 1
    outcome.trials, outcome.seen["server refused"] = 2, int(code not in (0, -1))
    if server.patient("GET", "/readyz")[0] != 200 or server.rankings() != before:
        outcome.broken.append("the first server answers otherwise")
    return outcome


def restore(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Restore a backup, and copies of it that claim other formats or have hostile files."""
    outcome = Outcome("restore")
    with tempfile.TemporaryDirectory(dir=server.home.parent) as scratch:
        folder = Path(scratch)
        backup = folder / COLLECTION
        code, told = command(server, "backup", str(backup), "-c", COLLECTION, "--home", str(server.home))
        assert code == 0, told
        for number, (what, change) in enumerate(_BACKUPS.items()):
            copy = folder / f"{number}" / COLLECTION
            shutil.copytree(backup, copy)
            change(copy)
            code, told = command(server, "restore", str(copy), "--home", str(folder / f"home-{number}"))
            outcome.trials += 1
            outcome.seen["refused in words" if code else "restored"] += 1
            if code == -1 or "Traceback" in told or (code == 0) != (what not in _REFUSED):
                outcome.broken.append(f"a backup with {what}: exit {code}, {told[-300:]}")
    return outcome


def _as_it_is(_: Path) -> None: ...


def _of_format(version: str) -> Callable[[Path], None]:
    def change(backup: Path) -> None:
        with sqlite3.connect(backup / "documents.db") as connection:
            connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (version,))
        connection.close()

    return change


def _generations(pattern: str, content: bytes) -> Callable[[Path], None]:
    def change(backup: Path) -> None:
        files = sorted((backup / "generations").rglob(pattern))
        assert files, f"no {pattern} in a backup"
        for path in files:
            path.write_bytes(content)

    return change


def _upward(backup: Path) -> None:
    (backup / "generations" / "link").symlink_to("/etc")


# A flat FAISS index of 2^62 keys, and one of 2^31 numbers a key.
_FAISS = b"IxFI" + struct.pack("<iqqqBi", 384, 1 << 62, 0, 0, 1, 0) + struct.pack("<Q", 1 << 62)
_BACKUPS: dict[str, Callable[[Path], None]] = {
    "nothing changed": _as_it_is,
    "a newer format": _of_format("99"),
    "a format that is no number": _of_format("-1"),
    "a FAISS file of 2^62 keys": _generations("*.faiss", _FAISS),
    "a FAISS file of a billion lists": _generations("*.faiss", b"IwFl" + b"\xff" * 60),
    "a manifest that is no object": _generations("manifest.json", b"[[[[" * 50_000),
    "a link out of it": _upward,
}
_REFUSED = {"a newer format", "a format that is no number", "a link out of it"}  # generations are built again


def bomb(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Send small bodies that stand for large ones."""
    outcome, before = Outcome("bomb"), server.rankings()
    grown, kind = _memory_bytes(server), {"Content-Type": "application/x-safetensors"}
    for what, body in _models():
        for path in (f"{URL}/models", f"{URL}/models?parent=v0", f"{URL}/models/save"):
            outcome.trials += 1
            try:
                status, answer = server.ask("POST", path, body, **kind)
            except ConnectionError:  # refused by its length, before it was read
                outcome.seen["cut off"] += 1
                continue
            outcome.seen[f"× {status}"] += 1
            if not 400 <= status < 500:
                outcome.broken.append(f"a model with {what} at {path}: {status} {answer}")
    for name, content in _files():
        head, body = _form(name, content)
        status, answer = server.ask("POST", f"{URL}/files", body, **{"Content-Type": head})
        outcome.trials += 1
        if status == 202:
            path, until = f"/v1/tasks/{answer['id']}", time.monotonic() + ENDS_WITHIN_S
            while not answer["ended"] and time.monotonic() < until:
                time.sleep(0.2)
                status, answer = server.ask("GET", path)
            outcome.seen[f"file {answer['state']}"] += 1
            if answer["state"] != "failed":
                outcome.broken.append(f"{name}: {status} {answer}")
        elif not 400 <= status < 500:
            outcome.broken.append(f"{name}: {status} {answer}")
    grown = _memory_bytes(server) - grown
    if grown > MOST_GROWN_BYTES:
        outcome.broken.append(f"the server grew by {grown} bytes")
    if server.rankings() != before:
        outcome.broken.append("another answer after it")
    return outcome


def _memory_bytes(server: Server) -> int:
    """The most that the server ever had in memory."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def _models() -> Iterator[tuple[str, bytes]]:
    def file(header: object, data: bytes = b"") -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    def tensor(shape: list[int], *offsets: int) -> dict[str, object]:
        return {"dtype": "F32", "shape": shape, "data_offsets": offsets}

    yield "a header of 2^63 bytes", struct.pack("<Q", 1 << 63) + b"{}"
    yield "a header of 90 MB", struct.pack("<Q", 90_000_000) + b" " * 1000
    yield "a matrix of 2^60 numbers", file({"key_delta": tensor([1 << 30, 1 << 30], 0, 1 << 62)})
    yield "numbers that are not there", file({"key_delta": tensor([384, 384], 0, 589_824)})
    shared = {name: tensor([1], 0, 4) for name in ("key_delta", "query_delta")}
    yield "two tensors in one place", file(shared, bytes(4))
    yield "100,000 tensors", file({f"t{n}": tensor([0], 0, 0) for n in range(100_000)})
    yield "brackets without end", struct.pack("<Q", 200_000) + b"[" * 200_000


def _files() -> Iterator[tuple[str, bytes]]:
    packed = io.BytesIO()
    archive = zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("word/document.xml", "w") as member:
        for _ in range(1024):
            member.write(bytes(1 << 20))
    yield "bomb.docx", packed.getvalue()
    yield "bomb.txt.gz", gzip.compress(bytes(200 << 20), 1)


def _form(name: str, content: bytes) -> tuple[str, bytes]:
    """Content type and body of an upload."""
    parts = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return "multipart/form-data; boundary=b", parts + content + b"\r\n--b--\r\n"


def site(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Ask as pages of other sites do: by headers, and in a browser where there is one."""
    outcome, before = Outcome("site"), server.rankings()
    there = server.patient("GET", "/v1/collections")[1]
    for headers in (
        {"Host": "rebound.test"},
        {"Host": f"rebound.test:{server.port}"},
        {"Origin": "http://other.test"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{server.port + 1}"},
    ):
        for method, path in (("GET", "/v1/collections"), ("DELETE", URL), ("PUT", f"{URL}-x")):
            status, answer = server.patient(method, path, b"{}", **headers)
            outcome.trials += 1
            outcome.seen[f"× {status}"] += 1
            if status not in (403, 421):
                outcome.broken.append(f"{method} {path} with {headers}: {status} {answer}")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        outcome.seen["no browser"] = 1
    else:
        rebound = f"http://rebound.test:{server.port}/v1/collections"
        read = {
            "the other site": _read_by_other_site(program, server.port),
            rebound: _shown(program, rebound),
        }
        for page, text in read.items():
            outcome.trials += 1
            outcome.seen["pages in a browser"] += 1
            if text is None:
                outcome.broken.append(f"the page of {page} did not come to its end")
            elif COLLECTION in text.replace(URL, ""):
                outcome.broken.append(f"a page of {page} reads {text[-300:]}")
    if server.rankings() != before or server.patient("GET", "/v1/collections")[1] != there:
        outcome.broken.append("a page of another site changed something")
    return outcome


# other.test and rebound.test are this machine.
_SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
_SWITCHES += ("--host-resolver-rules=MAP *.test 127.0.0.1",)
_PAGE = """<!doctype html><pre id=read></pre><iframe name=frame></iframe>
<form id=form method=post target=frame enctype=text/plain action="http://127.0.0.1:%(port)d%(url)s/documents/delete">
<input name='{"ids": ["first-1", "first-2"], "x": "' value='"}'></form>
<script>
(async () => {
  const read = document.getElementById("read");
  const at = (path) => "http://127.0.0.1:%(port)d" + path;
  const attempts = [
    [at("/v1/collections"), {}],
    [at("/v1/collections"), { mode: "no-cors" }],
    [at("%(url)s/search?query=red"), { credentials: "include" }],
    [at("%(url)s/documents/delete"), { method: "POST", mode: "no-cors", body: '{"ids": ["first-1"]}' }],
    [at("%(url)s-y"), { method: "PUT", headers: { "Content-Type": "application/json" }, body: "{}" }],
    [at("%(url)s"), { method: "DELETE" }],
  ];
  for (const [address, options] of attempts) {
    try {
      read.textContent += await (await fetch(address, options)).text();
    } catch (error) {
      read.textContent += " refused ";
    }
  }
  document.getElementById("form").submit();
  await new Promise((done) => setTimeout(done, 300));
  await fetch("/read", { method: "POST", body: read.textContent });
})();
</script>"""


def _read_by_other_site(program: str, port: int) -> str | None:
    """Text that the page of another site could read of the server at `port`; None if it did not end."""
    page = (_PAGE % {"port": port, "url": URL}).encode()
    told: queue.Queue[str] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self) -> None:
            told.put(self.rfile.read(int(self.headers["Content-Length"])).decode("utf-8", "replace"))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        threading.Thread(target=other.serve_forever, daemon=True).start()
        # A browser with a port for debuggers stays until it is ended.
        switches = (*_SWITCHES, f"--user-data-dir={profile}", "--remote-debugging-port=0")
        address = f"http://other.test:{other.server_port}/"
        browser = Popen([program, *switches, address], stdout=DEVNULL, stderr=DEVNULL)
        try:
            return told.get(timeout=ENDS_WITHIN_S)
        except queue.Empty:
            return None
        finally:
            browser.terminate()
            browser.wait()
            other.shutdown()


def _shown(program: str, url: str) -> str:
    """Return a page as a browser has it in the end."""
    ended = run(
        [program, *_SWITCHES, "--dump-dom", url], capture_output=True, timeout=ENDS_WITHIN_S, check=False
    )
    return ended.stdout.decode("utf-8", "replace")


def scope(server: Server, options: argparse.Namespace, generator: random.Random) -> Outcome:
    """Ask every route of the guide's table with no key and with a key of each scope."""
    outcome, before = Outcome("scope"), server.rankings()
    code, table = command(server, "guide", "operating")
    rows = re.findall(r"\| `([A-Z]+) (/\S*)` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|", table)
    if code or len(rows) < 60:
        outcome.broken.append(f"the guide has a table of {len(rows)} routes: exit {code}")
    keys = {"no key": ""}
    home = ("--home", str(server.home))
    for name in ("read", "write", "admin"):
        _, told = command(server, "keys", "create", "--name", name, "--scope", name, *home)
        keys[name] = re.findall(r"ds_\w{8}_[\w-]+", told)[0]
    for method, path, *cells in rows:
        given = re.sub(r"\{[^}]*\}", "x", path)
        for (name, key), cell in zip(keys.items(), cells, strict=True):
            bearer = {"Authorization": f"Bearer {key}"} if key else {}
            status, _ = server.patient(method, given, **bearer)
            outcome.trials += 1
            opened = status not in (401, 403)
            outcome.seen["opened" if opened else "refused"] += 1
            if opened != ("✓" in cell):
                outcome.broken.append(f"{method} {path} with {name}: {status}")
    server.bearer = keys["admin"]
    if server.rankings() != before:
        outcome.broken.append("another answer after it")
    return outcome
