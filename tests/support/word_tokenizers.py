"""A tokenizer of BERT's kind with a small vocabulary, and texts that are hard for one."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

PROMPT = "passage: "
# Scripts with and without blanks, kinds of white space, marks that combine, characters that the normal form
# removes or replaces, and the tokenizer's own marks, whole and in parts.
PARTS = [
    *(
        "foo",
        "bars",
        "x",
        "Éa",
        "e\u0301",
        "\u0301",
        "İ",
        "ß",
        "straße",
        "ﬁ",
        "≠",
        "½",
        "don't",
        "a-b",
        "3.14",
    ),
    *(
        "中文",
        "豈",
        "日本語の",
        "かな",
        "한국어",
        "ไทย",
        "עברית",
        "हिन्दी",
        "\u302e",
        "ὀδός",
        "🙂",
        "👩\u200d🔬",
    ),
    *(" ", "  ", "\n", "\t", "\r\n", "\x1c", "\x85", "\xa0", "\u3000", "\u200b", "\ufeff", "\x00", "\ufffd"),
    *(
        ".",
        ",",
        "。",
        "、",
        "/",
        "(",
        ")",
        "[",
        "]",
        "[SEP]",
        "[MASK]",
        "[CLS]",
        "[SE",
        "P]",
        "mask",
        "$",
        "##s",
    ),
    *("https://example.org/a?b=c", "a" * 30, "y" * 150),
]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join)


def of_words(**changes: Any) -> Tokenizer:
    """A tokenizer of BERT's kind with a small vocabulary."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation, *"中文éßאιの한ᄒ"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PROMPT.split(), "foo", "bar", "mask", *letters]
    pieces += [f"##{letter}" for letter in letters]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True)])
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer
