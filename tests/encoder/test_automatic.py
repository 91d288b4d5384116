"""The back end `auto`: exported by other processes, taken over while searches run; torch where that fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_encoder import WORDS, write_tiny_encoder
from support.warm.processes import warm_start

from dsearch.encoder import (
    AutomaticEncoder,
    Backend,
    Encoder,
    EncoderSource,
    automatic,
    encoder_in_use,
    load,
    load_encoder,
)
from dsearch.encoder.automatic import Preparation
from dsearch.encoder.backends import openvino_installed, openvino_knows
from dsearch.encoder.compiled import CompiledEncoder, Exporting
from dsearch.encoder.load import encoder_cache, machine_cache
from dsearch.encoder.weights import find_weights
from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.types import Document

if not openvino_installed():
    pytest.skip("needs the extra openvino", allow_module_level=True)

TEXTS = ["question 1 red", "", "answer 7", " ".join(WORDS * 4), "apple bread honey honey", "nobody knows"]
WAIT_S = 300.0  # exports run at low priority


class Machine:
    """A tiny encoder, and the cache of a machine."""

    def __init__(self, encoder: Path, cache: Path):
        self.encoder, self.cache = str(encoder), cache

    def load(self, **options: Any) -> Any:
        return load_encoder(self.encoder, backend="auto", cache=self.cache, **options)

    def in_use(self) -> Any:
        return EncoderSource(self.encoder, self.cache).in_use()

    def exports(self) -> list[Path]:
        return [one for one in self.cache.glob("model-openvino-*") if one.is_dir()]

    def unfinished(self) -> list[Path]:
        return list(self.cache.glob(".model-openvino-*"))

    def preparation(self, heard: list[Any]) -> Preparation:
        request = Exporting(
            self.encoder, find_weights(self.encoder), None, self.cache, lambda: Encoder.load(self.encoder)
        )
        return Preparation(request, None, 32, heard.append, heard.append)


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Processes that export start in milliseconds."""

    def start(command: list[str], *, start_new_session: bool, **options: Any) -> Any:
        assert start_new_session  # Ctrl-C is not for them
        return warm_start()(command, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
        yield


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, warm: None) -> Machine:
    """One on which an export was killed, then two processes exported at once."""
    folder = tmp_path_factory.mktemp("machine")
    machine = Machine(write_tiny_encoder(folder), folder / "cache")
    killed: list[Any] = []
    first = machine.preparation(killed)
    first.start()
    _until(lambda: bool(machine.unfinished()))
    os.kill(first._process.pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
    assert first.wait(WAIT_S)
    assert killed == ["the process that exports ended with status -9"]
    assert not machine.exports()
    assert machine.in_use().runs_by == "torch float32"

    results: list[Any] = []
    several = [machine.preparation(results) for _ in range(2)]
    for one in several:
        one.start()
    assert all(one.wait(WAIT_S) for one in several)
    assert [type(one) for one in results] == [CompiledEncoder, CompiledEncoder], results
    return machine


def test_killed_and_simultaneous_exports_leave_one_whole_export(machine: Machine) -> None:
    assert len(machine.exports()) == 1
    assert machine.unfinished() == []


def test_it_runs_by_the_export_and_is_torch_to_collections(machine: Machine) -> None:
    exact, fast = Encoder.load(machine.encoder), machine.load()
    assert isinstance(fast, AutomaticEncoder)
    dtype = "bfloat16" if openvino_knows("BF16") else "float32"
    assert fast.runs_by == Backend("openvino", dtype)
    assert machine.in_use().runs_by == f"openvino {dtype}"
    assert fast.identity == exact.identity
    for encode in ("encode_queries", "encode_documents"):
        near = (getattr(exact, encode)(TEXTS) * getattr(fast, encode)(TEXTS)).sum(1)
        assert near.min() >= 0.9999
    assert fast.token_counts(TEXTS) == exact.token_counts(TEXTS)
    assert [len(tokens) + 2 for tokens in fast.word_tokens(TEXTS) or ()] == exact.token_counts(TEXTS)
    assert fast.embed(TEXTS[:2], "query").requires_grad


def test_token_ids_are_those_of_torch(machine: Machine) -> None:
    exact, fast = Encoder.load(machine.encoder).vocabulary, machine.load().vocabulary
    assert (fast.first, fast.last, fast.size) == (exact.first, exact.last, exact.size)
    ids = [exact.first or 0, 7, 9, 12, exact.last or 0]
    assert fast.decode(ids) == exact.decode(ids) != ""


def test_a_takeover_while_searches_run_changes_no_answer(machine: Machine, tmp_path: Path) -> None:
    fast = machine.load(dtype="float32")  # random weights have near ties, which bfloat16 decides otherwise
    exact = Encoder.load(machine.encoder)
    changing = AutomaticEncoder(exact)
    documents = [Document(f"d{n}", f"{WORDS[n % 13]} {WORDS[n * 5 % 13]} {n % 60}") for n in range(60)]
    queries = [f"{word} {number}" for number, word in enumerate(WORDS)]
    with SearchEngine(tmp_path / "home", encoder=lambda: changing) as engine:
        collection = engine.create("papers")
        collection.ingest(documents[:30])

        def answers() -> list[list[str]]:
            return [[hit.id for hit in collection.search(query, limit=10).hits] for query in queries]

        before, stop = answers(), threading.Event()
        during: list[list[list[str]]] = []

        def search() -> None:
            while not stop.is_set():
                during.append(answers())

        threads = [threading.Thread(target=search) for _ in range(2)]
        for one in threads:
            one.start()
        _until(lambda: len(during) >= 2)
        changing.take_over(fast._current)
        reached = len(during)
        _until(lambda: len(during) >= reached + 4)
        stop.set()
        for one in threads:
            one.join()
        assert all(answer == before for answer in during)
        assert encoder_in_use(changing) == collection_encoder(collection)
        collection.ingest(documents[30:])  # the other half by the export
        assert collection.store.encoder["backend"] == "torch"
        whole = answers()
    for name, encoder in (("torch", exact), ("exported", fast)):  # it opens everywhere
        with SearchEngine(
            tmp_path / "home", readonly=True, encoder=lambda encoder=encoder: encoder
        ) as engine:
            collection = engine.collection("papers")
            assert [[hit.id for hit in collection.search(query).hits] for query in queries] == whole, name


def test_what_does_not_agree_is_refused_and_says_why(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _copied(machine, tmp_path)
    _agreement(other, float32=0.9998, bfloat16=0.9998)
    monkeypatch.setattr(automatic, "subprocess", None)  # nor is it tried again
    refused = other.load()
    assert refused.runs_by == Backend("torch", "float32")
    assert "least cosine of openvino with torch is 0.99980, and 0.9999" in str(refused.note)
    assert other.in_use() == encoder_in_use(refused)


def test_bfloat16_needs_agreement_and_a_processor(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _copied(machine, tmp_path)
    monkeypatch.setattr(automatic, "best_dtype", lambda name: "bfloat16")
    _agreement(other, float32=1.0, bfloat16=0.9999)
    assert other.in_use().runs_by == "openvino bfloat16"
    _agreement(other, float32=1.0, bfloat16=0.99989)
    assert other.in_use().runs_by == "openvino float32"
    _agreement(other, float32=1.0, bfloat16=1.0)
    monkeypatch.setattr(automatic, "best_dtype", lambda name: "float32")
    assert other.in_use().runs_by == "openvino float32"


def test_a_cache_that_cannot_be_written_leaves_torch_and_one_line(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    other = Machine(Path(machine.encoder), tmp_path / "file" / "cache")
    encoder = other.load()
    assert encoder.runs_by == Backend("torch", "float32")
    assert encoder.encode_queries(TEXTS).shape == (len(TEXTS), 16)
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("dsearch")]
    assert line.startswith("the encoder stays with torch: no export can be kept")
    assert "DSEARCH_CACHE" in line


def test_a_model_that_cannot_be_exported_is_tried_once(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Machine(Path(machine.encoder), tmp_path)

    def refuse(*arguments: object) -> None:
        raise InvalidRequest("no fast tokenizer")

    with monkeypatch.context() as patch:
        patch.setattr(load, "ensure_exported", refuse)
        load.prepare(other.encoder, str(other.cache))
    assert json.loads(capsys.readouterr().out) == {"problem": "no fast tokenizer"}
    monkeypatch.setattr(automatic, "subprocess", None)
    assert other.load().note == other.in_use().note == "no fast tokenizer"


def test_a_full_disk_is_told_and_tried_again(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(load, "ensure_exported", full)
    load.prepare(machine.encoder, str(tmp_path))
    assert "No space left" in json.loads(capsys.readouterr().out)["problem"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["model.bin", "export.json"])
def test_a_damaged_export_is_replaced_in_the_background(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    other = _copied(machine, tmp_path)
    [folder] = other.exports()
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:-9] + b"!" + content[-8:])
    commands: list[str] = []

    def start(command: list[str], **options: Any) -> Any:
        commands.append(command[-1])
        raise OSError("no process")

    monkeypatch.setattr(automatic, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    encoder = other.load()
    assert encoder.runs_by == Backend("torch", "float32")
    [code] = commands
    assert ("if True or not" in code) == (file == "model.bin")


def test_a_library_that_does_not_start_leaves_torch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*arguments: object, **options: object) -> None:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(automatic, "cached_encoder", crash)
    encoder = machine.load()
    assert encoder.runs_by == Backend("torch", "float32")
    assert encoder.note == "RuntimeError: illegal instruction"


def test_a_new_process_loads_no_model_of_torch(machine: Machine) -> None:
    program = """
import sys
from pathlib import Path
from dsearch.encoder import load_encoder
encoder = load_encoder(sys.argv[1], backend="auto", cache=Path(sys.argv[2]))
encoder.encode_queries(["red"]), encoder.token_counts(["red"]), encoder.vocabulary
encoder.encode_tokens(["red"], "query")
names = ("torch", "sentence_transformers", "transformers")
print([name for name in names if name in sys.modules])
"""
    command = [sys.executable, "-c", program, machine.encoder, str(machine.cache)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout
    assert printed.strip() == "[]"


def test_the_cache_is_one_for_all_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    one = tmp_path / "caches" / "dsearch" / "encoders"
    assert machine_cache() == encoder_cache(tmp_path / "a") == encoder_cache(tmp_path / "b") == one
    assert not one.exists()
    assert encoder_cache(tmp_path, tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert encoder_cache(tmp_path) == tmp_path / ".encoders"  # of a user that has no folder for caches
    one.mkdir(parents=True)
    assert encoder_cache(tmp_path) == one  # which can be read


def collection_encoder(collection: Any) -> Any:
    in_use = collection.encoder_in_use()
    return type(encoder_in_use(collection.encoder))(**in_use)


def _copied(machine: Machine, folder: Path) -> Machine:
    shutil.copytree(machine.cache, folder / "cache")
    return Machine(Path(machine.encoder), folder / "cache")


def _agreement(machine: Machine, **least: float) -> None:
    [folder] = machine.exports()
    record = json.loads((folder / "export.json").read_text())
    record["agreement"] = {name: {"least": one, "mean": one, "agrees": True} for name, one in least.items()}
    (folder / "export.json").write_text(json.dumps(record))


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)
