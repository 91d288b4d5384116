"""Models on disk: `models/v3/head.safetensors` and `model.json`, written once and never changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from dsearch.attention.head import Head
from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.index.durable import file_digest, publish_folder
from dsearch.store import Store

UNTRAINED = "v0"
FORMAT = 1
HEAD_NAME = "head.safetensors"
RECORD_NAME = "model.json"


def save_model(store: Store, head: Head, record: dict[str, Any], *, parent: str) -> str:
    """Write a trained head durably, register it, and return its version. It is not live yet.

    `record` is whatever should be known of it later: scores, data, seed.
    """
    version = store.next_model_version()
    folder = store.path / "models" / version
    unfinished = folder.with_name(f".{version}.writing")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    (unfinished / HEAD_NAME).write_bytes(save(tensors))
    size, digest = file_digest(unfinished / HEAD_NAME)
    record = {
        **record,
        "format": FORMAT,
        "version": version,
        "parent": parent,
        "encoder": store.encoder,
        "head": head.config(),
        "files": {HEAD_NAME: {"bytes": size, "sha256": digest}},
    }
    (unfinished / RECORD_NAME).write_text(json.dumps(record, indent=1))
    publish_folder(unfinished, folder)
    store.add_model(version, parent, record)
    return version


def load_head(store: Store, version: str) -> Head:
    """The head of a version; v0 is the untrained one.

    Raises:
        ModelNotFound: no such version.
        CorruptData: the file is not what was registered.
        UnsupportedFormat: written by a release with another format.
    """
    if version == UNTRAINED:
        return Head(store.dimension).eval()
    record = store.model(version).record
    if record.get("format") != FORMAT:
        raise UnsupportedFormat(
            f"model {version} has format {record.get('format')}; this release reads {FORMAT}"
        )
    path = store.path / "models" / version / HEAD_NAME
    content = _verified(path, record["files"][HEAD_NAME]["sha256"], version)
    head = Head(**record["head"])
    head.load_state_dict(load(content))
    return head.eval()


def _verified(path: Path, sha256: str, version: str) -> bytes:
    try:
        _, digest = file_digest(path)
        content = path.read_bytes()
    except OSError as error:
        raise CorruptData(
            f"model {version}: {path} cannot be read ({error}); promote another version"
        ) from error
    if digest != sha256:
        raise CorruptData(
            f"model {version}: {path} has SHA-256 {digest}, registered was {sha256}; promote another version "
            f"with: dsearch models promote, or train again"
        )
    return content
