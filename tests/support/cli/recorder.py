"""The command line with everything behind it replaced by a recorder of calls."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from support.cli.terminal import Terminal
from support.paths import ROOT

from dsearch.config import load_settings
from dsearch.errors import HomeLocked

CLI = ROOT / "dsearch" / "cli"
KEPT = (  # declarations, and what only reads them
    "dsearch.attention_options.",
    "dsearch.cli.",
    "dsearch.client.wire.",
    "dsearch.config.",
    "dsearch.corpus.mirror.",
    "dsearch.declared.",
    "dsearch.errors.",
    "dsearch.errors.",
    "dsearch.jobs.",
    "dsearch.results.",
    "dsearch.search_options.",
    "dsearch.types.",
)
MADE_UP = "given-"


class Imported(NamedTuple):
    """An import of something outside the command line; `at_top` of its module, else within a function."""

    source: str
    name: str
    local: str
    at_top: bool


@functools.cache
def _imports() -> dict[str, list[Imported]]:
    """By module of the command line."""
    every: dict[str, list[Imported]] = {}
    for file in sorted(CLI.rglob("*.py")):
        imported = every.setdefault(
            ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), []
        )
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            source = f"{node.module or ''}."
            if source.startswith("dsearch.") and not source.startswith(KEPT):
                imported += [
                    Imported(source[:-1], alias.name, alias.asname or alias.name, node.col_offset == 0)
                    for alias in node.names
                ]
    return every


class Recorder:
    """Runs commands, and gives the calls that they make of anything outside the command line."""

    def __init__(self, dsearch: Terminal, monkeypatch: pytest.MonkeyPatch, *, by_server: bool):
        self._dsearch, self._by_server = dsearch, by_server
        self.way = "by server" if by_server else "here"
        self.outside = MagicMock()
        self.refusal = ""  # of the last command
        for source in {each.source for imported in _imports().values() for each in imported}:
            importlib.import_module(source)  # all before anything is replaced, which would stay in them
        for module, imported in _imports().items():
            self._replace(importlib.import_module(module), imported, monkeypatch)

    def calls(self, *arguments: str) -> list[Any]:
        """The calls of a command up to its end, or up to where a recorder's answer is of no use to it."""
        self.outside.reset_mock()
        self.refusal = ""
        with suppress(Exception):  # of what formats the answer
            code, _, said = self._dsearch(*arguments)
            self.refusal = said.splitlines()[-1] if code else ""
        return [
            plain([name, args, options])
            for name, args, options in self.outside.mock_calls
            if not name.rpartition(".")[2].startswith("__")
        ]

    def _replace(self, module: ModuleType, imported: list[Imported], monkeypatch: pytest.MonkeyPatch) -> None:
        own = {
            "opened_engine": self._opened,
            "writing": self._writing,
            "reading": self._reading,
            "in_process": self._in_process,
            "bound": self.outside.bound,
        }
        for called, replacement in own.items():
            if hasattr(module, called):
                monkeypatch.setattr(module, called, replacement)
        for each in imported:
            source = importlib.import_module(each.source)
            real = getattr(source, each.name)
            if not callable(real) or (inspect.isclass(real) and issubclass(real, Exception)):
                continue
            place, name = (module, each.local) if each.at_top else (source, each.name)
            monkeypatch.setattr(place, name, getattr(self.outside, each.name))

    @contextmanager
    def _opened(
        self, home: Path | None, *, readonly: bool, stays: str | None = None, **own: Any
    ) -> Iterator[tuple[Any, Any]]:
        self.outside.opened_engine(home, readonly=readonly, **own)
        if self._by_server and not readonly:
            raise HomeLocked(f"a server runs on this home; {stays}")
        chosen = {name: own.get(name) for name in ("encoder", "device", "backend", "threads")}
        yield self.outside.engine, load_settings(home=home, **chosen)

    @contextmanager
    def _writing(
        self,
        home: Path | None,
        own: Mapping[str, object] | None = None,
        *,
        stays: str | None = None,
        next_encoder: str | None = None,
        **_: object,
    ) -> Iterator[Any]:
        self.outside.opened_engine(home, readonly=False, next_encoder=next_encoder, **(own or {}))
        if self._by_server and stays is not None:
            raise HomeLocked(f"a server runs on this home; {stays}")
        yield self._engine()

    @contextmanager
    def _reading(self, home: Path | None, own: Mapping[str, object] | None = None) -> Iterator[Any]:
        self.outside.opened_engine(home, readonly=True, **(own or {}))
        yield self._engine()

    def _engine(self) -> Any:
        self.outside.local.engine = self.outside.engine
        return self.outside.client if self._by_server else self.outside.local

    def _in_process(self, engine: Any) -> Any:
        return engine if engine is self.outside.local else None


def plain(value: Any) -> Any:
    """Arguments as lists and scalars: records compare, and a value can be looked for in them."""
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return [[str(key), plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, functools.partial):
        return [plain(value.func), plain(value.args), plain(value.keywords)]
    if isinstance(value, MethodType):
        return [value.__name__, plain(value.__self__)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            type(value).__name__,
            [[f.name, plain(getattr(value, f.name))] for f in dataclasses.fields(value)],
        ]
    return type(value).__name__


def holds(record: Any, value: Any) -> bool:
    """The record has the value somewhere, of the same type; text that a test made up may be part of more."""
    if isinstance(record, list):
        return any(holds(item, value) for item in record)
    if isinstance(value, str) and value.startswith(MADE_UP):
        return isinstance(record, str) and value in record
    return type(record) is type(value) and record == value
