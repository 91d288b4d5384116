"""Generations: what is built is what is opened, and nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from support.index import rewrite_manifest, stored_keys
from support.paths import ROOT

from dsearch.errors import Conflict, CorruptData, InvalidRequest, UnsupportedFormat
from dsearch.index import (
    DENSE_KINDS,
    DenseIndex,
    Generation,
    KeywordIndex,
    Manifest,
    manifest_schema,
    remove_unfinished,
)
from dsearch.index.durable import file_digest
from dsearch.index.keyword import tokenizer
from dsearch.index.metadata import FieldsBuilder
from dsearch.index.tokens import TokenCodec
from dsearch.types import Progress

Build = Callable[..., tuple[Path, Manifest]]
TEXTS = ["one two", "two three", "", "three three", "of the", "four"]
EMBEDDINGS = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
CODEC = TokenCodec.fit(EMBEDDINGS, dims=4, bits=8)
PROJECTION = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)


def test_opens_as_it_was_built(build: Build) -> None:
    folder, manifest = build(texts=iter(TEXTS))
    generation = Generation.open(folder)
    assert generation.manifest == manifest == Manifest.read(folder)
    assert (generation.number, len(generation), manifest.sequence) == (12, 6, 345)
    assert manifest.encoder == {"name": "test-encoder", "revision": "1", "max_tokens": 256}
    np.testing.assert_array_equal(generation.embeddings, EMBEDDINGS)
    assert not generation.embeddings.flags.writeable
    np.testing.assert_array_equal(stored_keys(generation.dense, 0, 6), EMBEDDINGS)
    assert generation.key_projection is None
    assert generation.keyword is not None
    queries = ["three", "one four"]
    np.testing.assert_array_equal(
        generation.keyword.scores(queries), KeywordIndex.build(TEXTS).scores(queries)
    )
    rows = np.array([9, 0, 1, 20, 21, -1])
    assert generation.positions_of(rows).tolist() == [4, 0, -1, 5, -1, -1]


def test_texts_that_are_cut_again_keep_their_weighting(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    built = KeywordIndex.build(TEXTS, k1=0.6, b=0.25)
    folder, _ = build(keyword=built, texts=())
    monkeypatch.setattr(tokenizer, "TOKENIZER_VERSION", tokenizer.TOKENIZER_VERSION + 1)
    generation = Generation.open(folder, texts=lambda rows: TEXTS)
    assert generation.recut
    assert generation.keyword is not None
    with pytest.raises(UnsupportedFormat, match="build the generation again"):
        Generation.open(folder)
    np.testing.assert_array_equal(generation.keyword.scores(["three"]), built.scores(["three"]))


@pytest.mark.parametrize("kind", list(DENSE_KINDS))
@pytest.mark.parametrize("count", [0, 1, 6])
def test_every_kind_and_size(build: Build, kind: str, count: int) -> None:
    rows = np.arange(count)
    folder, _ = build(rows=rows, embeddings=EMBEDDINGS[:count], texts=TEXTS[:count], dense_kind=kind)
    generation = Generation.open(folder)
    assert generation.dense.kind == kind
    assert ((generation.dense.search(EMBEDDINGS[:2], 10)[1] >= 0).sum(axis=1) == count).all()
    assert generation.positions_of(np.array([0, 99])).tolist() == [0 if count else -1, -1]
    assert generation.embeddings.shape == (count, 8)


def test_keys_are_the_projected_embeddings(build: Build) -> None:
    folder, manifest = build(key_projection=PROJECTION)
    generation = Generation.open(folder)
    assert (manifest.encoder_dim, manifest.key_dim, generation.dense.key_dim) == (8, 5, 5)
    np.testing.assert_array_equal(generation.key_projection, PROJECTION)
    np.testing.assert_allclose(
        stored_keys(generation.dense, 0, 6), EMBEDDINGS @ PROJECTION.T, rtol=1e-5, atol=1e-6
    )


def test_the_identity_is_not_stored(build: Build) -> None:
    folder, manifest = build(key_projection=np.eye(8))
    assert Generation.open(folder).key_projection is None
    assert "key_projection.npy" not in manifest.files


def test_without_keywords_texts_are_not_read(build: Build) -> None:
    folder, manifest = build(keyword=False, texts=())
    assert Generation.open(folder).keyword is None
    assert manifest.keyword is None


def test_progress_is_told(build: Build) -> None:
    told: list[Progress] = []
    build(on_progress=told.append)
    last = {progress.stage: (progress.done, progress.total) for progress in told}
    assert list(last) == ["embeddings", "keys", "keyword", "digests"]
    assert all(done == total for done, total in last.values())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"texts": TEXTS[:5]}, InvalidRequest, "^5 texts for 6 rows; give one per row"),
        ({"embeddings": EMBEDDINGS * np.nan}, InvalidRequest, "NaN or infinity in rows 0 to 5"),
        ({"dense_kind": "Nope"}, InvalidRequest, "dense kind 'Nope'; use one of"),
        ({"number": 0}, InvalidRequest, "number=0"),
        ({"tokens": (CODEC, [None] * 5)}, InvalidRequest, "tokens of 5 documents for 6 rows; give all"),
        ({"fields": FieldsBuilder()}, InvalidRequest, "metadata of 0 documents for 6 rows; give all"),
    ],
)
def test_a_failed_build_leaves_nothing(
    build: Build, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(**changes)
    assert list((tmp_path / "generations").glob("*") if (tmp_path / "generations").exists() else []) == []


def test_a_generation_is_never_overwritten(build: Build) -> None:
    folder, manifest = build()
    with pytest.raises(Conflict, match="a generation is never changed: build the next number"):
        build()
    assert Generation.open(folder).manifest == manifest


def all_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def test_a_flipped_bit_in_any_file_is_refused(build: Build) -> None:
    folder, manifest = build(key_projection=PROJECTION)
    assert {path.relative_to(folder).as_posix() for path in all_files(folder)} == {
        *manifest.files,
        "manifest.json",
    }
    rng = np.random.default_rng(5)
    for path in all_files(folder):
        whole = path.read_bytes()
        for at in {0, len(whole) - 1, *rng.integers(0, len(whole), 12).tolist()}:
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            with pytest.raises(CorruptData, match=f"{path.name}.*build the generation again"):
                Generation.open(folder)
        for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
            path.write_bytes(damaged)
            with pytest.raises(CorruptData, match=path.name):
                Generation.open(folder)
        path.write_bytes(whole)
    Generation.open(folder)


def test_no_byte_of_the_manifest_is_idle(build: Build) -> None:
    folder, _ = build()
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        with pytest.raises(CorruptData, match=r"manifest\.json"):
            Manifest.read(folder)


def test_an_exchanged_folder_is_refused(build: Build) -> None:
    folder, manifest = build()
    assert Generation.open(folder, digest=manifest.digest).manifest.digest == manifest.digest
    other, _ = build(folder.parent / "000013", sequence=346)
    with pytest.raises(CorruptData, match="of another generation than the store registered"):
        Generation.open(other, digest=manifest.digest)


def test_the_check_in_the_description_works(build: Build) -> None:
    folder, manifest = build()
    text = (ROOT / "index" / "README.md").read_text("utf-8")
    script = text.split("<<'EOF'\n")[1].split("    EOF")[0]

    def run() -> list[str]:
        command = [sys.executable, "-c", textwrap.dedent(script), str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert sorted(run()) == sorted(f"{name} True" for name in ("manifest.json", *manifest.files))
    with (folder / "rows.npy").open("ab") as file:
        file.write(b"x")
    assert "rows.npy False" in run()


@pytest.mark.parametrize(
    "name",
    ["../outside.npy", "/etc/passwd", "keyword/../../outside.npy", "a/b/c.npy", "..", "x\\y.npy", "c:x.npy"],
)
def test_paths_that_leave_the_folder_are_refused(build: Build, name: str) -> None:
    folder, manifest = build()
    shutil.copy(folder / "rows.npy", folder.parent / "outside.npy")
    rewrite_manifest(folder, files=manifest.files | {name: manifest.files["rows.npy"]})
    with pytest.raises(CorruptData, match="does not match"):
        Generation.open(folder)


def test_whole_files_that_do_not_belong_together_are_refused(build: Build, tmp_path: Path) -> None:
    folder, manifest = build()
    for changes, name in (
        ({"rows": 7}, r"rows\.npy"),
        ({"encoder_dim": 9}, r"embeddings\.npy"),
        ({"key_dim": 5}, r"keys\.faiss"),
        ({"keyword": {**(manifest.keyword or {}), "k1": 1.25}}, "keyword"),
    ):
        rewrite_manifest(folder, **changes)
        with pytest.raises(CorruptData, match=f"{name}: does not fit the manifest"):
            Generation.open(folder)
        (folder / "manifest.json").write_bytes(manifest.to_bytes())


def test_an_index_of_fewer_keys_than_embeddings_is_refused(build: Build) -> None:
    folder, manifest = build()
    path = folder / "keys.faiss"
    DenseIndex.build(EMBEDDINGS[:5]).save(path)
    size, sha256 = file_digest(path)
    rewrite_manifest(folder, files=manifest.files | {path.name: {"bytes": size, "sha256": sha256}})
    with pytest.raises(CorruptData, match=r"keys\.faiss: does not fit the manifest"):
        Generation.open(folder)


def test_what_was_tuned_twice_is_still_of_the_generation_that_was_opened(build: Build) -> None:
    """The lease of its folder is that one's."""
    rows = np.arange(2000)
    folder, _ = build(
        rows=rows, embeddings=np.random.default_rng(0).random((2000, 8)), texts=["a"] * 2000, dense_kind="IVF"
    )
    opened = Generation.open(folder)
    twice = opened.searched_with({"nprobe": 2}).searched_with({"nprobe": 3})
    assert twice.original is opened
    assert twice.dense.parameters == {"nprobe": 3}


def test_the_schema_is_a_schema_and_is_strict(build: Build) -> None:
    folder, _ = build()
    schema = manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    content = json.loads((folder / "manifest.json").read_text())
    jsonschema.validate(content, schema)
    assert set(schema["required"]) == set(schema["properties"]) - {"passages"} == set(content)
    assert all("description" in field or name == "dense" for name, field in schema["properties"].items())
    for changes in ({"extra": 1}, {"rows": -1}, {"created_at": "yesterday"}, {"files": {}}, {"number": 1.5}):
        rewrite_manifest(folder, **changes)
        with pytest.raises(CorruptData, match=r"manifest\.json: \$"):
            Generation.open(folder)
        (folder / "manifest.json").write_text(
            json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        )


def test_everything_is_synced_before_it_is_visible(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def recording_sync(descriptor: int) -> None:
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def recording_rename(source: Path, target: Path) -> None:
        done.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_sync)
    monkeypatch.setattr(os, "rename", recording_rename)
    folder, manifest = build()
    renamed = done.index(("rename", str(folder)))
    unfinished = Path(done[renamed - 1][1])
    assert unfinished.name.startswith(".000012.building-")
    synced = [Path(path).relative_to(unfinished).as_posix() for _, path in done[:renamed]]
    assert set(synced) == {*manifest.files, "manifest.json", "keyword", "."}
    assert synced.index("keyword/parts.npy") < synced.index("keyword") < synced.index(".")
    # The folder of generations may be as new as what it holds: its name is synced, too.
    assert done[renamed + 1 :] == [("sync", str(folder.parent)), ("sync", str(folder.parent.parent))]


def test_what_a_crash_left_is_cleared_and_nothing_else(build: Build) -> None:
    folder, _ = build()
    left = folder.parent / ".000013.building-1-abc"
    left.mkdir()
    (left / "rows.npy").write_bytes(b"half")
    assert remove_unfinished(folder.parent) == [left.name]
    assert [path.name for path in folder.parent.iterdir()] == ["000012"]
    Generation.open(folder)
    assert remove_unfinished(folder.parent / "absent") == []


def test_what_a_builder_still_holds_is_cleared_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was ended may be exiting, so that its files come and go while they are deleted."""
    left = [tmp_path / f".00001{number}.building-1-abc" for number in (3, 4)]
    for folder in left:
        folder.mkdir()
        (folder / "rows.npy").write_bytes(b"half")
    names = [folder.name for folder in left]

    def refuse(path: object, **how: object) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as busy:
        busy.setattr(os, "unlink", refuse)
        assert remove_unfinished(tmp_path) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert remove_unfinished(tmp_path) == names
    assert list(tmp_path.iterdir()) == []
