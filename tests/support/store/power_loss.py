"""What a power cut may leave on a disk, enumerated from a recording of what a process asked of it.

`record` runs power_writer.py under strace. `Disk` replays the calls and knows, at each moment, what was
synced and what the kernel may still hold back; `states` takes a cut after every call and draws, of all
subsets of what was held back, those with none, all, all but one and one alone, and random ones in which
writes may also be torn at a sector or leave zeros (a file's length reached the disk, its bytes did not).
`check` opens such a state as a process would after the restart.

The model is that of Pillai et al. 2014, "All File Systems Are Not Created Equal" (ALICE): fsync of a file
makes its bytes durable, fsync of a folder its names; anything else may reach the disk in any order. A rename
is one change: it has happened or not.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.store.power_writer import NAME, STEPS, Shown, generation_folder

from dsearch.index import Generation
from dsearch.store import FeedbackStore, Store

SECTOR = 512
CALLS = (
    "openat,creat,close,write,pwrite64,writev,pwritev,lseek,read,ftruncate,fsync,fdatasync,"
    "mkdir,mkdirat,rmdir,rename,renameat,renameat2,unlink,unlinkat,dup,dup2,dup3,fcntl,sendfile,copy_file_range,"
    "fallocate,link,linkat,symlink,symlinkat,truncate,mmap"
)
_LINE = re.compile(rb"^(\d+) +(.*)$")
_CALL = re.compile(rb"^(\w+)\((.*)\) += (-?\d+|\?)", re.DOTALL)


Call = tuple[str, list[bytes], int]  # name, arguments, result
Calls = list[Call]

# ---- recording


def record(home: Path, trace: Path) -> Calls:
    """Run the writer and return its calls on files, in order."""
    writer = Path(__file__).with_name("power_writer.py")
    command = ["strace", "-f", "-qq", "-xx", "-s", "10000000", "-e", f"trace={CALLS}", "-o", str(trace)]
    subprocess.run(
        [*command, sys.executable, "-B", str(writer), str(home)], check=True, stdout=subprocess.DEVNULL
    )
    return list(_calls(trace))


def _calls(trace: Path) -> Iterator[Call]:
    begun: dict[bytes, bytes] = {}
    with trace.open("rb") as lines:
        for line in lines:
            matched = _LINE.match(line)
            if matched is None:
                continue
            process, rest = matched[1], matched[2]
            if rest.endswith(b"<unfinished ...>"):
                begun[process] = rest[: -len(b"<unfinished ...>")].rstrip()
                continue
            if rest.startswith(b"<... "):
                rest = begun.pop(process, b"") + rest.split(b"resumed>", 1)[1]
            if call := _CALL.match(rest):
                result = -1 if call[3] == b"?" else int(call[3])
                yield call[1].decode(), _arguments(call[2]), result


def _arguments(text: bytes) -> list[bytes]:
    """The arguments; strings, which -xx writes in hexadecimal, as their bytes behind a quotation mark."""
    found = re.findall(rb'"((?:\\x[0-9a-f]{2})*)"|([^,"]+)', text)
    return [
        b'"' + bytes.fromhex(string.replace(b"\\x", b"").decode()) if not other.strip() else other.strip()
        for string, other in found
        if other.strip() or not other
    ]


# ---- the disk


@dataclass(eq=False)
class File:
    """Bytes as the process sees them, as they are surely on the disk, and the changes between the two."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    held: list[tuple[str, int, bytes]] = field(
        default_factory=list
    )  # ("write", offset, data) or ("cut", length, b"")

    def change(self, kind: str, at: int, data: bytes = b"") -> None:
        _apply(self.seen, kind, at, data)
        self.held.append((kind, at, data))

    def sync(self) -> None:
        self.durable, self.held = bytes(self.seen), []


@dataclass(eq=False)
class Folder:
    """Names as the process sees them, and as they are surely on the disk."""

    seen: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(eq=False)
class Naming:
    """One change of names that the kernel may hold back: entries set (or, with None, removed) in folders."""

    entries: list[tuple[Folder, str, File | Folder | None]]

    def on(self, folder: Folder) -> bool:
        return any(each is folder for each, _, _ in self.entries)


@dataclass(eq=False)
class Opened:
    """What a descriptor stands for; duplicated ones share it, with its offset."""

    node: File | Folder | None
    appends: bool = False
    offset: int = 0


class Disk:
    """The folder `root` and all below, replayed call by call."""

    def __init__(self, root: Path):
        self.root = str(root).rstrip("/") + "/"
        self.top = Folder()
        self.namings: list[Naming] = []
        self.log: list[str] = []
        self._changes = 0
        self._open: dict[int, Opened] = {}

    def replay(self, name: str, arguments: list[bytes], result: int) -> bool:
        """Apply a call; whether it changed what a power cut could leave."""
        if result < 0:
            return False
        before = self._changes
        getattr(self, f"_{name}", self._unknown)(arguments, result)
        return self._changes != before

    # calls that open, move and close

    def _openat(self, arguments: list[bytes], result: int) -> None:
        path = self._inside(arguments[1])
        if path is None:
            self._open[result] = Opened(None)
            return
        flags = arguments[2]
        folder, name = self._parent(path)
        node = folder.seen.get(name) if name else folder
        if node is None:
            assert b"O_CREAT" in flags, path
            node = File()
            self._name([(folder, name, node)])
        elif b"O_TRUNC" in flags and isinstance(node, File) and node.seen:
            self._change(node, "cut", 0)
        self._open[result] = Opened(node, b"O_APPEND" in flags)

    def _close(self, arguments: list[bytes], result: int) -> None:
        self._open.pop(int(arguments[0]), None)

    def _lseek(self, arguments: list[bytes], result: int) -> None:
        if opened := self._open.get(int(arguments[0])):
            opened.offset = result

    def _read(self, arguments: list[bytes], result: int) -> None:
        if opened := self._open.get(int(arguments[0])):
            opened.offset += result

    def _dup(self, arguments: list[bytes], result: int) -> None:
        self._open[result] = self._open.get(int(arguments[0]), Opened(None))

    _dup2 = _dup3 = _dup

    def _fcntl(self, arguments: list[bytes], result: int) -> None:
        if arguments[1].startswith(b"F_DUPFD"):
            self._dup(arguments, result)

    def _mmap(self, arguments: list[bytes], result: int) -> None:
        node = self._node(arguments[4]) if arguments[4].lstrip(b"-").isdigit() else None
        if isinstance(node, File) and b"PROT_WRITE" in arguments[2] and b"MAP_SHARED" in arguments[3]:
            # SQLite's index of its log: memory that it makes anew after a restart.
            assert any(node is each for each in _named(self.top, "-shm")), "a write past the system calls"

    # calls that change bytes

    def _write(self, arguments: list[bytes], result: int) -> None:
        self._written(int(arguments[0]), arguments[1][1:], result, None)

    def _pwrite64(self, arguments: list[bytes], result: int) -> None:
        self._written(int(arguments[0]), arguments[1][1:], result, int(arguments[3]))

    def _written(self, number: int, data: bytes, result: int, at: int | None) -> None:
        if number == 1:
            self.log.extend(data[:result].decode().split("\n")[:-1])
            self._changes += 1
            return
        opened = self._open.get(number)
        if opened is None or not isinstance(opened.node, File):
            return
        end = len(opened.node.seen) if opened.appends else opened.offset
        self._change(opened.node, "write", end if at is None else at, data[:result])
        if at is None:
            opened.offset = end + result

    def _change(self, node: File, kind: str, at: int, data: bytes = b"") -> None:
        node.change(kind, at, data)
        self._changes += 1

    def _ftruncate(self, arguments: list[bytes], result: int) -> None:
        if isinstance(node := self._node(arguments[0]), File):
            self._change(node, "cut", int(arguments[1]))

    def _fsync(self, arguments: list[bytes], result: int) -> None:
        node = self._node(arguments[0])
        if isinstance(node, File):
            node.sync()
        elif isinstance(node, Folder):
            for naming in [each for each in self.namings if each.on(node)]:
                self.namings.remove(naming)
                _commit(naming)
        self._changes += node is not None

    _fdatasync = _fsync

    # calls that change names

    def _mkdir(self, arguments: list[bytes], result: int) -> None:
        if (path := self._inside(arguments[0])) is not None:
            folder, name = self._parent(path)
            if name:
                self._name([(folder, name, Folder())])

    def _rmdir(self, arguments: list[bytes], result: int) -> None:
        self._unlink(arguments, result)

    def _unlink(self, arguments: list[bytes], result: int) -> None:
        if (path := self._inside(arguments[0])) is not None:
            folder, name = self._parent(path)
            self._name([(folder, name, None)])

    def _unlinkat(self, arguments: list[bytes], result: int) -> None:
        folder = self._node(arguments[0]) if arguments[0].isdigit() else None
        if isinstance(folder, Folder):
            self._name([(folder, os.fsdecode(arguments[1][1:]), None)])
        else:
            self._unlink(arguments[1:], result)

    def _rename(self, arguments: list[bytes], result: int) -> None:
        source, target = self._inside(arguments[0]), self._inside(arguments[1])
        if source is None and target is None:
            return
        assert source is not None, "a rename into the home"
        assert target is not None, "a rename out of the home"
        old, name = self._parent(source)
        new, other = self._parent(target)
        self._name([(old, name, None), (new, other, old.seen[name])])

    # within

    def _unknown(self, arguments: list[bytes], result: int) -> None:
        paths = [self._inside(each) for each in arguments if each.startswith(b'"')]
        nodes = [self._node(each) for each in arguments if each.isdigit()]
        assert not [path for path in paths if path is not None], "a call that is not modelled"
        assert not [node for node in nodes if node is not None], "a call that is not modelled"

    def _name(self, entries: list[tuple[Folder, str, File | Folder | None]]) -> None:
        for folder, name, node in entries:
            _set(folder.seen, name, node)
        self.namings.append(Naming(entries))
        self._changes += 1

    def _node(self, descriptor: bytes) -> File | Folder | None:
        opened = self._open.get(int(descriptor)) if descriptor.isdigit() else None
        return opened.node if opened else None

    def _inside(self, argument: bytes) -> str | None:
        path = os.fsdecode(argument[1:])
        return path[len(self.root) :].strip("/") if (path + "/").startswith(self.root) else None

    def _parent(self, path: str) -> tuple[Folder, str]:
        node: File | Folder = self.top
        *folders, name = path.split("/")
        for each in folders:
            assert isinstance(node, Folder)
            node = node.seen[each]
        assert isinstance(node, Folder)
        return node, name


def _apply(content: bytearray, kind: str, at: int, data: bytes) -> None:
    if kind == "cut":
        content[at:] = b"\0" * max(0, at - len(content))
    else:
        content.extend(b"\0" * (at - len(content)))
        content[at : at + len(data)] = data


def _set(names: dict[str, File | Folder], name: str, node: File | Folder | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _commit(naming: Naming) -> None:
    for folder, name, node in naming.entries:
        _set(folder.durable, name, node)


def _named(folder: Folder, ending: str) -> Iterator[File | Folder]:
    for name, node in folder.seen.items():
        if name.endswith(ending):
            yield node
        elif isinstance(node, Folder):
            yield from _named(node, ending)


# ---- states


Tree = dict[str, "bytes | Tree"]


@dataclass(frozen=True)
class Cut:
    """What one power cut left, and what had been said until then."""

    tree: Tree
    log: tuple[str, ...]


def states(calls: Calls, home: Path, *, every: int = 1, draws: int = 0, seed: int = 0) -> Iterator[Cut]:
    """Distinct states: the systematic ones and `draws` random ones after each call, or each `every`th."""
    disk, generator, known, changes = Disk(home), random.Random(seed), set[bytes](), 0
    for call in calls:
        if not disk.replay(*call):
            continue
        changes += 1
        if changes % every:
            continue
        for tree in _choices(disk, draws, generator):
            digest = hashlib.sha256(repr((tree, disk.log[-1:])).encode()).digest()
            if digest not in known:
                known.add(digest)
                yield Cut(tree, tuple(disk.log))


def _choices(disk: Disk, draws: int, generator: random.Random) -> Iterator[Tree]:
    files = [file for file in _files(disk) if file.held]
    held = [*disk.namings, *((file, change) for file in files for change in range(len(file.held)))]
    count = len(held)
    masks = [[False] * count, [True] * count]
    picked = range(count) if count <= 24 else sorted(generator.sample(range(count), 24))
    for one in picked:
        masks += [[at == one for at in range(count)], [at != one for at in range(count)]]
    for mask in masks:
        yield _tree(disk, held, mask, None)
    for _ in range(draws):
        share = generator.choice((0.2, 0.5, 0.8))
        yield _tree(disk, held, [generator.random() < share for _ in held], generator)


def _files(disk: Disk) -> list[File]:
    """Every file that has a name, or may have one."""
    found: dict[int, File] = {}

    def visit(node: File | Folder | None) -> None:
        if isinstance(node, File):
            found[id(node)] = node
        elif isinstance(node, Folder):
            for each in (*node.seen.values(), *node.durable.values()):
                visit(each)

    visit(disk.top)
    for naming in disk.namings:
        for _, _, node in naming.entries:
            visit(node)
    return list(found.values())


def _tree(disk: Disk, held: list, mask: list[bool], generator: random.Random | None) -> Tree:
    names: dict[int, dict[str, File | Folder]] = {}
    contents: dict[int, bytearray] = {}
    for change, kept in zip(held, mask, strict=True):
        if isinstance(change, Naming):
            if kept:
                for folder, name, node in change.entries:
                    _set(names.setdefault(id(folder), dict(folder.durable)), name, node)
            continue
        file, at = change
        kind, offset, data = file.held[at]
        content = contents.setdefault(id(file), bytearray(file.durable))
        if kept:
            _apply(content, kind, offset, data)
        elif generator is not None and kind == "write" and data:
            torn = generator.choice(("nothing", "zeros", "front"))
            if torn == "zeros" and offset + len(data) > len(content):
                _apply(content, "cut", offset + len(data), b"")
            elif torn == "front":
                _apply(content, kind, offset, data[: generator.randrange(0, len(data), SECTOR)])

    def grown(folder: Folder) -> Tree:
        return {
            name: grown(node) if isinstance(node, Folder) else bytes(contents.get(id(node), node.durable))
            for name, node in sorted(names.get(id(folder), folder.durable).items())
        }

    return grown(disk.top)


# ---- after the restart


def lay_out(tree: Tree, folder: Path) -> None:
    """Write a state into a folder, less the index of SQLite's log, which is memory."""
    folder.mkdir()
    for name, content in tree.items():
        if isinstance(content, dict):
            lay_out(content, folder / name)
        elif not name.endswith("-shm"):
            (folder / name).write_bytes(content)


def shown_after() -> list[Shown]:
    """What the collection shows after its creation and after each step."""
    shown = [Shown()]
    for _, change in STEPS:
        shown.append(change(shown[-1]))
    return shown


def check(cut: Cut, home: Path) -> bool:
    """Open what a cut left; whether there was a collection. AssertionError when a promise is broken."""
    tried = acknowledged = -1
    for line in cut.log:
        verb, number = line.split()
        tried, acknowledged = (int(number), acknowledged) if verb == "try" else (tried, int(number))
    shutil.rmtree(home, ignore_errors=True)
    lay_out(cut.tree, home)
    folder = home / NAME
    if not folder.exists() or not any(folder.iterdir()):
        assert acknowledged < 0, "an acknowledged collection is gone"
        return False
    allowed = shown_after()[max(acknowledged, 0) : tried + 1]
    with Store.open(folder) as store:
        texts = {document.id: document.text for document in store.list(limit=1000)}
        live = store.live_generation()
        feedback = FeedbackStore(folder)
        assert feedback.problem() is None
        clicks = frozenset(event.event_id for page in feedback.pages() for event in page.events)
        found = Shown(texts, live.number if live else 0, store.live_model(), clicks)
        assert found in allowed, f"after {cut.log[-1]}: {found}"
        assert store.verify().damage == ()
        for registered in store.generations():
            place = generation_folder(folder, registered.number)
            opened = Generation.open(place, digest=registered.manifest_digest)
            assert len(opened) == registered.rows
    return True
