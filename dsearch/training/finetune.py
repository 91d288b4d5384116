"""`finetune`: see on held-out queries how training goes, train on all, and say whether it helped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from dsearch.attention.head import Head
from dsearch.training.examples import Examples
from dsearch.training.options import TrainingOptions
from dsearch.training.trainer import Epoch, train_head
from dsearch.training.validation import MIN_SLICE, Scores, Validation, hold_out

# A head that lets unseen documents fall by more than this on held-out queries does not go live by itself.
MAX_LOSS_UNSEEN = 0.02
MIN_HELD_OUT = 10  # with fewer, validation says nothing; all epochs are run

OnTraining = Callable[[str, Epoch], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained head and what is known of it.

    Attributes:
        head: trained on all examples.
        epochs: how many were kept.
        before: the untrained head on the held-out queries, None when there were too few to hold out.
        after: the head trained without them, after `epochs`.
        curve: that head after each epoch.
        seconds: of both trainings.
        record: all of this as JSON, for the model's file.
    """

    head: Head
    epochs: int
    before: Scores | None
    after: Scores | None
    curve: list[Scores]
    seconds: float
    record: dict[str, Any]

    @property
    def verdict(self) -> tuple[bool, str]:
        """Whether it should go live, and why in words."""
        if self.before is None or self.after is None:
            return False, "too few queries to hold any out, so nobody can tell whether it helps"
        gain = self.after.all - self.before.all
        if gain <= 0 or self.epochs == 0:
            return False, f"held-out nDCG@10 did not rise ({self.before.all:.4f} → {self.after.all:.4f})"
        if self.after.unseen is not None and self.before.unseen is not None:
            loss = self.before.unseen - self.after.unseen
            if loss > MAX_LOSS_UNSEEN:
                return False, (
                    f"documents without training judgements lose {loss:.4f} nDCG@10 on held-out queries "
                    f"({self.before.unseen:.4f} → {self.after.unseen:.4f}; allowed {MAX_LOSS_UNSEEN})"
                )
        return True, f"held-out nDCG@10 {self.before.all:.4f} → {self.after.all:.4f}"


def finetune(
    examples: Examples,
    options: TrainingOptions | None = None,
    *,
    device: str = "cpu",
    on_epoch: OnTraining | None = None,
) -> Trained:
    """Train a head on examples; nothing is published.

    First without the held-out queries, to see how they are answered after each epoch; then, with all
    examples, on the same schedule, up to the last epoch or to an earlier one that was clearly better.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
    """
    options = options or TrainingOptions()
    started = time.monotonic()
    epochs, before, curve = options.epochs, None, []
    trained_on, held_out = hold_out(examples, options.validation_share, options.seed)
    if len(held_out) >= MIN_HELD_OUT:
        training = examples.subset(trained_on)
        validation = Validation(examples.subset(held_out), training, keywords=options.keywords)
        values = [validation.ndcg(Head(examples.states.shape[1]))]

        def validate(epoch: Epoch, head: Head) -> bool:
            values.append(validation.ndcg(head))
            if on_epoch is not None:
                on_epoch("validate", epoch)
            return True

        train_head(training, options, device=device, on_epoch=validate)
        epochs = kept_epochs(np.stack(values), validation.seen)
        before, *curve = map(validation.scores, values)

    def report(epoch: Epoch, head: Head) -> bool:
        if on_epoch is not None:
            on_epoch("train", epoch)
        return True

    head = train_head(examples, options, epochs=epochs, device=device, on_epoch=report)
    after = None if before is None else [before, *curve][epochs]
    seconds = time.monotonic() - started
    record = {
        "scope": "head",
        "options": asdict(options),
        "epochs": epochs,
        "examples": len(examples),
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
        "held_out": {
            "queries": len(held_out),
            "measure": "nDCG@10",
            "before": None if before is None else asdict(before),
            "after": None if after is None else asdict(after),
        },
        "seconds": round(seconds, 2),
    }
    return Trained(head, epochs, before, after, curve, seconds, record)


def kept_epochs(values: Float[np.ndarray, "epochs queries"], seen: Bool[np.ndarray, " queries"]) -> int:
    """The last epoch, or an earlier one (0: untrained) that was better by twice the standard error.

    The learning rate falls to zero at the end, so the last epoch has the least noise, while the best of
    thirty noisy ones is mostly luck: on SciFact's training split (3 folds) it lost .013 against the last.
    Seen and unseen queries count alike, however many of each there are.
    """
    weights = np.ones(len(seen))
    if min(seen.sum(), (~seen).sum()) >= MIN_SLICE:
        weights = np.where(seen, len(seen) / (2 * seen.sum()), len(seen) / (2 * (~seen).sum()))
    weighted = values * weights
    best = int(weighted.mean(axis=1).argmax())
    gain = weighted[best] - weighted[-1]
    clear = gain.mean() > 2 * gain.std() / np.sqrt(len(gain))
    return best if clear else len(values) - 1
