"""`Mirror`: a collection as the image of folders: ids of their documents, and those that are gone.

    mirror = Mirror()
    documents = read_sources(["notes"], mirror=mirror)   # read as they are consumed
    mirror.learn(collection.store.export(FROM_FOLDERS))
    collection.ingest(documents, obsolete=lambda: mirror.obsolete(problems))

A document keeps its id as long as its file has its place, and when the file is renamed or moved without a
change of its text. A new document's id is its path in the folder, as far as no other file has it; otherwise
the folder's name stands before it, then that of the folder above, and so on. Records of equal content without
an id of their own are numbered.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count

from dsearch.corpus.files import FIELD, RECORD, Key, key_of
from dsearch.corpus.formats.lines import Problems
from dsearch.corpus.records import ContentNumbers, content_id_in, has_content_id
from dsearch.types import Document

FROM_FOLDERS = {FIELD: {"exists": True}}
"""Filter of the documents that came from folders."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A document of the collection that came from a folder."""

    id: str
    root: str
    key: Key
    digest: bytes

    @property
    def path(self) -> str:
        return self.key[0]

    def may_be_among(self, skipped: set[str]) -> bool:
        """True for a record with one of these ids, or with this content."""
        record = self.key[1].removeprefix(RECORD)
        return not skipped.isdisjoint((record, content_id_in(record)))


class Mirror:
    """Documents of one run, compared with those that a collection has.

    Attributes:
        recorded: number of documents that came from the folders of this run before it.
        moved: number of documents that kept their id though their file has another path.
        qualified: ids that carry the names of folders, since another file has the plain one.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.moved = 0
        self.qualified: list[str] = []
        self._folders: list[str] = []  # read as a whole
        self._by_key: dict[Key, _Stored] = {}
        self._by_id: dict[str, _Stored] = {}
        self._roots: set[str] = set()
        self._gone: dict[bytes, list[_Stored]] = {}
        self._present: set[str] = set()  # roots that are folders
        self._claimed: set[str] = set()
        self._numbers = ContentNumbers()

    # ---- before reading

    def learn(self, documents: Iterable[Document]) -> None:
        """Take note of the collection's documents; those that came from no folder are not needed."""
        for document in documents:
            origin = key_of(document.metadata)
            if origin is None:
                continue
            stored = _Stored(document.id, *origin, _digest(document))
            self._by_id[document.id] = self._by_key[stored.key] = stored
            self._roots.add(stored.root)
        self._present = {root for root in self._roots if os.path.isdir(root)}
        paths = {stored.path for stored in self._by_key.values()}
        missing = {path for path in paths if not os.path.lexists(path)}
        gone: defaultdict[bytes, list[_Stored]] = defaultdict(list)
        for stored in self._by_key.values():
            if stored.path in missing:
                gone[stored.digest].append(stored)
        self._gone = dict(gone)

    # ---- while reading; called by `read_sources`

    def root_of(self, folder: str) -> str:
        """Return the innermost folder at or around this one that was indexed before; else this one."""
        around = [root for root in self._roots if _is_below(folder, root)]
        return max(around, key=len, default=folder)

    def covers(self, folder: str) -> bool:
        """True if documents of this folder, or of one around it, were indexed as a folder's before."""
        return any(_is_below(folder, root) for root in self._roots)

    def enter(self, folder: str) -> None:
        """Take note that a folder is read as a whole; its documents that do not appear are obsolete."""
        self._folders.append(folder)

    def identify(self, document: Document) -> Document:
        """Give a document that comes from a folder its id in the collection."""
        origin = key_of(document.metadata)
        if origin is None:
            return document
        root, key = origin
        id = self._id_of(document, root, key)
        self._claimed.add(id)
        return document if id == document.id else replace(document, id=id)

    def _id_of(self, document: Document, root: str, key: Key) -> str:
        stored, by_content = self._by_key.get(key), has_content_id(document)
        if stored is not None and not (by_content and stored.id in self._claimed):
            return stored.id
        moved = self._moved(document, key)
        if moved is not None:
            self.moved += 1
            return moved.id
        if by_content:
            taken = partial(self._is_taken, root)
            return self._numbers.free(document.id, taken) if taken(document.id) else document.id
        for id in _names(document, root, key):
            if self._is_free(id, root, document):
                if id != document.id:
                    self.qualified.append(id)
                return id
        raise AssertionError("names never end")

    def _moved(self, document: Document, key: Key) -> _Stored | None:
        """A document of the same text whose file is gone, or of the same id from a folder that is gone."""
        digest = _digest(document)
        equal = [
            stored
            for stored in self._gone.get(digest, ())
            if stored.id not in self._claimed and self._may_move(stored)
        ]
        if equal:
            name = os.path.basename(key[0])
            return next((stored for stored in equal if os.path.basename(stored.path) == name), equal[0])
        same = self._by_id.get(document.id)
        if same is None or same.id in self._claimed or same.root in self._present:
            return None
        return same if not os.path.lexists(same.path) else None

    def _may_move(self, stored: _Stored) -> bool:
        """True if its absence is known: its folder is read in this run, or is no longer there."""
        return self._is_read(stored) or stored.root not in self._present

    def _is_free(self, id: str, root: str, document: Document) -> bool:
        stored = self._by_id.get(id)
        if _is_record(document) and id == document.id:
            # Of two records with one id in one folder the second is a problem, as in one file.
            return stored is None or stored.root == root
        return stored is None and id not in self._claimed

    def _is_taken(self, root: str, id: str) -> bool:
        """True for the id of another document with equal content, unless that is gone from a read folder."""
        stored = self._by_id.get(id)
        replaceable = stored is None or (stored.root == root and self._is_read(stored))
        return id in self._claimed or not replaceable

    # ---- after reading

    def obsolete(self, problems: Problems | None = None) -> list[str]:
        """Ids of the documents that came from the folders of this run and did not appear in it, sorted.

        Empty if no document of these folders appeared at all: an empty folder may be a disk that is not
        mounted. A file or folder that was not read to its end keeps its documents; a skipped record keeps
        the documents whose id it may have.

        Args:
            problems: of reading them.
        """
        own = [stored for stored in self._by_key.values() if self._is_read(stored)]
        self.recorded = len(own)
        if not self._claimed:
            return []
        unread: set[str] = set()
        skipped: defaultdict[str, set[str]] = defaultdict(set)
        if problems is not None:
            unread.update(place for path in problems.sources for place in _places(path))
            for path, ids in problems.skipped.items():
                for place in _places(path):
                    skipped[place] |= ids
        return sorted(
            stored.id
            for stored in own
            if stored.id not in self._claimed
            and not any(_is_below(stored.path, path) for path in unread)
            and not (stored.path in skipped and stored.may_be_among(skipped[stored.path]))
        )

    def elsewhere(self) -> dict[str, int]:
        """Number of documents by folder, for folders that are no longer there."""
        counts: dict[str, int] = {}
        for stored in self._by_key.values():
            if stored.root not in self._present and stored.id not in self._claimed:
                counts[stored.root] = counts.get(stored.root, 0) + 1
        return counts

    def _is_read(self, stored: _Stored) -> bool:
        return any(_is_below(stored.path, folder) for folder in self._folders)


def _places(path: str) -> tuple[str, str]:
    """Paths that documents of a file may have: a linked file has its place where the link is."""
    folder = os.path.realpath(os.path.dirname(path))
    return os.path.realpath(path), os.path.join(folder, os.path.basename(path))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_record(document: Document) -> bool:
    return "record" in document.metadata[FIELD]


def _names(document: Document, root: str, key: Key) -> Iterator[str]:
    """Ids for a document, from the shortest to longer ones, without end."""
    yield document.id
    name = document.id
    if _is_record(document):
        name = f"{os.path.relpath(key[0], root).replace(os.sep, '/')}#{document.id}"
    folder = root
    while folder != os.path.dirname(folder):
        name = f"{os.path.basename(folder)}/{name}"
        yield name
        folder = os.path.dirname(folder)
    for number in count(2):
        yield f"{name} ({number})"


def _digest(document: Document) -> bytes:
    return blake2b(document.text.encode("utf-8", "replace"), digest_size=16).digest()
