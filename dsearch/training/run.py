"""Run a `TrainingJob` or a `TuningJob` on a collection, for command line, server and Python alike.

    job → examples → training from the live tuned search → gate → `JobResult`; `register` stores it

A run's identity, by which an interrupted one is resumed: the digest of its data, the state of the documents,
its options and its parent version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dsearch.declared import options_of
from dsearch.engine import UNTRAINED, Collection
from dsearch.engine.models.ledger import Account
from dsearch.engine.search.queries import tokens_of
from dsearch.errors import InvalidRequest, amount
from dsearch.jobs import LearningJob, TrainingJob, TuningJob
from dsearch.store import MemoryRow
from dsearch.training.confidence import made_queries, ranked_examples, with_calibration
from dsearch.training.data.examples import Examples, examples_from_corpus, examples_from_judgements
from dsearch.training.finetune.feedback import (
    FromFeedback,
    TrustedSlice,
    examples_from_feedback,
    finetune_from_feedback,
)
from dsearch.training.finetune.full import finetune_full
from dsearch.training.finetune.head import TrainingResult, finetune
from dsearch.training.finetune.outcomes import remember_outcomes, rows_of_feedback
from dsearch.training.finetune.second_stage import TrainedStage, strength_behind, train_second_stage
from dsearch.training.finetune.user_queries import ServedQueries, logged_queries, with_judging_queries
from dsearch.training.finetune.values import finetune_values
from dsearch.training.full_task import FullOptions
from dsearch.training.gate.gate import CLAIMS, Gate
from dsearch.training.loop.loop import Observer
from dsearch.training.loop.run_folder import RunFolder
from dsearch.training.memory import with_remembered
from dsearch.training.options import (
    TrainingOptions,
    ValueOptions,
    check_stage_options,
    feedback_options,
    query_options,
    reranker_of,
    self_supervised_options,
)
from dsearch.training.registry import (
    JobResult,
    starting_version,
)
from dsearch.training.tune import tune
from dsearch.training.values import ValueExamples, value_examples

if TYPE_CHECKING:
    from dsearch.training.head_task import MakeTask
    from dsearch.training.loop.distributed import Processes

OF_GATE = {"risk", "alpha", "margin"}  # options of a job; another margin is that of hard negatives
ROWS_FIRST = "the same feedback as rows of the query memory passed, and answers instead"

OpenRun = Callable[[Mapping[str, Any], bool], RunFolder]
"""Opens the folder of a run: (identity of the run, True if another process has made the folder) → folder."""

MakeShardTask = Callable[[TrainingOptions], "MakeTask"]
"""Makes the steps of a training whose documents lie on shards."""


def run_training(
    collection: Collection,
    job: TrainingJob,
    observer: Observer | None = None,
    *,
    open_run: OpenRun | None = None,
    device: str = "cpu",
    processes: Processes | None = None,
    make_task: MakeShardTask | None = None,
) -> JobResult:
    """Train as the job says; nothing is registered.

    Args:
        collection: collection to learn from; may be readonly.
        job: data and options.
        observer: receives the progress; may stop it.
        open_run: opens the folder for checkpoints and metrics; without one there are none.
        device: runs the arithmetic: "cpu", "cuda".
        processes: processes that train together, in scope full.
        make_task: makes the steps over shards, for heads that learn from judgements or the corpus.

    Raises:
        InvalidRequest: options that exclude each other; nothing to learn from.
        TrainingDiverged: NaN or infinity in the loss.
        Cancelled: the observer stopped it.
    """
    job.check()
    check_stage_options(job, collection)
    live = collection.live_model
    folders: list[RunFolder] = []

    def open_noted(identity: Mapping[str, Any], join: bool) -> RunFolder:
        assert open_run is not None
        folders.append(open_run({**identity, "live_at_start": live}, join))
        folders[-1].hold()
        return folders[-1]

    run = _TrainingRun(
        collection,
        job,
        observer or Observer(),
        None if open_run is None else open_noted,
        device,
        processes,
        make_task,
        starting_version(collection) if job.field is None else live,
    )
    if job.field is not None:
        learned = run.values(job.field)
    elif job.source is not None:
        learned = run.feedback()
    else:
        learned = run.full() if job.scope == "full" else run.head()
    # A resumed run may only replace the version that was live when it first began, which its folder noted.
    first = processes is None or processes.first
    learned = replace(learned, run=folders[-1] if folders and first else None)
    return learned.in_place_of(folders[-1].live_at_start if folders else live)


def run_tuning(collection: Collection, job: TuningJob, observer: Observer | None = None) -> JobResult:
    """Choose keyword weight, k1, b and hop strength; nothing is registered.

    Raises:
        InvalidRequest: too few judged queries.
    """
    job.check()
    live = collection.live_model
    examples = judged_examples(collection, job)
    account = Account.of(collection.store, examples.texts)
    gate = gate_of(job, account)
    tuned = tune(examples, gate=gate, seed=job.seed, observer=observer)
    judged = ranked_examples(examples, tuned.head)
    tuned = replace(tuned, record=with_calibration(tuned.record, collection, tuned.head, judged))
    stage = None
    if not job.accept:
        stage = strength_behind(collection, tuned, examples, gate=gate, seed=job.seed)
    learned = JobResult(tuned, UNTRAINED, len(examples), examples.left_out, second_stage=stage)
    return learned.entered(account).in_place_of(live)


def judged_examples(
    collection: Collection, job: LearningJob, teacher: Mapping[str, Mapping[str, float]] | None = None
) -> Examples:
    """The judged queries of a job as examples."""
    if job.queries is None or job.judgements is None:
        raise InvalidRequest("there are no judgements; give queries and judgements")
    grades = {query: {id: float(grade) for id, grade in of.items()} for query, of in job.judgements.items()}
    queries, grades = with_remembered(collection, job.queries, grades)
    examples = examples_from_judgements(collection, queries, grades, job.exclude, teacher=teacher)
    return replace(examples, left_out=dict(job.left_out)) if job.left_out else examples


def gate_of(job: LearningJob, account: Account) -> Gate:
    """The gate of a job, with the α that its judged queries have left; later tries must be significant."""
    gate = Gate.of_risk(job.risk, alpha=job.alpha, margin=job.margin)
    significant = gate.significant or account.tries.count > 0
    return replace(gate, alpha=account.alpha(gate.alpha), significant=significant)


@dataclass(frozen=True, slots=True)
class _TrainingRun:
    """One training: its job and surroundings, and a method for each kind of training."""

    collection: Collection
    job: TrainingJob
    observer: Observer
    open_run: OpenRun | None
    device: str
    processes: Processes | None
    make_task: MakeShardTask | None
    parent: str

    def head(self) -> JobResult:
        """Train a head, and perhaps the query encoder, on judgements or on sentences of the documents."""
        job, collection = self.job, self.collection
        examples, options, judging = self._examples_of_head()
        account = Account.of(collection.store, examples.texts)
        gate = gate_of(job, account)
        trained = finetune(
            examples,
            options,
            gate=gate,
            start=collection.head(self.parent),
            encoder=collection.encoder if options.scope == "query" else None,
            device=self.device,
            observer=self.observer,
            run=self._run(examples, options),
            task=None if self.make_task is None else self.make_task(options),
        )
        if job.self_supervised and self.make_task is None and trained.encoder is None:
            judges = ServedQueries(judging, logged_queries(collection, job.seed))
            trained = judges.judged(collection, trained, gate, seed=job.seed, observer=self.observer)
        if self.make_task is None:
            trained = self._calibrated(trained, examples)
        stage = self._second_stage(trained, examples, gate)
        learned = JobResult(trained, self.parent, len(examples), examples.left_out, stage)
        return learned.entered(account)

    def _examples_of_head(self) -> tuple[Examples, TrainingOptions, Examples | None]:
        """Examples and options; of the corpus alone also queries of documents held back, to judge by."""
        job, collection = self.job, self.collection
        if job.self_supervised:
            examples = examples_from_corpus(collection, seed=job.seed)
            documents = len(examples.snapshot.visible())
            taught = len({at.item() for at, _ in examples.relevant})
            self.observer.remark(
                f"queries: {amount(len(examples), 'sentence')} and titles of {taught} of "
                f"{amount(documents, 'document')}"
            )
            options = self_supervised_options(**self._chosen())
            examples, judging = with_judging_queries(collection, examples, job.seed)
        else:
            examples = judged_examples(collection, job, job.teacher)
            make = query_options if job.scope == "query" else TrainingOptions
            options, judging = make(**self._chosen()), None
        return examples, options, judging

    def _second_stage(self, trained: TrainingResult, examples: Examples, gate: Gate) -> TrainedStage | None:
        """Train a second stage to follow what goes live, if the collection keeps tokens."""
        collection, job = self.collection, self.job
        base = trained.goes_live or ("start" if collection.live_model == self.parent else None)
        if base is None or examples.snapshot.tokens is None or not trained.folds or job.accept:
            return None
        if not any(base in fold.heads for fold in trained.folds):
            self.observer.remark(
                "no second stage is trained: the held-out heads that it would follow were not kept, as in a "
                "resumed run or by an earlier checkpoint of an encoder that learned"
            )
            return None
        tokens = tokens_of(collection, examples.texts, examples.snapshot)
        seed, reranker = trained.record["options"]["seed"], reranker_of(job.reranker)
        return train_second_stage(
            examples, tokens, trained.folds, base, gate=gate, seed=seed, reranker=reranker
        )

    def _calibrated(self, trained: TrainingResult, examples: Examples) -> TrainingResult:
        """Record with the head and with the tuned search how likely their first hits are right."""
        collection, change = self.collection, trained.encoder
        judged = trained.held_out if examples.source == "judgements" else None
        queries = made_queries(collection) if change is None else None  # encoded once for both heads
        record = with_calibration(trained.record, collection, trained.head, judged, change, by=queries)
        if (tuned := trained.tuned) is not None:
            unlearned = None if tuned.head.memory is not None else ranked_examples(examples, tuned.head)
            tuned = replace(
                tuned, record=with_calibration(tuned.record, collection, tuned.head, unlearned, by=queries)
            )
        return replace(trained, record=record, tuned=tuned)

    def feedback(self) -> JobResult:
        """Train a head on clicks, judged by keys that are trusted and not learned from, or by judgements."""
        job, collection = self.job, self.collection
        keys = tuple(job.trusted_keys or ())
        source = examples_from_feedback(collection, without=keys)
        self.observer.remark(source.to_text())
        trusted = None
        if keys:
            trusted = examples_from_feedback(collection, propensities=source.propensities, only=keys)
        elif job.judgements is not None:
            trusted = judged_examples(collection, job)
        options, live = feedback_options(**self._chosen()), collection.live_model
        # The gate ranks by inner products of this encoder's embeddings: for such versions alone.
        comparable = collection.encoder_of(live).identity == collection.encoder.identity
        comparable = comparable and collection.head(live).learned_score is None
        if not comparable:
            self.observer.remark(
                f"{live}, which is live, has an encoder or a score of its own: the gate compares with "
                f"{self.parent}"
            )
        rows: list[MemoryRow] = []
        left_out: dict[str, int] = {}
        if trusted is not None and comparable and job.memory:
            rows, left_out = rows_of_feedback(collection, source.pages, source.propensities)
        judging_texts = [] if trusted is None else _examples_of(trusted).texts
        account = Account.of(collection.store, judging_texts)
        of_rows = of_head = gate_of(job, account)
        if rows:  # one of two may go live: each is judged by itself, with its part of α
            of_rows, of_head = (replace(of_head, alpha=claim * of_head.alpha) for claim in CLAIMS)
        trained = finetune_from_feedback(
            source,
            trusted,
            options,
            gate=of_head,
            start=collection.head(self.parent),
            live=collection.head(live) if comparable else None,
            device=self.device,
            observer=self.observer,
            run=self._run(source.examples, options),
        )
        memory = None
        if trusted is not None and rows:
            judging = TrustedSlice.of(source.examples, trusted, options)
            seed = options.seed
            memory = remember_outcomes(collection, rows, judging, gate=of_rows, left_out=left_out, seed=seed)
        if memory is not None:
            report = trained.gate
            if memory.gate.passed and report.passed:
                report = replace(report, verdict="cannot tell", reason=f"{report.reason}; {ROWS_FIRST}")
            trained = trained.judged(report, outcomes=memory.record)
            self.observer.remark(
                f"{amount(len(memory.rows), 'row')} of past queries: {memory.gate.verdict}, "
                f"{memory.gate.reason}"
            )
        learned = JobResult(
            trained, self.parent, len(source.examples), source.examples.left_out, outcomes=memory
        )
        return learned.entered(account)

    def full(self) -> JobResult:
        """Train the encoders of queries and documents."""
        examples = judged_examples(self.collection, self.job)
        options = FullOptions(**_only(FullOptions, self._chosen()))
        account = Account.of(self.collection.store, examples.texts)
        trained = finetune_full(
            self.collection,
            examples,
            options,
            gate=gate_of(self.job, account),
            start=self.collection.head(self.parent),
            processes=self.processes,
            observer=self.observer,
            run=self._run(examples, options),
            second_stage=not self.job.accept,
        )
        stage = trained.second_stage
        learned = JobResult(trained, self.parent, len(examples), examples.left_out, second_stage=stage)
        return learned.entered(account)

    def values(self, field: str) -> JobResult:
        """Learn the values of a field behind the live version."""
        start = self.collection.stored_head(self.parent)
        if start.learned_score is not None:
            raise InvalidRequest(
                f"{self.parent}, which is live, has a learned score, and values are learned behind an inner "
                "product; promote another version first"
            )
        examples = value_examples(self.collection, field, self.parent)
        options = ValueOptions(**_only(ValueOptions, self._chosen()))
        documents = examples.snapshot.rows(examples.positions).tolist()
        account = Account.of(self.collection.store, (f"{field} of row {row}" for row in documents))
        trained = finetune_values(
            examples,
            options,
            gate=gate_of(self.job, account),
            start=start,
            device=self.device,
            observer=self.observer,
            run=self._run(examples, options),
        )
        return JobResult(trained, self.parent, len(examples), examples.left_out).entered(account)

    def _chosen(self) -> dict[str, Any]:
        """The options that were chosen, by the names of `TrainingOptions` and `FullOptions`."""
        job = self.job
        named = {*TrainingOptions.__dataclass_fields__, *FullOptions.__dataclass_fields__} - OF_GATE
        chosen = {
            name: getattr(job, name)
            for name, (declared, _) in options_of(TrainingJob).items()
            if name in named and getattr(job, name) != declared.default
        }
        if job.encoder_training is not None:
            chosen["encoder_method"] = job.encoder_training
        return chosen

    def _run(
        self, examples: Examples | ValueExamples, options: TrainingOptions | ValueOptions | FullOptions
    ) -> RunFolder | None:
        """The folder of the run: made by the first process, opened by the others."""
        if self.open_run is None:
            return None
        snapshot = examples.snapshot
        identity = {
            "data": examples.digest,
            "documents": {"generation": snapshot.generation.number, "sequence": snapshot.sequence},
            "options": asdict(options),
            "defaults": asdict(options.__class__()),
            "parent": self.parent,
        }
        first = self.processes is None or self.processes.first
        folder = None
        for making in (True, False):
            if first == making:
                folder = self.open_run(identity, not making)
            if self.processes is not None:
                self.processes.agree(False)  # waits for all
        assert folder is not None
        if first:
            self.observer.remark(f"metrics and checkpoints: {folder.path}")
        return folder


def _examples_of(trusted: Examples | FromFeedback) -> Examples:
    return trusted.examples if isinstance(trusted, FromFeedback) else trusted


def _only(options: type, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the chosen options that a kind of training has."""
    return {name: value for name, value in chosen.items() if name in options.__dataclass_fields__}
