"""Arguments and names of functions that nothing in their bodies reads: a value was given and goes nowhere."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

from support.paths import ROOT

_PYTHONS_OWN = ("__init__", "__call__")  # whose signatures are ours, unlike those of `__exit__`


def unread(package: str) -> set[str]:
    """Names as `module.function: name`, of the modules of dsearch/PACKAGE; beside the packages, if empty."""
    folder = ROOT / "dsearch"
    files = sorted((folder / package).rglob("*.py")) if package else sorted(folder.glob("*.py"))
    assert files, f"no modules in {folder / package}"
    found = set[str]()
    for file in files:
        text = file.read_text(encoding="utf-8")
        candidates = list(_unread(symtable.symtable(text, str(file), "exec")))
        if not candidates:
            continue
        declared = {
            (node.lineno, node.name)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_declaration(node)
        }
        module = ".".join(file.relative_to(folder).with_suffix("").parts)
        found |= {
            f"{module}.{function}: {name}"
            for line, function, name in candidates
            if (line, function) not in declared
        }
    return found


def _is_declaration(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A protocol's method, an overload, or a function that only raises."""
    body = [
        line
        for line in function.body
        if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
    ]
    return all(isinstance(line, ast.Raise | ast.Pass) for line in body)


def _unread(table: symtable.SymbolTable) -> Iterator[tuple[int, str, str]]:
    for child in table.get_children():
        yield from _unread(child)
    if not isinstance(table, symtable.Function) or table.get_name() == "lambda":
        return
    if table.get_name().startswith("__") and table.get_name() not in _PYTHONS_OWN:
        return
    inner = {
        symbol.get_name()
        for child in table.get_children()
        for symbol in child.get_symbols()
        if symbol.is_free()
    }
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if (
            symbol.is_referenced()
            or symbol.is_global()
            or symbol.is_free()
            or name in inner
            or name.startswith((".", "_"))
        ):
            continue
        if (symbol.is_parameter() or symbol.is_assigned()) and name not in ("self", "cls"):
            yield table.get_lineno(), table.get_name(), name
