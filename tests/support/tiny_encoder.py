"""A transformer of two layers with random weights, written to a folder as sentence-transformers has them."""

from __future__ import annotations

from pathlib import Path

import torch

from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine

SENTENCE = "question answer colour filler asked thing red green blue apple bread cheese honey"
WORDS = SENTENCE.split()
NUMBERS = 64


def write_tiny_encoder(folder: Path, *, seed: int = 0, vocabulary: int = 0) -> Path:
    """An encoder of 16 numbers for `WORDS` and numbers below `NUMBERS`; every other word is unknown.

    `vocabulary`: rows of the table of embeddings, those of no word too.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    bare = folder / "bare"
    bare.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *map(str, range(NUMBERS))]
    (bare / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(bare / "vocab.txt")).save_pretrained(str(bare))
    config = BertConfig(
        vocab_size=max(len(words), vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(str(bare))
    layers = Transformer(str(bare), max_seq_length=32)
    SentenceTransformer(modules=[layers, Pooling(16, "mean")], device="cpu").save(str(folder / "model"))
    return folder / "model"


def open_tiny(home: Path, encoder: Path) -> SearchEngine:
    """Open a home with such an encoder as a task's process does."""
    return SearchEngine(home, readonly=True, encoder=lambda: Encoder.load(str(encoder)))
