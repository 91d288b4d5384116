"""Ctrl-C as a signal to a real process: exit code 130, a line that says what stands, and nothing is lost."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cli import interrupted_command
from support.cli.terminal import Terminal
from support.patience import LATEST_S
from support.warm.processes import warm_start

from dsearch.cli.grouped_help import READING, STANDS, go_on_with, interruption_line
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.training.judging import write_opinions
from dsearch.types import Document

# Ends in another way than the rest, or has most to lose; all of them run nightly.
ALWAYS = ("search", "collections", "index", "tune", "train", "migrate", "refresh", "backup", "export")
PROGRAM = interrupted_command.__file__
Interrupt = Callable[..., list[str]]

READ, CHANGED = "nothing was changed", "what it changes was changed whole or not at all"
READS = {
    "evaluate -c t --data {beir}": "dsearch.engine.evaluate:make_run",
    "compare v0 v0 -c t --data {beir}": "dsearch.engine.evaluate:make_run",
    "search answer1 -c t": "dsearch.engine.collection:Collection.search",
    "attend answer1 -c t": "dsearch.engine.search.gradients:attention_parts",
    "verify t": "dsearch.engine.engine:verify_collection",
    "collections": "dsearch.threads:let_waiting_threads_sleep",  # before the commands are known
}
WRITES = {
    "index {beir}/more.jsonl -c t": "support.fakes:HashingEncoder.encode_documents",
    "tune -c t --data {beir}": "dsearch.training.tune:_values",
    "train -c t --data {beir} --epochs 3 --no-tune": "dsearch.training.loop.loop:_Run._one_step",
    "migrate -c t --encoder other": "support.fakes:HashingEncoder.encode_documents",
    "refresh -c t": "dsearch.engine.rebuild:Rebuilder.build",
    "compact -c t": "dsearch.engine.maintenance.compact:folder_bytes",
    "purge -c t": "dsearch.engine.maintenance.compact:models_holding_deleted",
    "backup {beir}/saved -c t": "dsearch.store.folders:sync_all",
    "restore {beir}/kept --home {beir}/elsewhere": "dsearch.store.folders:sync_all",
    "recover t": "dsearch.engine.engine:accept_loss",
    "export -c t -o {beir}/t.jsonl": "dsearch.store.store:Store.export",
    "run -c t --queries {beir}/queries.jsonl --out {beir}/t.run": "dsearch.engine.evaluate:make_run",
    "judgements import {beir} -c t": "dsearch.training.judging:write_opinions",
    "judgements export {beir}/judged.csv -c t": "dsearch.training.judging:own_judgements",
    "demo": "dsearch.corpus:python_corpus",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, its data and a backup, made once."""
    folder = tmp_path_factory.mktemp("template")
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    documents = [Document(f"d{i}", f"answer{i % 20} filler{i}", f"thing{i}") for i in range(60)]
    rows = "".join(f'{{"_id": "q{i}", "text": "question{i % 20} thing{i}"}}\n' for i in range(40))
    (data / "queries.jsonl").write_text(rows)
    for split in ("train", "test"):
        rows = "".join(f"q{i}\td{i}\t1\n" for i in range(40))
        (data / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    (data / "more.jsonl").write_text('{"id": "more", "text": "more answers"}\n')
    with SearchEngine(folder / "home", encoder=interrupted_command.encoder_of) as engine:
        collection = engine.collection_or_new("t")
        collection.ingest(documents)
        write_opinions(collection, {"q": "question1"}, {"q": {"d1": 3.0}}, "terminal")
        engine.backup("t", data / "kept")
    return folder


@pytest.fixture
def beir(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Encoder, "load", interrupted_command.encoder_of)
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path / "data"


@pytest.fixture
def interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "home"))

    def start(arguments: list[str], place: str, until: str = "here") -> list[str]:
        process = warm_start()(
            [sys.executable, PROGRAM, place, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if until in line:
                process.send_signal(signal.SIGINT)
                break
        lines += process.stderr
        assert process.wait(LATEST_S) == 130, "".join(lines)
        assert not any("Traceback" in line for line in lines), "".join(lines)
        return lines

    return start


def _marked(command: str) -> Any:
    return pytest.param(command, marks=() if command.split()[0] in ALWAYS else pytest.mark.nightly)


@pytest.mark.parametrize("command", [_marked(command) for command in (*READS, *WRITES)])
def test_ctrl_c_tells_what_stands_and_the_command_can_be_run_again(
    interrupt: Interrupt, dsearch: Terminal, beir: Path, command: str
) -> None:
    arguments = shlex.split(command.format(beir=beir))
    lines = interrupt(arguments, {**READS, **WRITES}[command])
    name = " ".join(arguments[:2]) if arguments[0] == "judgements" else arguments[0]
    stands, again = STANDS.get(name, READ if name in READING else CHANGED), list(arguments)
    if name == "train":
        stands, again = f"{stands}, and the run's checkpoints stay", [*arguments, "--resume"]
    assert (
        lines[-1] == f"dsearch: interrupted; {stands}; to go on, run it again: dsearch {shlex.join(again)}\n"
    )
    assert dsearch("verify", "t")[0] == 0
    assert not (beir / "saved").exists()
    if command in WRITES and name != "demo":
        code, _, err = dsearch(*again)
        assert code in (0, 3), err


@pytest.mark.parametrize("given", [(), ("--resume",)])
def test_an_option_that_goes_on_stands_in_the_command_once(given: tuple[str, ...]) -> None:
    try:
        go_on_with("--resume")
        line = interruption_line(["train", "-c", "t", *given])
    finally:
        go_on_with()
    assert line.endswith("run it again: dsearch train -c t --resume")


def test_what_has_no_end_of_its_own_ends_by_it(interrupt: Interrupt, dsearch: Terminal, beir: Path) -> None:
    pytest.importorskip("watchfiles")
    notes = beir / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("a river")
    lines = interrupt(["watch", str(notes), "-c", "notes"], "time:gmtime", until=f"watching {notes}")
    assert lines[-1].startswith(f"dsearch: interrupted; {STANDS['watch']}; to go on, run it again: ")
    assert dsearch("show", "a.txt", "-c", "notes")[0] == 0
