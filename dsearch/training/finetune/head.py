"""`finetune`: cross-validate a training on held-out queries, train on all, and evaluate the gain.

`queries_of`: the queries that it learned from, stored with the model to tell them apart in evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, TextEncoder
from dsearch.engine import EncodedDocuments
from dsearch.engine.models.training_record import LearnedQueries, query_statistics
from dsearch.errors import InvalidRequest
from dsearch.evaluation.confidence import AnsweredQueries
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.second_stage import FoldHeads, TrainedStage
from dsearch.training.finetune.training import Trainings, as_served, checkpoints_of
from dsearch.training.gate.gate import Gate, GateReport, judge, judge_candidates, overlap_of_canaries
from dsearch.training.gate.held_out import Headroom, headroom
from dsearch.training.gate.selection import (
    CheckpointChoice,
    CrossFitted,
    FoldAnswers,
    cross_fitted,
    with_memory,
)
from dsearch.training.loop.observer import Observer, Student
from dsearch.training.loop.run_folder import RunFolder
from dsearch.training.memory import MemoryTrials, memory_of
from dsearch.training.options import TrainingOptions
from dsearch.training.scopes.head import MakeTask, new_head
from dsearch.training.tune import MIN_QUERIES, ChosenSetting, Trials, TunedSearch, head_of, setting_of


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A trained head and its evaluation.

    Attributes:
        head: head trained on all examples.
        epochs: number of epochs selected.
        headroom: estimate of the possible gain.
        gate: the gate's report on held-out queries.
        seconds: duration of all trainings.
        record: all of this as JSON, for the model's file.
        encoder: change of the encoder, in the scopes query and full.
        documents: documents encoded by it, in scope full.
        tuned: the untrained search that training started from, if it is not the live one: a candidate of its
            own, with its gate report.
        learned_from: in scope head, the queries that it learned from.
        share: share of the learned change that the head has (selection.py).
        keyword_factor: factor of the learned keyword weight that the head has.
        held_out: rankings of held-out queries by heads like this one that had not learned from them.
        folds: heads that were trained without each fold, for a second stage.
        second_stage: fitted behind this very model, in scope full; part of the head if it passed.
    """

    head: Head
    epochs: int
    headroom: Headroom
    gate: GateReport
    seconds: float
    record: dict[str, Any]
    encoder: EncoderChange | None = None
    documents: EncodedDocuments | None = None
    tuned: TunedSearch | None = None
    learned_from: LearnedQueries | None = None
    share: float = 1.0
    keyword_factor: float = 1.0
    held_out: AnsweredQueries | None = None
    folds: tuple[FoldHeads, ...] = field(default=(), repr=False)
    second_stage: TrainedStage | None = None

    @property
    def goes_live(self) -> Literal["head", "tuned"] | None:
        """Candidate to promote; None keeps the live model."""
        if self.gate.passed:
            return "head"
        return "tuned" if self.tuned is not None and self.tuned.gate.passed else None

    @property
    def verdict(self) -> tuple[bool, str]:
        """Verdict: True if it should go live, and the reason in words."""
        return self.gate.passed, self.gate.reason


def finetune(
    examples: Examples,
    options: TrainingOptions | None = None,
    *,
    gate: Gate | None = None,
    start: Head | None = None,
    encoder: TextEncoder | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
    run: RunFolder | None = None,
    task: MakeTask | None = None,
) -> TrainingResult:
    """Train a head, in scope query the query encoder with it, on examples; nothing is published.

    First without the queries of a fold, to see how they are answered at each checkpoint, and so on fold by
    fold until `ENOUGH` queries were held out once. Then, with all examples, on the same schedule, up to the
    last epoch or to an earlier checkpoint that was clearly better.

    Each training starts from the keyword weight, k1 and b, and hop strength that tuning chooses on its own
    queries, never on those held out for it (`options.tune`; else from `start`). It learns without a hop;
    which hop strength serves the trained head best, held-out queries say. So there are two candidates, the
    tuned search and the head: see candidates.py for what is asked of each.

    The gate scores each fold at the checkpoint and hop strength that the *other* folds would choose (a single
    fold: each half of it): what is chosen on the queries that it is judged by looks better than it is.

    Args:
        examples: queries and their documents.
        options: options of the training.
        gate: requirements on the head.
        start: an untrained head with a keyword weight and a hop strength: what answers now, to start from
            and to be compared with; the untrained one when None.
        encoder: the collection's, for scope query; a copy of it learns.
        device: device of the training.
        observer: receives headroom, epochs (of the stages "validate" and "train") and progress; stops it.
        run: folder of checkpoints and metrics; an interrupted run resumes from it.
        task: makes the steps, over documents that lie elsewhere (dsearch.cluster.finetune).

    Raises:
        TrainingDiverged: NaN or infinity in the loss; the head of the last whole epoch is its `student`'s,
            and lies in the run's folder.
        Cancelled: the observer stopped it.
        InvalidRequest: scope query without an encoder, or with one that cannot be trained.
    """
    start = Head(examples.states.shape[1]).eval() if start is None else start
    options, observer = options or TrainingOptions(), observer or Observer()
    if options.scope == "query" and encoder is None:
        raise InvalidRequest("scope='query' trains the query encoder; give encoder=collection.encoder")
    started = time.monotonic()
    examples = examples.remembering()
    trainings = Trainings(
        examples,
        options,
        start,
        encoder if options.scope == "query" else None,
        device,
        run,
        observer,
        task,
    )
    room = headroom(examples, start, keywords=options.keywords)
    observer.headroom(room)
    trials = _trials(examples, options, start, observer)
    memories = None
    if trials is not None and options.memory and examples.source == "judgements" and task is None:
        memories = MemoryTrials.of(trials)
    choice = None if trials is None else trials.choose()
    begin = start if choice is None else head_of(choice.setting, examples.states.shape[1])
    checkpoints = checkpoints_of(options.epochs)
    folds = trainings.held_out_folds(checkpoints, trials, memories)
    crossed = cross_fitted(folds, checkpoints=len(checkpoints), seed=options.seed)
    epochs, served = [0, *checkpoints][crossed.choice.checkpoint], crossed.choice.served

    student = trainings.on_all(epochs, begin)
    if served is not None:
        student.head = as_served(student.head, new_head(examples.states.shape[1], options, begin), served)
        if memories is not None and served.memory:
            memory = memory_of(examples, memories.for_head(), states=student.states(examples))
            student.head = with_memory(student.head, memory, served.memory)
    tuned, gated = _judged(examples, student, start, crossed, trials, memories, choice, gate, options.seed)
    seconds = time.monotonic() - started
    share, factor = (1.0, 1.0) if served is None else (served.share, served.keywords)
    record = {
        "scope": options.scope,
        "options": asdict(options),
        "epochs": epochs,
        "share": share,
        "keyword_factor": factor,
        "hop_strength": student.head.hop_strength.item(),
        "examples": len(examples),
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
        "training_queries": query_statistics(student.states(examples)),
        "headroom": room.to_dict(),
        "tuned": None if tuned is None else tuned.record,
        "gate": gated.to_dict(),
        "seconds": round(seconds, 2),
    }
    if run is not None:
        run.finish()
    return TrainingResult(
        student.head,
        epochs,
        room,
        gated,
        seconds,
        record,
        student.change,
        tuned=tuned,
        learned_from=queries_of(examples, options.seed) if options.scope == "head" and epochs else None,
        share=share,
        keyword_factor=factor,
        held_out=_held_out(folds, crossed.choice),
        folds=tuple(parts.heads(crossed.choice) for parts in trainings.parts),
    )


def _held_out(folds: Sequence[FoldAnswers], choice: CheckpointChoice) -> AnsweredQueries | None:
    """Rankings of all folds by the head of a choice; None if no fold has it any more."""
    ways = [fold.rankings(choice) for fold in folds if fold.rankings is not None]
    rankings = [way for way in ways if way is not None]
    if not rankings:
        return None
    return AnsweredQueries(*(np.concatenate(parts) for parts in zip(*rankings, strict=True)))


def _judged(
    examples: Examples,
    student: Student,
    start: Head,
    crossed: CrossFitted,
    trials: Trials | None,
    memories: MemoryTrials | None,
    choice: ChosenSetting | None,
    gate: Gate | None,
    seed: int,
) -> tuple[TunedSearch | None, GateReport]:
    """The search that needs no training, with its memory, if it differs from `start`; and the gate report of
    the head."""
    overlap = None
    if student.encoder is None:  # canaries are stored embeddings: they say nothing of an encoder that changed
        overlap = overlap_of_canaries(examples.snapshot, start, student.head, seed=seed)
    remembering, of_first = (None, None) if memories is None else memories.judged(gate)
    if remembering is not None and remembering.memory is None:
        remembering = None
    if trials is None or choice is None or (choice.setting == trials.start and remembering is None):
        return None, judge(crossed.now, crossed.after, gate, canary_overlap=overlap, seed=seed)
    of_tuned, of_head = judge_candidates(
        trials.judged(choice, gate) if remembering is None or of_first is None else of_first,
        crossed.now,
        crossed.tuned,
        crossed.after,
        gate,
        canary_overlap=overlap,
        queries=crossed.queries,
        seed=seed,
    )
    if remembering is not None and memories is not None:
        return memories.searched(remembering, of_tuned), of_head
    return trials.tuned(choice, of_tuned), of_head


def _trials(
    examples: Examples,
    options: TrainingOptions,
    start: Head,
    observer: Observer,
) -> Trials | None:
    """Settings to start from; None where none are to be tried, or too few queries are there to choose by."""
    if not (options.tune and options.keywords) or len(examples) < MIN_QUERIES:
        return None
    return Trials.of(examples, start=setting_of(start), seed=options.seed, observer=observer)


MOST = 10_000  # embeddings that are kept, drawn where there are more: 15 MB at 384 numbers


def queries_of(examples: Examples, seed: int) -> LearnedQueries:
    """The queries of a training, for the record: texts of judgements, otherwise embeddings."""
    if examples.source == "judgements":
        return LearnedQueries(examples.texts)
    states = examples.states
    if len(states) > MOST:
        drawn = np.random.default_rng(seed).choice(len(states), MOST, replace=False)
        states = states[np.sort(drawn)]
    return LearnedQueries(None, states)
