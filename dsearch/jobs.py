"""The declaration of each job that learns: training and tuning.

Every option is declared here once, with its default, its help and the values that are allowed. The command
line (`dsearch train`), the HTTP schema (`POST …/train`) and the Python clients take theirs from here; a new
option of training is a field of `TrainingJob`, a line of `TrainOptions` for type checkers, and its use in
training/. The module imports neither torch nor the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

from dsearch.declared import Spell, Values, allowed_values, has_type, in_python, option, options_of
from dsearch.errors import InvalidRequest
from dsearch.fields import Excluded, Id, Judgements, Scores, Version
from dsearch.types import Mode


class Risk(NamedTuple):
    """Chances of error that the gate takes, see training/gate/gate.py.

    `alpha` is the largest p-value that counts as a gain; `harm` the largest probability that seen or unseen
    documents lose more than the margin.
    """

    alpha: float
    harm: float


RISKS = {"cautious": Risk(0.025, 0.05), "balanced": Risk(0.05, 0.10), "bold": Risk(0.20, 0.20)}
BALANCED, MARGIN = "balanced", 0.02

FEEDBACK = "feedback"
CONTEXT = "context"  # objective of a field

MODES: tuple[str, ...] = get_args(Mode)
SCOPES = ("head", "query", "full")
QUERY_SIDES = ("linear", "low-rank", "mlp")
OBJECTIVE_NAMES = (
    *("listwise", "judged", "marginal", "teacher", "reinforce"),
    CONTEXT,
)

Grades = Mapping[str, Mapping[str, float]]


class LearningOptions(TypedDict, total=False):
    """The options of `LearningJob` as keyword arguments; a test compares the two."""

    exclude: Mapping[str, Sequence[str]] | None
    seed: int
    promote: bool
    accept: bool
    risk: Literal["cautious", "balanced", "bold"]
    alpha: float | None
    margin: float


class TuneOptions(LearningOptions, total=False):
    """The options of `TuningJob` as keyword arguments."""


class SaveOptions(LearningOptions, total=False):
    """The options of `SavingJob`, beside its evidence."""

    encode_documents: bool


class TrainOptions(LearningOptions, total=False):
    """The options of `TrainingJob` as keyword arguments; a test compares the two."""

    teacher: Mapping[str, Mapping[str, float]] | None
    trusted_keys: Sequence[str] | None
    self_supervised: bool
    source: Literal["feedback"] | None
    scope: Literal["head", "query", "full"]
    encoder_training: Literal["lora", "all"] | None
    encoder_learning_rate: float | None
    objective: str | None
    field: str | None
    heads: int
    excitation: bool
    query_side: Literal["linear", "low-rank", "mlp"] | None
    epochs: int | None
    learning_rate: float | None
    batch_size: int | None
    negatives: int | None
    precision: Literal["float32", "bfloat16"] | None
    compiled: bool
    tune: bool
    memory: bool
    stage_loss: bool
    reranker: str | None


def request_of(job: LearningJob) -> dict[str, Any]:
    """The arguments of a client's call for a job: what was given, by the names of the fields."""
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(job):
        value = getattr(job, field.name)
        if field.name != "left_out" and value != field.default:
            arguments[field.name] = value
    return arguments


def check_grades(judgements: Grades | None) -> None:
    """Refuse grades that are not finite; the first is named.

    Args:
        judgements: query id → document id → grade; None has none.

    Raises:
        InvalidRequest: a grade is NaN or infinity.
    """
    for query, grades in (judgements or {}).items():
        for document, grade in grades.items():
            if not isfinite(grade):
                raise InvalidRequest(
                    f"grade {grade} of document {document!r} for query {query!r}; use finite numbers"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What decides whether a new version goes live."""

    seed: int = option(0, "random seed", low=0, high=2**31)
    promote: bool = option(True, "let the result answer, if it does better on held-out queries")
    accept: bool = option(False, "let the result answer, whatever held-out queries say")
    risk: str = option(
        BALANCED,
        "gate: chances of error: cautious (5 in 100 that all queries, or those about seen or unseen "
        "documents, lose more than the margin), balanced (10 in 100) or bold (20 in 100); where a gain must "
        "be significant p ≤ .025, .05 or .2",
        choices=tuple(RISKS),
    )
    alpha: float | None = option(
        None,
        "gate: the gain must be significant: largest p-value that counts as one",
        low=0,
        high=1,
        inside=True,
    )
    margin: float = option(
        MARGIN, "gate: tolerated loss of average precision on seen or unseen documents", low=0, high=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningJob(GateOptions):
    """Data and options common to training and tuning.

    Attributes:
        queries: query id → text.
        judgements: query id → document id → grade, above 0 for documents that answer the query.
        exclude: query id → documents that take no part in its ranking. Scope full and second stages learn
            nothing from them; the losses of the other scopes take them for documents without a judgement.
        left_out: lines of the data that were left out before, by kind; for the record.
    """

    queries: Mapping[str, str] | None = None
    judgements: Grades | None = None
    exclude: Excluded | None = None
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return every field by its name, as JSON for a task."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def check(self, spell: Spell = in_python) -> None:
        """Refuse options that exclude each other, before anything is opened.

        Args:
            spell: function that spells the names of options in messages.

        Raises:
            InvalidRequest: the message says what to give, or to leave out.
        """
        if (self.queries is None) != (self.judgements is None):
            raise InvalidRequest("queries and judgements belong together; give both or neither")
        check_grades(self.judgements)
        for name, (declared, about) in options_of(type(self)).items():
            value = getattr(self, name)
            if value is not declared.default and not (has_type(value, declared) and about.allows(value)):
                raise InvalidRequest(f"{spell(name, value)}; use {allowed_values(declared, about)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningJob(LearningJob):
    """Choose keyword weight, k1, b and hop strength on judged queries."""

    def check(self, spell: Spell = in_python) -> None:
        """Refuse a job without judgements; see `LearningJob.check`."""
        LearningJob.check(self, spell)  # with slots, super() would name the class of before they were added
        if not self.judgements:
            raise InvalidRequest("there is no judgement to tune on; give queries and judgements")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(LearningJob):
    """Train a new version of a collection's model. None leaves an option to the defaults of its scope.

    It learns from one of: judgements (`queries` with `judgements`), the corpus (`self_supervised`), clicks
    (`source="feedback"`), or a field of the documents (`objective="context"` with `field`).

    Attributes:
        teacher: query id → document id → score, for the objective teacher.
        trusted_keys: API keys (or client:ID) whose clicks judge what others' clicks taught; with
            `source="feedback"`.
    """

    teacher: Judgements | None = None
    trusted_keys: (
        Annotated[
            Sequence[Id],
            Values("1 to 1000 ids of keys", shortest=1, longest=1000),
        ]
        | None
    ) = None
    self_supervised: bool = option(False, "learn from the corpus alone, without judgements")
    source: str | None = option(
        None,
        "learn from clicks and thumbs (feedback); judgements, if given, then decide whether it goes live",
        choices=(FEEDBACK,),
        flag="--from",
        alias="from",
    )
    scope: str = option(
        "head",
        "parts that learn: head (seconds); query: the query encoder too (minutes); full: the encoders of "
        "queries and documents, which encodes every document again",
        choices=SCOPES,
    )
    encoder_training: str | None = option(
        None,
        "method for the encoder: lora (scope query), or all of its weights (scope full)",
        choices=("lora", "all"),
    )
    encoder_learning_rate: float | None = option(None, "rate of the encoder", low=0, high=0.1, inside=True)
    objective: str | None = option(None, "training objective", choices=OBJECTIVE_NAMES)
    field: str | None = option(
        None,
        "objective context: metadata field (or value) of which every document gets a learned value; searches "
        "stay as they are",
        longest=200,
    )
    heads: int = option(1, "number of query heads", low=1, high=64)
    excitation: bool = option(False, "let each query move the shares of several heads")
    query_side: str | None = option(
        None,
        "shape of the query projection; linear for one head and low-rank for several by default",
        choices=QUERY_SIDES,
    )
    epochs: int | None = option(None, "largest number of passes over the examples", low=1, high=1000)
    learning_rate: float | None = option(None, "learning rate of the projections", low=0, high=1, inside=True)
    batch_size: int | None = option(None, "examples per step", low=1, high=65536)
    negatives: int | None = option(
        None, "scope full: hard negatives per query, drawn from the index as it learns", low=0, high=64
    )
    precision: str | None = option(
        None, "number format: bfloat16 by autocast, embeddings in 2 bytes", choices=("float32", "bfloat16")
    )
    compiled: bool = option(False, "scope full: run the transformer through torch.compile", flag="--compile")
    tune: bool = option(
        True, "choose keyword weight, k1, b and hop strength first; they may go live where a head may not"
    )
    memory: bool = option(True, "recall judgements of similar queries, where held-out queries gain by it")
    stage_loss: bool = option(False, "scopes query, full: the encoder learns by a second stage too")
    reranker: str | None = option(None, "second stage: a CrossEncoder or MultiVectorEncoder", longest=500)

    def check(self, spell: Spell = in_python) -> None:
        """Refuse options that exclude each other; see `LearningJob.check`."""
        LearningJob.check(self, spell)
        if self.query_side == "linear" and self.heads > 1:
            raise InvalidRequest("query_side='linear' has one head; use low-rank or mlp for several")
        if self.excitation and self.heads == 1:
            raise InvalidRequest("excitation moves the shares of several heads; use heads=2 or more")
        if self.objective == CONTEXT or self.field is not None:
            self._check_values(spell)
            return
        self._check_source(spell)
        self._check_scope(spell)

    def _check_values(self, spell: Spell) -> None:
        """Values of a field are learned from documents, and leave the ranking as it is."""
        if self.objective != CONTEXT or self.field is None:
            raise InvalidRequest(
                f"{spell('objective', CONTEXT)} and {spell('field', None)} belong together; give both or "
                "neither"
            )
        names = [
            "source", "trusted_keys", "self_supervised", "judgements", "teacher", "exclude", "scope",
            "encoder_training", "encoder_learning_rate", "negatives", "precision", "compiled",
            "heads", "query_side", "excitation",
        ]  # fmt: skip
        if refused := self._chosen(names, spell):
            objective = spell("objective", self.objective)
            raise InvalidRequest(
                f"{objective} learns from documents and leaves searches as they are; leave out {refused}"
            )

    def _check_source(self, spell: Spell) -> None:
        """There is one source of examples."""
        other = self._chosen(["self_supervised", "teacher"], spell)
        if self.trusted_keys is not None:
            if self.source is None:
                raise InvalidRequest(f"{spell('trusted_keys', None)} needs {spell('source', FEEDBACK)}")
            if not self.trusted_keys:
                raise InvalidRequest(f"{spell('trusted_keys', None)} is empty; give ids of keys")
            if self.judgements is not None:
                both = f"{spell('trusted_keys', None)} or {spell('judgements', None)}"
                raise InvalidRequest(f"give {both} to judge by, not both")
        if self.source is not None:
            if refused := self._chosen(["self_supervised", "teacher", "scope"], spell):
                source = spell("source", self.source)
                raise InvalidRequest(f"{source} trains a head on clicks; leave out {refused}")
        elif self.scope == "full" and (self.judgements is None or other):
            raise InvalidRequest(
                f"{spell('scope', 'full')} learns from judgements alone; give {spell('judgements', None)}"
                + (f", and leave out {other}" if other else "")
            )
        elif (self.judgements is None) == (not self.self_supervised):
            raise InvalidRequest(
                f"give one of: {spell('judgements', None)}; {spell('self_supervised', None)}; "
                f"{spell('source', FEEDBACK)}; {spell('objective', CONTEXT)} with {spell('field', None)}"
            )
        if self.self_supervised and self.teacher is not None:
            raise InvalidRequest(f"{other}: the corpus has no scores of a teacher; leave one of them out")

    def _check_scope(self, spell: Spell) -> None:
        """Each scope has options of its own."""
        if self.scope == "head" and (
            names := self._chosen(["encoder_training", "encoder_learning_rate"], spell)
        ):
            raise InvalidRequest(f"{names}: of scope query or full; leave that out")
        if self.scope != "full" and (names := self._chosen(["negatives", "compiled"], spell)):
            raise InvalidRequest(f"{names}: of {spell('scope', 'full')} alone; leave that out")
        if self.scope == "full" and (names := self._chosen(["objective", "heads", "query_side"], in_python)):
            raise InvalidRequest(
                f"{names} with {spell('scope', 'full')}, which has no objective, one head and no query_side; "
                "leave that out"
            )

    def _chosen(self, names: Sequence[str], spell: Spell) -> str:
        """Those of the options that were chosen, with commas between them."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        chosen = [(name, value) for name in names if (value := getattr(self, name)) != defaults[name]]
        return ", ".join(spell(name, None if isinstance(of, Mapping) else of) for name, of in chosen)


@dataclass(frozen=True, slots=True)
class JudgedQueries:
    """Evidence for or against a version: held-out queries, which took no part in its training.

    Attributes:
        queries: query id → text.
        judgements: query id → document id → grade, above 0 for documents that answer the query.
        training: judgements that it was trained on, to judge seen and unseen documents apart.
    """

    queries: Mapping[str, str]
    judgements: Grades
    training: Grades | None = None


@dataclass(frozen=True, slots=True)
class ExampleScores:
    """Evidence for or against a version: one number for each held-out example; more is better.

    Attributes:
        before: score of each held-out example by the live version.
        after: score of each by the new version, in the same order; more is better.
        measure: name of the score of an example, for the report.
        live: version that before are scores of: if another one is live by the time of promotion, the new one
            is kept and not promoted; the one that is live when the request comes if not given.
    """

    before: Scores
    after: Scores
    measure: Annotated[str, Values("1 to 100 characters", shortest=1, longest=100)] = "score"
    live: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingJob(LearningJob):
    """Judge what was trained elsewhere, and keep it as a version, which answers by evidence alone.

    Attributes:
        training: judgements that it was trained on.
        before: score of each held-out example by the live version.
        after: score of each by this one, in the same order; more is better.
        live: version that before are scores of; see `ExampleScores`.
    """

    training: Judgements | None = None
    before: Scores | None = None
    after: Scores | None = None
    live: Version | None = None
    measure: str = option("score", "name of the score of an example, for the report", longest=100)
    encode_documents: bool = option(False, "whether the encoder that learned encodes every document again")

    def check(self, spell: Spell = in_python) -> None:
        """Refuse evidence of two kinds, and scores that are no pairs; see `LearningJob.check`."""
        LearningJob.check(self, spell)
        if self.training is not None and self.judgements is None:
            raise InvalidRequest("training without judgements; give held-out queries and judgements too")
        if (self.before is None) != (self.after is None):
            raise InvalidRequest("before and after belong together; give a score of each example by both")
        if self.before is None or self.after is None:
            return
        if self.judgements is not None:
            raise InvalidRequest("judgements and scores; give one kind of evidence")
        if not self.before and not self.after:
            raise InvalidRequest("no scores of examples; give one of each by both versions, or no evidence")
        before, after = len(self.before), len(self.after)
        if before != after:
            raise InvalidRequest(f"{before} scores before and {after} after; give one each for an example")
        if not all(isfinite(score) for score in (*self.before, *self.after)):
            raise InvalidRequest("scores that are not finite; leave such examples out, or bound the score")


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Score several systems on judged queries.

    Attributes:
        queries: query id → text.
        judgements: query id → document id → grade.
        model: a trained version beside dense, keyword and hybrid; the live one when None.
        systems: the systems to compare in their place: `{"model": …, "mode": …}`; None or absent: the live
            model, hybrid.
        training: judgements that were trained on, to score seen and unseen documents apart.
    """

    queries: Mapping[str, str]
    judgements: Grades
    model: str | None = None
    systems: Sequence[Mapping[str, str | None]] | None = None
    training: Grades | None = None

    def check(self) -> None:
        """Refuse a job without judgements, or with models named twice.

        Raises:
            InvalidRequest: the message says what to give, or to leave out.
        """
        if not self.judgements:
            raise InvalidRequest("there is no judgement to score against; give queries and judgements")
        check_grades(self.judgements)
        check_grades(self.training)
        if self.systems is not None and self.model is not None:
            raise InvalidRequest("model and systems; give the model within systems, or model alone")
        for system in self.systems or ():
            if system.get("mode") not in (None, *MODES):
                raise InvalidRequest(f"mode={system['mode']!r}; use one of {', '.join(MODES)}")
