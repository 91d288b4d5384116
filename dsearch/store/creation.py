"""Making a collection's folder: whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from ..errors import CollectionExists, Conflict, InvalidRequest
from .connect import connect, readable_errors
from .digest import add_facts, canonical_json
from .schema import APPLICATION_ID, FILE_NAME, Meta, create_tables
from .validate import validate_name
from .watermark import Mark, create_watermark, sync_folder

MAX_DIMENSION = 16_384


def create_collection(path: Path, meta: Meta) -> None:
    """Lay out an empty collection in folder `path` and sync it; see `Store.create` for the errors.

    It is built aside and renamed, so a kill leaves a folder whose name no collection can have (it starts with
    a dot), never half a collection.
    """
    validate_name(meta.name)
    if not 1 <= meta.dimension <= MAX_DIMENSION:
        raise InvalidRequest(f"dimension={meta.dimension}; use 1 to {MAX_DIMENSION}")
    try:
        canonical_json(meta.encoder)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the encoder's identity is not JSON ({error})") from None
    if (path / FILE_NAME).exists():
        raise CollectionExists(
            f"collection {meta.name!r} stands already; choose another name or delete it first"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Conflict(f"{path} has other files in it; choose another folder or empty that one")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".creating-{meta.name}-{secrets.token_hex(4)}")
    aside.mkdir()
    try:
        _fill(aside, meta)
        os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _fill(folder: Path, meta: Meta) -> None:
    digest = add_facts(bytes(32), meta.fact)
    with readable_errors(folder):
        connection = connect(folder, writer=True, create=True)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            create_tables(connection, meta, digest)
        finally:
            connection.close()  # the last one to close folds the write-ahead log into the database
    create_watermark(folder, Mark(0, digest))
    sync_folder(folder)
