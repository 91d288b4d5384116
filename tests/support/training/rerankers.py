"""Tiny rerankers as sentence-transformers stores them: random weights, the default encoder's vocabulary."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from dsearch.encoder.weights import find_weights

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_SIZES: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


def cross_encoder_folder(folder: Path, *, labels: int = 1, seed: int = 0) -> Path:
    """A CrossEncoder of two layers; its scores mean nothing, and differ."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config: Any = BertConfig(**{**_SIZES, "num_labels": labels})
    BertForSequenceClassification(config).save_pretrained(folder)
    return _with_tokenizer(folder)


def multi_vector_folder(folder: Path, *, seed: int = 0) -> Path:
    """A MultiVectorEncoder over a transformer of two layers."""
    from sentence_transformers import MultiVectorEncoder
    from transformers import BertConfig, BertModel

    base = folder.with_name(f"{folder.name}-base")
    torch.manual_seed(seed)
    BertModel(BertConfig(**_SIZES)).save_pretrained(base)
    MultiVectorEncoder(str(_with_tokenizer(base)), device="cpu").save_pretrained(str(folder))
    return folder


def _with_tokenizer(folder: Path) -> Path:
    for name in _TOKENIZER:
        shutil.copy(find_weights("all-MiniLM-L6-v2").folder / name, folder)
    return folder
