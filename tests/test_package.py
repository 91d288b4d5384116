"""The package as it is imported: light, and exactly what it says."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import json
import pkgutil
import subprocess
import sys

import dsearch

HEAVY = ("torch", "faiss", "fastapi", "numpy", "sentence_transformers")


def modules_after(code: str) -> set[str]:
    code = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_its_annotations_are_for_others_too() -> None:
    assert (importlib.resources.files(dsearch) / "py.typed").is_file()


def test_importing_it_is_light() -> None:
    assert not modules_after("import dsearch") & set(HEAVY)


def test_help_loads_no_engine() -> None:
    loaded = modules_after("import dsearch.cli.grouped_help")
    assert not loaded & {"torch", "faiss", "fastapi", "sentence_transformers", "pydantic"}


def test_store_needs_neither_torch_nor_faiss() -> None:
    assert not modules_after("import dsearch.store") & {"torch", "faiss"}
    assert "torch" not in modules_after("import dsearch.index")


def test_public_names_are_there_and_no_others() -> None:
    for name in dsearch.__all__:
        assert getattr(dsearch, name).__name__ == name
    assert set(dsearch.__all__) == set(dsearch._HOMES)
    assert set(dsearch.__all__) <= set(dir(dsearch))


def test_every_module_can_be_imported_by_itself() -> None:
    # Triton comes with torch's wheels for CUDA only; card.py imports these two when a GPU is used.
    kernels = {"dsearch.attention.blockwise.triton_attention", "dsearch.attention.blockwise.triton_search"}
    for module in pkgutil.walk_packages(dsearch.__path__, "dsearch."):
        if module.name != "dsearch.__main__" and not (
            module.name in kernels and importlib.util.find_spec("triton") is None
        ):
            importlib.import_module(module.name)
