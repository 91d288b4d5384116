"""`finetune`: cross-validate a training on held-out queries, train on all, and evaluate the gain.

Every held-out query is answered at each checkpoint, and after the last one in each way that the head may be
served (selection.py). `finetune` chooses from all those answers together.

`queries_of`: the queries that it learned from, stored with the model to tell them apart in evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.encoder import TextEncoder
from dsearch.engine.models.training_record import LearnedQueries, query_statistics
from dsearch.errors import InvalidRequest
from dsearch.evaluation.confidence import AnsweredQueries
from dsearch.training.candidate import JudgedCandidate
from dsearch.training.confidence import ranked_examples
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.second_stage import FoldHeads, OwnQueries, TrainedStage
from dsearch.training.gate.decision import belief_of
from dsearch.training.gate.gate import CLAIMS, Gate, GateReport, judge, overlap_of_canaries, preferred
from dsearch.training.gate.held_out import (
    ENOUGH,
    Answers,
    Headroom,
    HeldOut,
    headroom,
    split_folds,
    without_fold,
)
from dsearch.training.gate.noise import probability_of_noise
from dsearch.training.gate.selection import (
    KEYWORD_FACTORS,
    MEMORY_SHARES,
    SHARES,
    CheckpointChoice,
    CrossFitted,
    FoldAnswers,
    ServingChoice,
    cross_fitted,
    on_device_of,
    part_of_the_way,
    reweighed,
    with_memory,
)
from dsearch.training.head_task import MakeTask, OnStudent, new_head, train_student
from dsearch.training.loop.loop import Epoch, Observer, Student, Watch
from dsearch.training.loop.run_folder import RunFolder, Stage, keeping_last_good
from dsearch.training.memory import MemoryTrials, memory_of
from dsearch.training.options import TrainingOptions
from dsearch.training.tune import (
    HOP_STRENGTHS,
    MIN_QUERIES,
    ChosenSetting,
    Trials,
    TunedSearch,
    head_of,
    setting_of,
)

MIN_HELD_OUT = 10  # with fewer, held-out queries say nothing; all epochs are run
_SERVED = "served"  # what answers in each way of serving are kept as
_CHECKPOINTS = 10  # of a training run, at which held-out queries are ranked


@dataclass(frozen=True, slots=True)
class FoldParts:
    """The parts of a fold's searches; none of them has learned from the fold's queries.

    Attributes:
        queries: indices of the fold's queries that were ranked.
        start: the live search.
        tuned: the search that needs no training, with its memory.
        beginning: of the training, in the shape of `trained`.
        trained: head after the last checkpoint.
        memory: beside it; None without one.
        plain: heads after each checkpoint, by its number from 1, to be served as they are; empty with an
            encoder that learned.
        own: the fold's queries by an encoder that learned; None for the collection's.
    """

    queries: list[int]
    start: Head
    tuned: Head
    beginning: Head
    trained: Head
    memory: QueryMemory | None
    plain: dict[int, Head]
    own: OwnQueries | None = None

    def heads(self, choice: CheckpointChoice) -> FoldHeads:
        """The heads by candidate; "head" as chosen, left out where that checkpoint's was not kept."""
        heads = {"start": self.start, "tuned": self.tuned}
        served = choice.served
        if served is not None:
            heads["head"] = with_memory(
                as_served(self.trained, self.beginning, served), self.memory, served.memory
            )
        elif choice.checkpoint in self.plain:
            heads["head"] = self.plain[choice.checkpoint]
        return FoldHeads(self.queries, heads, self.own)


def as_served(head: Head, beginning: Head, served: ServingChoice) -> Head:
    """Head trained from `beginning`, with the settings that held-out queries chose."""
    head = reweighed(part_of_the_way(beginning, head, served.share), served.keywords)
    other = deepcopy(head)
    with torch.no_grad():
        other.hop_strength.fill_(served.hop)
    return other


@dataclass(frozen=True, slots=True)
class Trainings:
    """The trainings of one run.

    Attributes:
        examples: queries and their documents.
        options: options of the training.
        start: head of the live model.
        encoder: encoder to train too; None for a frozen one.
        device: device of the training.
        run: folder of checkpoints, answers and metrics; an interrupted run resumes from it.
        observer: receives epochs and progress; may stop it.
        task: function that creates the task, over documents that are stored elsewhere.
        parts: of each fold that was trained in this process, for a second stage.
    """

    examples: Examples
    options: TrainingOptions
    start: Head
    encoder: TextEncoder | None
    device: str
    run: RunFolder | None
    observer: Observer
    task: MakeTask | None = None
    parts: list[FoldParts] = field(default_factory=list[FoldParts])

    def held_out_folds(
        self, checkpoints: list[int], trials: Trials | None, memories: MemoryTrials | None = None
    ) -> list[FoldAnswers]:
        """Answers of each fold by trainings without it, until enough queries were held out once.

        Args:
            checkpoints: epochs after which the fold is ranked.
            trials: initial settings, chosen without the fold; None for `start`.
            memories: query memories beside them, likewise; None for no memory.
        """
        examples, options = self.examples, self.options
        if options.folds == 0 or len(examples) < MIN_HELD_OUT:
            return []
        folds: list[FoldAnswers] = []
        for number, part in enumerate(split_folds(examples, options.folds, options.seed)):
            if sum(len(fold.before) for fold in folds) >= ENOUGH:
                break
            fold = _FoldTraining(self, f"fold-{number}", part, checkpoints, trials, memories)
            folds.append(fold.finish())
        return folds

    def on_all(self, epochs: int, start: Head) -> Student:
        """Train on all examples, for this number of epochs of the schedule."""
        stage = self.stage("train")
        report = partial(self.tell, "train", stage)
        return self.train(self.examples, "train", stage, report, start=start, epochs=epochs)

    def stage(self, name: str) -> Stage | None:
        """The folder of one training of the run."""
        return None if self.run is None else self.run.stage(name)

    def train(
        self,
        examples: Examples,
        name: str,
        stage: Stage | None,
        report: OnStudent,
        *,
        start: Head,
        epochs: int | None = None,
    ) -> Student:
        """Train on some examples; all epochs when None."""
        if stage is not None:
            stage.forget_unfinished_metrics()
        with keeping_last_good(self.run):
            return train_student(
                examples,
                self.options,
                encoder=self.encoder,
                start=start,
                epochs=epochs,
                device=self.device,
                watch=Watch(name, self.observer, stage),
                on_epoch=report,
                task=self.task,
            )

    def tell(self, name: str, stage: Stage | None, epoch: Epoch, student: Student) -> bool:
        """Write the metrics of an epoch, and report it."""
        if stage is not None:
            stage.add_metrics(epoch, student)
        self.observer.epoch(name, epoch)
        return True


class _FoldTraining:
    """A training without one fold, which is answered at each checkpoint.

    Args:
        run: trainings of the run.
        name: of the stage in the run's folder.
        part: indices of the fold's queries.
        checkpoints: epochs after which the fold is ranked.
        trials: initial settings, chosen without the fold; None for the start of the run.
        memories: query memories beside them, likewise; None for no memory.
    """

    def __init__(
        self,
        run: Trainings,
        name: str,
        part: list[int],
        checkpoints: list[int],
        trials: Trials | None,
        memories: MemoryTrials | None,
    ):
        examples, options, learns = run.examples, run.options, run.encoder is not None
        self._run, self._stage, self._checkpoints = run, run.stage(name), checkpoints
        self._training, self._ranked = without_fold(examples, part, options.seed)
        self._held_out = HeldOut(examples.subset(self._ranked), self._training, keywords=options.keywords)
        self._now = self._before = self._held_out.answers(run.start)
        self._start, self._strength = run.start, run.start.hop_strength.item()
        self._hops = [self._strength]
        if trials is not None:
            setting = trials.choose(without=part).setting
            self._start, self._strength = head_of(setting, examples.states.shape[1]), setting.hop_strength
            self._before = self._held_out.answers(self._start)
            self._hops = sorted({0.0, *HOP_STRENGTHS, trials.start.hop_strength})
        self._memory = None if memories is None else memories.choose(without=part).memory
        self._searched, self._tuned = self._start, self._before
        if self._memory is not None:
            self._searched = with_memory(self._start, memory_of(self._training, self._memory), 1.0)
            self._tuned = self._held_out.answers(self._searched)
        # An encoder that learned is served whole: its head alone would not lead back.
        self._shares = (1.0,) if learns else SHARES
        if self._memory is not None and not learns:
            self._shares = (0.0, *SHARES)  # the tuned search with its memory
        self._factors = (1.0,) if learns or trials is None else KEYWORD_FACTORS
        self._beginning = new_head(examples.states.shape[1], options, self._start)
        self._student: Student | None = None  # after the last checkpoint, if it was reached here
        self._plain: dict[int, Head] = {}  # by number of the checkpoint
        self._after: dict[int, Answers] = {}
        self._served: dict[ServingChoice, Answers] = {}
        if self._stage is not None:  # what an interrupted run has kept
            self._after = self._stage.several_answers({epoch: f"epoch-{epoch}" for epoch in checkpoints})
            self._served = {
                ServingChoice(*map(float, label.split())): answers
                for label, answers in self._stage.answers_in(_SERVED).items()
            }

    def finish(self) -> FoldAnswers:
        """Train, and return the answers of every checkpoint."""
        self._run.train(self._training, "validate", self._stage, self.checkpoint, start=self._start)
        return FoldAnswers(
            self._now,
            self._before,
            [self._after[epoch] for epoch in self._checkpoints],
            self._served,
            self._tuned,
            np.array(self._ranked, np.int64),
            None if self._student is None else self._rankings,
        )

    def checkpoint(self, epoch: Epoch, student: Student) -> bool:
        """Answer the fold, if this epoch is a checkpoint; at the last one in each way of serving."""
        run, stage = self._run, self._stage
        if epoch.number not in self._checkpoints:
            return run.tell("validate", stage, epoch, student)
        states = student.states(self._held_out.examples)
        if run.encoder is None and run.task is None:
            number = self._checkpoints.index(epoch.number) + 1
            self._plain[number] = deepcopy(student.head).cpu().eval()
        if epoch.number == self._checkpoints[-1]:
            answers = self._serve(student, states)
        else:
            answers = self._held_out.answers(student.head, states)
        self._after[epoch.number] = answers
        if stage is not None:
            stage.keep_answers(f"epoch-{epoch.number}", answers)
            if self._served:
                labels = {" ".join(map(repr, of)): answers for of, answers in self._served.items()}
                stage.keep_answers_in(_SERVED, labels)
        epoch = replace(epoch, before=self._now.means(), after=answers.means())
        return run.tell("validate", stage, epoch, student)

    def _serve(self, student: Student, states: Float32[np.ndarray, "queries encoder_dim"]) -> Answers:
        """Answer the fold in each way of serving the trained head; return the answers of the plainest."""
        self._student, run, memory = student, self._run, self._memory_of(student)
        here = None if memory is None else on_device_of(student.head, memory)
        for share in self._shares:
            head = part_of_the_way(self._beginning, student.head, share)
            if share:
                heads = {
                    ServingChoice(share, 0.0, factor): reweighed(head, factor) for factor in self._factors
                }
                self._served |= _answers_by_hop(self._held_out, heads, self._hops, states)
            if here is not None:  # which moves the answers more than a hop does: few are tried
                heads = {
                    ServingChoice(share, 0.0, factor, memory=part): with_memory(
                        reweighed(head, factor), here, part
                    )
                    for part in MEMORY_SHARES
                    for factor in self._factors[:2]
                }
                hops = sorted({0.0, self._strength})
                self._served |= _answers_by_hop(self._held_out, heads, hops, states)
        two_stages = run.encoder is None or run.options.stage_loss
        if two_stages and run.task is None and run.examples.snapshot.tokens is not None:
            trained, own = deepcopy(student.head).cpu(), None
            if student.encoder is not None:
                own = OwnQueries(*student.encoder.encode_tokens(self._held_out.examples.texts, "query"))
            searches = self._ranked, run.start, self._searched, self._beginning
            run.parts.append(FoldParts(*searches, trained, memory, self._plain, own))
        return self._served[ServingChoice(1.0, self._strength)]

    def _memory_of(self, student: Student) -> QueryMemory | None:
        """The memory beside the trained head; None without one."""
        if self._memory is None:
            return None
        return memory_of(self._training, self._memory, states=student.states(self._training))

    def _rankings(self, choice: CheckpointChoice) -> AnsweredQueries | None:
        """Rankings of the fold by the head of a choice; None if it was not kept."""
        examples, served = self._held_out.examples, choice.served
        if served is None:
            head = self._plain.get(choice.checkpoint)
            return None if head is None else ranked_examples(examples, head)
        assert self._student is not None
        head = as_served(self._student.head, self._beginning, served)
        if served.memory:
            head = with_memory(head, self._memory_of(self._student), served.memory)
        own = replace(examples, states=self._student.states(examples))
        return ranked_examples(own, head.eval())


def _answers_by_hop(
    held_out: HeldOut,
    heads: Mapping[ServingChoice, Head],
    hops: Sequence[float],
    states: Float32[np.ndarray, "queries encoder_dim"],
) -> dict[ServingChoice, Answers]:
    """Answers of heads that project alike, each with every hop strength."""
    by_head = held_out.answers_of_alike(list(heads.values()), hops, states)
    return {
        way._replace(hop=hop): answers
        for way, by_hop in zip(heads, by_head, strict=True)
        for hop, answers in by_hop.items()
    }


def checkpoints_of(epochs: int) -> list[int]:
    """Some ten epochs, the last among them."""
    count = min(epochs, _CHECKPOINTS)
    return sorted({round(epochs * (step + 1) / count) for step in range(count)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(JudgedCandidate):
    """A trained head and its evaluation.

    Attributes:
        epochs: number of epochs selected.
        headroom: estimate of the possible gain.
        share: share of the learned change that the head has (selection.py).
        keyword_factor: factor of the learned keyword weight that the head has.
        held_out: rankings of held-out queries by heads like this one that had not learned from them.
        folds: heads that were trained without each fold, for a second stage.
        second_stage: fitted behind this very model, in scope full; part of the head if it passed.
    """

    epochs: int
    headroom: Headroom
    share: float = 1.0
    keyword_factor: float = 1.0
    held_out: AnsweredQueries | None = None
    folds: tuple[FoldHeads, ...] = field(default=(), repr=False)
    second_stage: TrainedStage | None = None

    @property
    def goes_live(self) -> Literal["head", "tuned"] | None:
        """Candidate to promote; None keeps the live model."""
        if self.passed:
            return "head"
        return "tuned" if self.tuned is not None and self.tuned.passed else None


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
    tuned search and the head; gate.py says what is required of each.

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
        "seconds": round(time.monotonic() - started, 2),
    }
    if run is not None:
        run.finish()
    return TrainingResult(
        head=student.head,
        record=record,
        gate=gated,
        encoder=student.change,
        tuned=tuned,
        learned_from=queries_of(examples, options.seed) if options.scope == "head" and epochs else None,
        epochs=epochs,
        headroom=room,
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
    noise = None
    if examples.source == "judgements" and student.encoder is None:  # other kinds must be significant
        noise = probability_of_noise(examples, start, seed=seed)
    of_tuned, of_head = _gates(gate or Gate(), noise is not None, two=trials is not None)
    head = judge(
        crossed.now,
        crossed.after,
        of_head,
        belief=None if noise is None else belief_of("head", len(examples), noise),
        canary_overlap=overlap,
        seed=seed,
    )
    if trials is None or choice is None:
        return None, head
    if memories is not None:
        belief = None if noise is None else belief_of("memory", len(examples), noise)
        chosen, report = memories.judged(of_tuned, belief)
        if chosen.memory is not None:
            report, head = preferred(report, head, crossed.tuned, crossed.after)
            return memories.searched(chosen, report), head
    if choice.setting == trials.start:
        return None, head
    belief = None if noise is None else belief_of("tuned", len(examples), noise)
    report, head = preferred(trials.judged(choice, of_tuned, belief), head, crossed.tuned, crossed.after)
    return trials.tuned(choice, report), head


def _gates(gate: Gate, believed: bool, *, two: bool) -> tuple[Gate, Gate]:
    """The gates of a tuned search and of a head; of two that must be significant each has a part of α."""
    if believed or not two:
        return gate, gate
    tuned, head = (replace(gate, alpha=claim * gate.alpha) for claim in CLAIMS)
    return tuned, head


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


MOST_KEPT = 10_000  # embeddings that are kept, drawn where there are more: 15 MB at 384 numbers


def queries_of(examples: Examples, seed: int) -> LearnedQueries:
    """The queries of a training, for the record: texts of judgements, otherwise embeddings."""
    if examples.source == "judgements":
        return LearnedQueries(examples.texts)
    states = examples.states
    if len(states) > MOST_KEPT:
        drawn = np.random.default_rng(seed).choice(len(states), MOST_KEPT, replace=False)
        states = states[np.sort(drawn)]
    return LearnedQueries(None, states)
