"""Models of each configuration beside sentence-transformers: served alike, or refused with the setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from support.cli.terminal import Terminal
from support.tiny_encoder import write_tiny_encoder

from dsearch.encoder import load_encoder, weights
from dsearch.encoder.model_settings import unused_prompts
from dsearch.errors import EncoderUnavailable

TEXTS = ["red apple", "green bread cheese honey 12 13", "question thing blue", "answer"]
PROMPTS = {"query": "red: ", "document": "blue: "}


class Models:
    """Writes models of one transformer, or of two with other weights."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._bare = [write_tiny_encoder(folder / str(seed), seed=seed).parent / "bare" for seed in (1, 2)]

    def transformer(self, number: int = 0) -> Transformer:
        return Transformer(str(self._bare[number]), max_seq_length=32)

    def write(self, name: str, modules: list[Any], **options: Any) -> Path:
        folder = self.folder / name
        if not folder.is_dir():
            SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder))
        return folder

    def plain(self, **options: Any) -> Path:
        return self.write("plain", [self.transformer(), Pooling(16)], **options)

    def with_prompts(self) -> Path:
        return self.write("prompts", [self.transformer(), Pooling(16)], prompts=PROMPTS)

    def router(self) -> Path:
        sides = [[self.transformer(side), Pooling(16)] for side in (0, 1)]
        return self.write("router", [Router.for_query_document(*sides)])

    def later_router(self) -> Path:
        sides = [[Dense(16, 16)], [Dense(16, 16)]]
        return self.write("later", [self.transformer(), Pooling(16), Router.for_query_document(*sides)])

    def without_prompt(self, prompts: dict[str, str] | None = PROMPTS) -> Path:
        pooling = Pooling(16, include_prompt=False)
        return self.write(f"pooled-{bool(prompts)}", [self.transformer(), pooling], prompts=prompts)

    def cut(self) -> Path:
        return self.write("cut", [self.transformer(), Pooling(16)], truncate_dim=8)

    def other_prompts(self) -> Path:
        prompts = {"web_search_query": "red: ", "passage": "blue: "}
        return self.write("others", [self.transformer(), Pooling(16)], prompts=prompts)


REFUSED: dict[str, tuple[Callable[[Models], Path], str]] = {
    "router": (Models.router, "Router"),
    "router behind the pooling": (Models.later_router, "Router"),
    "include_prompt false": (Models.without_prompt, "include_prompt"),
    "truncate_dim": (Models.cut, "truncate_dim"),
}
SERVED: dict[str, Callable[[Models], Path]] = {
    "plain": Models.plain,
    "prompts": Models.with_prompts,
    "include_prompt false, no prompt": lambda models: models.without_prompt(None),
    "last token": lambda models: models.write("last", [models.transformer(), Pooling(16, "lasttoken")]),
    "dense, normalised": lambda models: models.write(
        "dense", [models.transformer(), Pooling(16, "cls"), Dense(16, 8), Normalize()]
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("DSEARCH_BACKEND", "torch")
    monkeypatch.setenv("DSEARCH_CACHE", str(tmp_path / "cache"))
    return Terminal(tmp_path / "home", capsys, monkeypatch)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "fruit.csv"
    file.write_text("id,text\na,red apple\nb,blue bread\n")
    return file


def cosine(folder: Path) -> float:
    """The least cosine of an embedding with the one that sentence-transformers gives."""
    encoder, model = load_encoder(str(folder)), SentenceTransformer(str(folder), device="cpu")
    pairs = [
        (encoder.encode_queries(TEXTS), model.encode_query(TEXTS)),
        (encoder.encode_documents(TEXTS), model.encode_document(TEXTS)),
    ]
    return min(float((own * _unit(theirs)).sum(1).min()) for own, theirs in pairs)


def _unit(states: Any) -> np.ndarray:
    return states / np.linalg.norm(states, axis=1, keepdims=True)


@pytest.mark.parametrize("configuration", SERVED)
def test_configurations_that_are_served_give_the_embeddings_of_sentence_transformers(
    models: Models, configuration: str
) -> None:
    assert cosine(SERVED[configuration](models)) > 0.99999


@pytest.mark.parametrize("configuration", REFUSED)
def test_encoders_that_would_be_served_silently_wrong_are_refused_with_the_reason(
    models: Models, configuration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, setting = REFUSED[configuration]
    folder = write(models)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(weights, "settings_problem", lambda folder: None)
        if setting == "truncate_dim":  # what is cut to 8 numbers does not fit into rows of 16
            with pytest.raises(ValueError, match="shape"):
                cosine(folder)
        else:
            assert cosine(folder) < 0.99
    for backend in ("torch", "auto", "openvino"):
        with pytest.raises(EncoderUnavailable, match=setting):
            load_encoder(str(folder), backend=backend, cache=models.folder / "cache")


def test_the_name_that_a_router_had_before_is_refused_too(models: Models, tmp_path: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Asym"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(EncoderUnavailable, match="Asym"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '"x"', "[1]", '{"prompts": []}', '{"truncate_dim": null}']
)
def test_files_of_settings_without_such_a_setting_refuse_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    (tmp_path / "config_sentence_transformers.json").write_text(content)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert weights.find_weights(str(tmp_path)).folder == tmp_path


def test_an_encoder_without_a_limit_of_tokens_is_refused(models: Models) -> None:
    embedding = StaticEmbedding(models.transformer().tokenizer, embedding_dim=16)
    with pytest.raises(EncoderUnavailable, match="StaticEmbedding"):
        load_encoder(str(models.write("static", [embedding])))


@pytest.mark.parametrize("configuration", REFUSED)
def test_index_create_migrate_and_doctor_name_the_setting_of_a_refused_encoder(
    models: Models, configuration: str, dsearch: Terminal, source: Path
) -> None:
    write, setting = REFUSED[configuration]
    encoder = ("--encoder", write(models))
    assert dsearch("index", source, "-c", "fruit", "--encoder", models.plain())[0] == 0
    for command in (
        ("index", source, "-c", "new"),
        ("create", "new"),
        ("migrate", "-c", "fruit"),
        ("search", "red", "-c", "fruit"),
    ):
        code, _, err = dsearch(*command, *encoder)
        assert (code, setting in err, "migrate" in err) == (1, True, True), command
    code, out, _ = dsearch("doctor", *encoder, "--json")
    assert code == 1
    assert setting in json.loads(out)["encoder"]["problem"]
    names = [entry["name"] for entry in json.loads(dsearch("collections", "--json")[1])]
    assert names == ["fruit"]


def test_prompts_of_other_names_are_named_as_unused_where_an_encoder_is_chosen(
    models: Models, dsearch: Terminal, source: Path
) -> None:
    encoder = ("--encoder", models.other_prompts())
    assert cosine(models.other_prompts()) > 0.99999  # as sentence-transformers by default
    assert dsearch("index", source, "-c", "fruit", "--encoder", models.plain())[0] == 0
    for command in (("index", source, "-c", "new"), ("create", "empty"), ("migrate", "-c", "fruit")):
        code, _, err = dsearch(*command, *encoder)
        (line,) = [line for line in err.splitlines() if "web_search_query" in line]
        assert (code, "passage" in line, "none" in line) == (0, True, True)
    assert "passage" in json.loads(dsearch("doctor", *encoder, "--json")[1])["encoder"]["prompts"]
    assert "web_search_query" not in dsearch("search", "red", "-c", "new", *encoder)[2]


def test_prompts_that_are_used_or_empty_are_not_named() -> None:
    assert unused_prompts(PROMPTS) is None
    assert unused_prompts({**PROMPTS, "clustering": "topic: "}) is None
    assert unused_prompts({"query": "", "document": "", "passage": ""}) is None
    assert unused_prompts({"query": "red: ", "passage": "blue: "}) is not None
    assert unused_prompts(None) is None
