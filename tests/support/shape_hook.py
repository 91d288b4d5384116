"""Puts the checks of `shape_checks.py` on the package's modules when they are imported.

Nothing heavy is imported before the first of these modules is: a process that runs no test needs none.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

PACKAGES = (
    "dsearch.attention",
    "dsearch.client",
    "dsearch.cluster",
    "dsearch.encoder",
    "dsearch.engine",
    "dsearch.evaluation",
    "dsearch.index",
    "dsearch.products",
    "dsearch.results",
    "dsearch.service",
    "dsearch.store",
    "dsearch.training",
    "dsearch.types",
)
one_of = 8  # of so many later calls of a function one is checked; sizes.py makes it 1 for --nightly
_HEADER = struct.Struct("<qq")  # of a cached module: its source's time in ns, and size
_OPTIMIZATION = "shapes1"  # part of the cached module's name; another one for another transformation


def install() -> None:
    """Check what is imported from now on."""
    early = [name for name in PACKAGES if name in sys.modules]
    assert not early, f"imported before shapes could be checked: {early}"
    sys.meta_path.insert(0, Finder())


class _Decorate(ast.NodeTransformer):
    """`checked` innermost on every annotated function, `checked_class` outermost on every decorated class."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        if node.returns or any(one is not None and one.annotation for one in arguments):
            node.decorator_list.append(_name("checked", node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if node.decorator_list:  # a dataclass has one
            node.decorator_list.insert(0, _name("checked_class", node))
        return node


def _name(function: str, at: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(f"_shape_checks_{function}", ast.Load()), at)


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        from support.shape_checks import checked, checked_class

        for one in (checked, checked_class):
            vars(module)[f"_shape_checks_{one.__name__}"] = one
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """The changed module, compiled, or from `__pycache__` under a name of its own there."""
        path = self.get_filename(fullname)
        status = os.stat(path)
        header = _HEADER.pack(status.st_mtime_ns, status.st_size)
        cached = Path(importlib.util.cache_from_source(path, optimization=_OPTIMIZATION))
        if cached.is_file() and (stored := cached.read_bytes()).startswith(header):
            return marshal.loads(stored[len(header) :])
        tree = _Decorate().visit(ast.parse(self.get_data(path), path))
        code = compile(tree, path, "exec", dont_inherit=True)
        if not sys.dont_write_bytecode:
            cached.parent.mkdir(parents=True, exist_ok=True)  # elsewhere by PYTHONPYCACHEPREFIX
            part = cached.with_suffix(f".{os.getpid()}")
            part.write_bytes(header + marshal.dumps(code))
            part.replace(cached)
        return code


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
