"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

gc.disable()  # until tests are collected (support/longest.py): what is imported stays

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests/support

from dsearch.threads import set_threads

set_threads(1)  # as many tests at a time as there are cores
os.environ["DSEARCH_BACKEND"] = "torch"  # no test exports an encoder in the background unless it wants to

from support.shape_hook import install

install()  # before what it checks is imported

from support.warm.processes import SHARED, WarmSubprocess, warm_start

# Fixtures import what they need: the process that only hands out tests runs none, and does without torch.
if TYPE_CHECKING:
    from support.fakes import HashingEncoder

    from dsearch.engine import Collection, SearchEngine
    from dsearch.types import Document

pytest_plugins = ["support.sizes", "support.longest"]

FOODS = "apple bread cheese dough egg flour grape honey ice juice kale lemon mango nut oat pear"
WORDS = FOODS.split()
_WARM = WarmSubprocess(lambda *args, **more: warm_start()(*args, **more))  # started by the first that asks


def pytest_configure(config: pytest.Config) -> None:
    """Test processes beside each other share the one that forks: importing takes it seconds."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[SHARED] = tempfile.mkdtemp(prefix="warm-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True))


def pytest_itemcollected(item: pytest.Item) -> None:
    """A name with an address differs in each process, and then no test runs beside another."""
    if " at 0x" in item.nodeid:
        raise pytest.UsageError(f"{item.nodeid}: give the parameters ids")


@pytest.fixture
def encoder() -> HashingEncoder:
    from support.fakes import HashingEncoder

    return HashingEncoder()


@pytest.fixture
def engine(tmp_path: Path, encoder: HashingEncoder) -> Iterator[SearchEngine]:
    from dsearch.engine import SearchEngine

    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as opened:
        yield opened


@pytest.fixture
def documents() -> list[Document]:
    """Sixteen times three words, each document different, neighbours alike."""
    from dsearch.types import Document

    return [
        Document(
            id=f"d{i}",
            title=WORDS[i],
            text=f"{WORDS[(i + 1) % 16]} and {WORDS[(i * 5 + 3) % 16]} number{i}",
            metadata={"number": i},
        )
        for i in range(16)
    ]


@pytest.fixture
def collection(engine: SearchEngine, documents: list[Document]) -> Collection:
    made = engine.create("food")
    made.ingest(documents)
    return made


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run_spawned` forks a preloaded process; some of tests/test_processes.py start cold ones."""
    from dsearch import processes

    monkeypatch.setattr(processes, "subprocess", _WARM)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No service refuses requests because a busy machine made its event loop late."""
    admission = sys.modules.get("dsearch.service.admission")
    if admission is not None:  # loaded by whatever module makes an app
        monkeypatch.setattr(admission, "TOLERATED_S", 60.0)
        monkeypatch.setattr(admission, "FULL_S", 120.0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Signatures unenforced, as in production: what is refused here is refused by our own errors."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
