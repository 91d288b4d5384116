"""Calls that begin tasks (training, evaluation, upkeep), and those about tasks.

Whoever answers a call in this process has ended its task when the call returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from dsearch.declared import IN_PLACE, Values
from dsearch.fields import (
    MAX_JUDGED_QUERIES,
    MAX_QUERY_CHARACTERS,
    Judgements,
    KeyKind,
    PageSize,
    Queries,
    Version,
)
from dsearch.jobs import ExampleScores, GateOptions, SavingJob, TrainingJob, TuningJob
from dsearch.operations.declared import Call, call
from dsearch.results import Task, TaskPage
from dsearch.types import Mode, TaskState

Options = Mapping[str, Any]
_STATES = "queued, running, done, failed, cancelled or interrupted"


@call("POST", "/v1/collections/{collection}/files", scope="write", repeatable=False)
class AddFiles(Call[Task]):
    """Read files as `dsearch index` reads them, and store them as documents.

    The task's result (`FilesResult`) names each file with its documents, or why it has none. A file of the
    same name as one that was sent before replaces it.

    Args:
        collection: its name.
        files: paths, which are sent under the names of the files; or names with paths or bytes, such as
            `{"notes/a.md": "a.md", "b.txt": b"text"}`. A server takes 1000 files and 256 MiB in one call.
    """

    collection: str
    files: Any


@call("POST", "/v1/collections/{collection}/train", renamed={"source": "from"}, repeatable=False)
class Train(Call[Task]):
    """Train a new version, and promote it if held-out queries show that it is better.

    Args:
        collection: its name.
        queries: query id → text, with judgements.
        judgements: query id → document id → grade.
        options: what else to learn from, and how: see `dsearch.jobs.TrainingJob`.
    """

    collection: str
    _: KW_ONLY
    queries: Queries | None = None
    judgements: Judgements | None = None
    options: Annotated[Options, TrainingJob] = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/tune", repeatable=False)
class Tune(Call[Task]):
    """Choose keyword weight, k1 and b, and hop strength on judgements; a few dozen queries suffice.

    They are kept as a version, which is live if held-out queries say that it is better; later training starts
    from it.

    Args:
        collection: its name.
        queries: query id → text.
        judgements: query id → document id → grade.
        options: how: see `dsearch.jobs.TuningJob`.
    """

    collection: str
    queries: Queries
    judgements: Judgements
    _: KW_ONLY
    options: Annotated[Options, TuningJob] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass(frozen=True, slots=True)
class SystemGiven:
    """One way to search.

    Attributes:
        model: a version; the live one when it is not given.
        mode: legs of the search.
    """

    model: Version | None = None
    mode: Annotated[Mode, Values("hybrid, dense or keyword")] = "hybrid"


@call("POST", "/v1/collections/{collection}/evaluate", repeatable=False)
class Evaluate(Call[Task]):
    """Score dense, keyword, hybrid and trained search on judgements, side by side.

    Args:
        collection: its name.
        queries: query id → text.
        judgements: query id → document id → grade.
        model: a trained version next to dense, keyword and hybrid; the live one when it is not given.
        systems: what to compare, against the first of them; meaning, words, both and the trained version when
            they are not given. With two or more, `comparison` in the result names the queries that the second
            wins and loses.
        training: judgements that were trained on: queries with a document that is relevant there (seen) and
            those without (unseen) are then scored apart too.
    """

    collection: str
    queries: Queries
    judgements: Judgements
    _: KW_ONLY
    model: Version | None = None
    systems: (
        Annotated[Sequence[Mapping[str, str]], Values(shortest=1, longest=8, sent=Sequence[SystemGiven])]
        | None
    ) = None
    training: Judgements | None = None


@call("POST", "/v1/collections/{collection}/refresh", repeatable=False)
class Refresh(Call[Task]):
    """Rebuild the index from the stored embeddings, its keys projected by the live model.

    What is not given stays as it was.

    Args:
        collection: its name.
        kind: how keys are kept from now on: auto, or one of the kinds that the statistics name.
        recall_target: recall@10 that an approximate kind is tuned for.
        memory_bytes: what the keys may take when auto chooses.
        queries: texts to tune an approximate kind by; sentences of the documents when not given.
    """

    collection: str
    _: KW_ONLY
    kind: KeyKind | None = None
    recall_target: Annotated[float, Values("a number above 0, up to 1", above=0, high=1)] | None = None
    memory_bytes: Annotated[int, Values("an integer from 1", low=1)] | None = None
    queries: (
        Annotated[
            Sequence[Annotated[str, Values(longest=MAX_QUERY_CHARACTERS)]],
            Values(
                f"1 to {MAX_JUDGED_QUERIES} texts, {MAX_QUERY_CHARACTERS} characters each",
                shortest=1,
                longest=MAX_JUDGED_QUERIES,
            ),
        ]
        | None
    ) = None


@call("POST", "/v1/collections/{collection}/compact", repeatable=False)
class Compact(Call[Task]):
    """Compact the files, and make deleted and replaced data unreadable: no file contains it afterwards.

    Searches go on; while the database is written anew, writes wait. The result's `complete` says whether
    nothing is left; where it is false, `held` names generations that another process reads, `models` versions
    with an index of their own, `releases` what shards of a cluster answer with until the next publishing, and
    `note` says what to do about these.
    """

    collection: str


@call("POST", "/v1/collections/{collection}/migrate", repeatable=False)
class Migrate(Call[Task]):
    """Encode a collection with the next encoder in addition to the present state, then switch.

    Searches go on all the time, writes until the switch, at which some may be told to try again (503).
    Trained models stay behind. Which encoder it is the settings of whoever answers say (`next_encoder`, else
    `encoder`).

    Args:
        collection: its name.
        encoder: what it must be; it is compared and nothing else: a request cannot choose an encoder.
    """

    collection: str
    _: KW_ONLY
    encoder: Annotated[str, Values("a name", shortest=1, longest=500)] | None = None


@call("POST", "/v1/collections/{collection}/models/save", repeatable=False)
class SaveModel(Call[Task]):
    """Judge a trained model, and promote it if evidence shows that it is better.

    Args:
        collection: its name.
        layer: a trained layer (also inside of `AveragedModel` and the like), its head, or the head's tensors.
        evidence: held-out judged queries (`JudgedQueries`), scores by both versions (`ExampleScores`), or a
            function that scores held-out examples by a layer, one number each, more is better: it is called
            here, with the live version's layer and with this one. With encode_documents the call waits until
            a server has encoded them, and then scores and `judge_model` decide. None: the version is kept and
            does not answer.
        measure: name of the function's score, for the report.
        encoder: query encoder that learned with it; that of the layer when None.
        parent: version that it was trained from; that of the layer, else the live one, when None.
        record: what should be known of it later, as JSON.
        options: see `dsearch.jobs.SavingJob`.
    """

    collection: str
    layer: Any
    _: KW_ONLY
    evidence: Any = None
    measure: str | None = None
    encoder: Any = None
    parent: str | None = None
    record: Mapping[str, Any] | None = None
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass(frozen=True, slots=True)
class EncoderMethod:
    """Method by which an encoder learned.

    Attributes:
        method: of the training.
        rank: of the LoRA matrices.
        alpha: of the LoRA matrices.
    """

    method: Literal["lora", "all"] = "lora"
    rank: Annotated[int, Values("an integer from 1 to 1024", low=1, high=1024)] = 16
    alpha: Annotated[int, Values("an integer from 1 to 4096", low=1, high=4096)] = 32


@dataclasses.dataclass(frozen=True, slots=True)
class SaveRequest:
    """Evidence for a model that was trained elsewhere, and what the gate asks.

    Attributes:
        queries: query id → text.
        judgements: query id → document id → grade.
        parent: version that it was trained from; the live one if not given.
        record: what should be known of it later.
        encoder: of the tensors under query_encoder/.
    """

    queries: Queries | None = None
    judgements: Judgements | None = None
    parent: Version | None = None
    record: Mapping[str, Any] | None = None
    encoder: EncoderMethod | None = None
    options: Annotated[Options, SavingJob] = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/models/{version}/judge", repeatable=False)
class JudgeModel(Call[Task]):
    """Judge a version that was kept without a verdict, and promote it if the scores show that it is better.

    The scores are of held-out examples, by the live version and by this one. A version is judged once, and
    promoted in place of `live` only: if another one became live meanwhile, it is kept, and can be judged
    again.

    Args:
        collection: its name.
        version: one that does not answer and was not judged before.
        evidence: scores of held-out examples by the live version and by this one.
        options: promote, accept, risk, alpha, margin and seed: see `dsearch.jobs.SavingJob`.
    """

    collection: str
    version: str
    evidence: Annotated[ExampleScores, IN_PLACE]
    _: KW_ONLY
    options: Annotated[Options, GateOptions] = dataclasses.field(default_factory=dict[str, Any])


@call("GET", "/v1/tasks/{id}")
class ReadTask(Call[Task]):
    """Return a task: its state, progress, remaining time, and its result or problem."""

    id: str


@call("GET", "/v1/tasks/{id}")
class WaitForTask(Call[Task]):
    """Wait for the end of a task and return it; look at its `state`. A server is asked again and again.

    Args:
        id: of the task.
        timeout_s: how long to wait.
        every_s: how long between two questions.
        on_progress: told of the task after each.

    Raises:
        Unavailable: it has not ended in time; it goes on.
    """

    id: str
    _: KW_ONLY
    timeout_s: float = 3600.0
    every_s: float = 0.5
    on_progress: Callable[[Task], None] | None = None


@call("GET", "/v1/tasks", query=("collection", "state", "limit", "cursor"))
class ListTasks(Call[TaskPage]):
    """List tasks, the latest first; a thousand ended ones are stored.

    Args:
        collection: its name.
        state: only tasks in this state.
        limit: most tasks of a page.
        cursor: `next` of the page before.
    """

    _: KW_ONLY
    collection: Annotated[str, Values(longest=200)] | None = None
    state: Annotated[TaskState, Values(_STATES)] | None = None
    limit: PageSize = 50
    cursor: Annotated[str, Values("the `next` of an answer", pattern=r"^[0-9]{1,15}$")] | None = None


@call("DELETE", "/v1/tasks/{id}")
class CancelTask(Call[Task]):
    """Cancel a task. A running one ends within seconds; its partial work is dropped."""

    id: str
