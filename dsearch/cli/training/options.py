"""What `dsearch train` is asked, and which of it goes together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsearch.errors import InvalidRequest

FEEDBACK = "feedback"
VALUE = "value"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line, by their names there; None, where they may be, is left to defaults."""

    collection: str
    data: Path | None
    split: str
    exclude: Path | None
    self_supervised: bool
    source: str | None
    trusted_keys: str | None
    scope: str
    encoder_training: str | None
    encoder_learning_rate: float | None
    objective: str | None
    field: str | None
    teacher: Path | None
    null_slot: bool
    heads: int
    query_side: str | None
    epochs: int | None
    learning_rate: float | None
    batch_size: int | None
    negatives: int | None
    precision: str | None
    compiled: bool
    seed: int
    tune: bool
    run: Path | None
    resume: bool
    strict: bool
    promote: bool
    accept: bool
    alpha: float
    margin: float
    home: Path | None
    encoder: str | None
    device: str | None
    backend: str | None
    threads: int | None
    ray: str | None
    json: bool

    @property
    def of_values(self) -> bool:
        """Whether a field of the documents is to be learned."""
        return self.objective == VALUE or self.field is not None

    @property
    def of_feedback(self) -> bool:
        """Whether clicks are to be learned from."""
        return self.source is not None or self.trusted_keys is not None

    @property
    def judgements(self) -> Path:
        """The folder of judgements, for those kinds of training that `require_sound` asked it of."""
        assert self.data is not None
        return self.data

    def chosen(self) -> dict[str, Any]:
        """How to train, by the names of `TrainingOptions` and `FullOptions`, without what was left out."""
        return given(
            objective=self.objective,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            seed=self.seed,
            heads=self.heads,
            query_side=self.query_side,
            scope=self.scope,
            encoder_method=self.encoder_training,
            encoder_learning_rate=self.encoder_learning_rate,
            batch_size=self.batch_size,
            negatives=self.negatives,
            precision=self.precision,
            compiled=self.compiled or None,
            tune=None if self.tune or self.scope == "full" else False,
        )

    def require_sound(self) -> None:
        """Refuse what does not go together, before anything is opened.

        Raises:
            InvalidRequest: it says what to give, or to leave out.
        """
        if self.of_values:
            self._require_values()
        elif self.of_feedback:
            self._require_feedback()
        elif (self.data is None) == (not self.self_supervised):
            raise InvalidRequest("give either --data BEIR_FOLDER, --self-supervised or --from feedback")
        self._require_judged()
        if self.ray is not None:
            self._require_over_shards()
        if self.scope == "full" and (self.data is None or self.teacher is not None):
            raise InvalidRequest("--scope full learns from judgements alone; give --data BEIR_FOLDER")
        of_full = {
            "--negatives": self.negatives is not None,
            "--precision": self.precision,
            "--compile": self.compiled,
        }
        if self.scope != "full" and (names := there(of_full)):
            raise InvalidRequest(f"{names}: of --scope full alone; leave that out")

    def _require_values(self) -> None:
        if self.objective != VALUE or self.field is None:
            raise InvalidRequest(
                "--objective value learns to predict a field, and --field says which: give both, such as "
                "--objective value --field price"
            )
        refused = {
            "--from": self.source,
            "--trusted-keys": self.trusted_keys,
            "--self-supervised": self.self_supervised,
            "--teacher": self.teacher,
            f"--scope {self.scope}": self.scope != "head",
            "--encoder-training": self.encoder_training,
            "--encoder-learning-rate": self.encoder_learning_rate,
            "--negatives": self.negatives is not None,
            "--precision": self.precision,
            "--compile": self.compiled,
            "--null-slot": self.null_slot,
            "--ray": self.ray,
        }
        if names := there(refused):
            raise InvalidRequest(
                f"--objective value learns from the documents' own {self.field!r}; leave out {names}"
            )

    def _require_feedback(self) -> None:
        if self.source != FEEDBACK:
            wrong = "--trusted-keys without it" if self.source is None else f"--from {self.source}"
            raise InvalidRequest(f"{wrong}; use --from {FEEDBACK}")
        if self.self_supervised or self.teacher is not None or self.scope != "head":
            raise InvalidRequest(
                "--from feedback trains a head on clicks; leave --self-supervised, --teacher and --scope out"
            )
        if self.trusted_keys is not None and not self.trusted():
            raise InvalidRequest("--trusted-keys is empty; give ids of keys, with commas between them")
        if self.trusted_keys is not None and self.data is not None:
            raise InvalidRequest("give --trusted-keys or --data to judge by, not both")

    def trusted(self) -> tuple[str, ...]:
        """API keys (or client:ID) whose clicks judge; they are not trained on."""
        return tuple(name.strip() for name in (self.trusted_keys or "").split(",") if name.strip())

    def _require_judged(self) -> None:
        judged = self.data is not None and self.source is None and self.scope == "head"
        if self.null_slot and not judged:
            raise InvalidRequest(
                "--null-slot learns from judged queries, in scope head; give --data BEIR_FOLDER (a query "
                "whose grades are all 0 is one that nothing answers)"
            )

    def _require_over_shards(self) -> None:
        """What shards cannot learn, or could not answer with."""
        refused = {
            f"--from {self.source}": self.source is not None,
            f"--scope {self.scope}": self.scope != "head",
            "--null-slot": self.null_slot,
        }
        if names := there(refused):
            raise InvalidRequest(
                f"--ray trains a head from judgements or the corpus; leave out {names}, or train "
                "without --ray"
            )


def given(**options: Any) -> dict[str, Any]:
    """The options that are not left to others' defaults."""
    return {name: value for name, value in options.items() if value is not None}


def there(options: dict[str, Any]) -> str:
    """The names of the options that were given, with commas between them."""
    return ", ".join(name for name, value in options.items() if value)
