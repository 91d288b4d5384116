"""`TokenSpool`: tokens of documents that the live generation does not have yet, in `tokens.db` beside it.

It also has the codec, which stays the same as long as the collection has a second stage, and so says whether
it has one. Everything here is derived from the documents: a row that is missing or damaged is computed again
by the next `dsearch index`, and until then its document is ranked without a second stage. So writes are not
synced one by one, and the file is no part of a backup's truth.

Rows that a generation has are removed once it is live.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from dsearch.errors import CorruptData
from dsearch.index.tokens import DocumentTokens, TokenCodec

FILE_NAME = "tokens.db"
FORMAT = 1
_AT_A_TIME = 400  # rows of a statement

_TABLES = """
CREATE TABLE IF NOT EXISTS codec (name TEXT PRIMARY KEY, shape TEXT NOT NULL, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS tokens (
    row INTEGER PRIMARY KEY, digest BLOB NOT NULL, codes BLOB NOT NULL, spans BLOB NOT NULL
);
"""


class TokenSpool:
    """Tokens by row of the store; for many threads, one process of which writes.

    Args:
        folder: of the collection.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._codec: TokenCodec | None = None

    @property
    def codec(self) -> TokenCodec | None:
        """The projection of this collection's tokens; None if it has no second stage.

        Raises:
            CorruptData: the file is damaged.
        """
        if self._codec is None and self.path.exists():
            with self._lock, _readable(self.path):
                records = self._open().execute("SELECT name, shape, content FROM codec").fetchall()
            if records:
                self._codec = TokenCodec.of_arrays({name: _array(*rest) for name, *rest in records})
        return self._codec

    def begin(self, codec: TokenCodec) -> None:
        """Keep a codec; tokens of another one are removed."""
        with self._lock, _readable(self.path):
            connection = self._open()
            with connection:
                connection.execute("DELETE FROM tokens")
                connection.execute("DELETE FROM codec")
                connection.executemany(
                    "INSERT INTO codec VALUES (?, ?, ?)",
                    [(name, *_parts(array)) for name, array in codec.arrays().items()],
                )
            self._codec = codec

    def put(self, tokens: Mapping[int, DocumentTokens]) -> None:
        """Keep the tokens of rows, in place of those that were there."""
        values: list[tuple[int, bytes, bytes, bytes]] = []
        for row, document in tokens.items():
            codes, spans = (
                np.ascontiguousarray(document.codes).tobytes(),
                document.spans.astype("<i4").tobytes(),
            )
            values.append((int(row), _digest(codes, spans), codes, spans))
        if values:
            with self._lock, _readable(self.path):
                connection = self._open()
                with connection:
                    connection.executemany("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?)", values)

    def get(self, rows: Sequence[int] | Int64[np.ndarray, " rows"]) -> dict[int, DocumentTokens]:
        """The tokens of those of these rows that are there and undamaged."""
        codec = self.codec
        tokens: dict[int, DocumentTokens] = {}
        if codec is None:
            return tokens
        wanted = [int(row) for row in rows]
        for start in range(0, len(wanted), _AT_A_TIME):
            some = wanted[start : start + _AT_A_TIME]
            marks = ",".join("?" * len(some))
            with self._lock, _readable(self.path):
                records = (
                    self._open()
                    .execute(f"SELECT row, digest, codes, spans FROM tokens WHERE row IN ({marks})", some)
                    .fetchall()
                )
            for row, digest, codes, spans in records:
                if digest == _digest(codes, spans) and len(codes) * 8 == len(spans) * codec.width:
                    tokens[row] = DocumentTokens(
                        np.frombuffer(codes, np.uint8).reshape(-1, codec.width),
                        np.frombuffer(spans, "<i4").reshape(-1, 2).astype(np.int32),
                    )
        return tokens

    def forget(self, rows: Iterable[int]) -> None:
        """Remove rows."""
        if self.codec is None:
            return
        with self._lock, _readable(self.path):
            connection = self._open()
            with connection:
                connection.executemany("DELETE FROM tokens WHERE row = ?", [(int(row),) for row in rows])

    def rows(self) -> Int64[np.ndarray, " rows"]:
        """Every row that is there, ascending."""
        if self.codec is None:
            return np.zeros(0, np.int64)
        with self._lock, _readable(self.path):
            records = self._open().execute("SELECT row FROM tokens ORDER BY row").fetchall()
        return np.array([row for (row,) in records], np.int64)

    def close(self) -> None:
        """Close the file; what is used afterwards opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self.path, check_same_thread=False, timeout=60)
            try:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, FORMAT):
                    raise CorruptData(
                        f"{self.path}: format {version}; this release reads {FORMAT}: move the file away and "
                        "run dsearch index --second-stage"
                    )
                if version == 0:
                    connection.executescript(_TABLES)
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                    connection.commit()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Turn errors of SQLite about a damaged file into ours."""
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise CorruptData(
            f"{path}: {error}; it is derived data: move it away and run dsearch index --second-stage"
        ) from error


def _digest(codes: bytes, spans: bytes) -> bytes:
    return sha256(len(codes).to_bytes(8, "little") + codes + spans).digest()


def _parts(array: np.ndarray) -> tuple[str, bytes]:
    return f"{array.dtype.str} {','.join(map(str, array.shape))}", np.ascontiguousarray(array).tobytes()


def _array(shape: str, content: bytes) -> np.ndarray:
    kind, _, sizes = shape.partition(" ")
    try:
        if kind not in ("<f4", "<i8"):
            raise ValueError(f"type {kind}")
        return np.frombuffer(content, kind).reshape([int(size) for size in sizes.split(",")]).copy()
    except ValueError as error:
        raise CorruptData(f"the projection of token states cannot be read ({error})") from error
