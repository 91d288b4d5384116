"""The table of the guide `integrations`: each cell names a test that there is."""

from __future__ import annotations

import ast
import re

from support.paths import TESTS

from dsearch.guide import guide

FOLDERS = ("service/mcp", "service/compat", "service/keys", "integrations")


def names_in(name: str) -> set[str]:
    """Functions and classes of a test file, which lies in one of the folders."""
    paths = [TESTS / folder / name for folder in FOLDERS if (TESTS / folder / name).is_file()]
    assert len(paths) == 1, name
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(paths[0].read_text()).body if isinstance(node, kinds)}


def test_each_cell_names_a_test_that_there_is() -> None:
    table = guide("integrations").split("|---|---|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len(rows) >= 12
    for client, *cells in rows:
        assert len(cells) == 5, client
        assert cells[0] != "–", client
        for cell in cells:
            if cell == "–":
                continue
            named = re.fullmatch(r"`(test_\w+\.py): (\w+)`", cell)
            assert named, f"{client}: {cell}"
            assert named[2] in names_in(named[1]), f"{client}: {cell}"
