"""`dsearch train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import opened_engine
from dsearch.cli.training.feedback import train_on_feedback
from dsearch.cli.training.full import train_full_with_progress
from dsearch.cli.training.null_slot import learned_null_slot
from dsearch.cli.training.options import Asked
from dsearch.cli.training.output import Outcome, of_trained
from dsearch.cli.training.remote import train_by_server
from dsearch.cli.training.session import judged_of, run_folder, train_with_progress, training_processes
from dsearch.cli.training.shards import task_over_shards
from dsearch.cli.training.values import train_values
from dsearch.errors import HomeLocked

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import Examples, Gate, Trained, TrainingOptions


def train(
    collection: options.CollectionName = "default",
    data: Annotated[
        Path | None, typer.Option("--data", help="A BEIR folder with judgements to learn from.")
    ] = None,
    split: Annotated[str, typer.Option(help="Judgements to learn from: qrels/SPLIT.tsv.")] = "train",
    exclude: options.ExcludePairs = None,
    self_supervised: Annotated[
        bool, typer.Option("--self-supervised", help="Learn from the corpus alone, without judgements.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", help="feedback: learn from clicks and thumbs; --data only judges, then."),
    ] = None,
    trusted_keys: Annotated[
        str | None,
        typer.Option(help="Keys whose clicks judge what others' clicks taught, with commas between them."),
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            help="What learns: head; query: the query encoder too; full: encoders of queries and documents."
        ),
    ] = "head",
    encoder_training: Annotated[
        str | None,
        typer.Option(help="How an encoder learns: lora (query) or all of its weights (full)."),
    ] = None,
    encoder_learning_rate: Annotated[float | None, typer.Option(help="Of the encoder.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="listwise, judged (from feedback), in-batch, marginal, approx-ndcg, teacher, margin, value."
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            help="Metadata, or value: what --objective value learns to predict; --data only judges, then."
        ),
    ] = None,
    teacher: Annotated[
        Path | None, typer.Option(help="TSV of query, document, score: for the last two objectives.")
    ] = None,
    null_slot: Annotated[
        bool,
        typer.Option(
            "--null-slot", help='Learn a weight for "nothing fits" from queries judged 0 throughout.'
        ),
    ] = False,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 1,
    query_side: Annotated[
        str | None,
        typer.Option(help="What moves queries: linear (one head), low-rank, mlp [default: by the heads]."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries at most.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the projections.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Queries a step.")] = None,
    negatives: Annotated[
        int | None,
        typer.Option(help="Of scope full: hard negatives a query, from the index as it learns."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of scope full: float32, or bfloat16 (autocast).")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Scope full: run the transformer through torch.compile.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    tune: Annotated[
        bool,
        typer.Option(
            help="Choose keyword weight, k1, b and hop strength first; they may answer where a head may not."
        ),
    ] = True,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Folder for checkpoints and metrics [default: runs/ of the collection]."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that was interrupted, to the same end.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse data with anything wrong in it, rather than leave it out."),
    ] = False,
    promote: Annotated[
        bool, typer.Option(help="Let the new head answer, if it did better on held-out queries.")
    ] = True,
    accept: Annotated[
        bool, typer.Option("--accept", help="Let the new head answer, whatever held-out queries say.")
    ] = False,
    alpha: options.Alpha = 0.05,
    margin: options.Margin = 0.02,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", help="Learn over the shards of the Ray cluster at HOST:PORT, or auto (scope head)."
        ),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Fine-tune retrieval: a new head, live at once if held-out queries are answered better.

    Documents are encoded again by scope full alone; that one may be started by torchrun, too. Interrupted,
    it goes on with --resume. Exit code 3: trained and kept, but the gate did not let it answer.
    """
    asked = Asked(**locals())  # each option under its own name
    asked.require_sound()
    try:
        outcome = train_values(asked) if asked.of_values else _trained_here(asked)
    except HomeLocked as locked:
        outcome = train_by_server(locked, asked)
    if outcome is not None:
        outcome.tell(json=json, promote=promote)


def _trained_here(asked: Asked) -> Outcome | None:
    """Train from judgements, clicks or the corpus; None in the processes of `torchrun` beside the first."""
    from dsearch.training import Gate, register_trained, starting_version

    slot = None
    with (
        training_processes(asked.scope, asked.device) as processes,
        opened_engine(
            asked.home,
            readonly=not processes.first,
            encoder=asked.encoder,
            device=asked.device,
            backend=asked.backend,
            threads=asked.threads,
        ) as (engine, settings),
    ):
        target = engine.collection(asked.collection)
        parent = starting_version(target)
        gate = Gate(alpha=asked.alpha, margin=asked.margin)
        if asked.scope == "full":
            examples = judged_of(target, asked)
            trained = train_full_with_progress(target, examples, asked, gate, parent, processes)
            if not processes.first:
                return None
        elif asked.of_feedback:
            trained, examples = train_on_feedback(target, asked, gate, settings.device, parent)
        else:
            examples = _examples(target, asked)
            options = _options(asked)
            trained = _trained_on(examples, options, target, asked, gate, parent, settings.device)
            if asked.null_slot:
                trained, slot = learned_null_slot(
                    target, asked.judgements, asked.split, trained, examples, options, settings.device
                )
        made = register_trained(target, trained, promote=asked.promote, accept=asked.accept, parent=parent)
    return of_trained(asked.collection, made, trained, len(examples), slot)


def _trained_on(
    examples: Examples,
    options: TrainingOptions,
    target: Collection,
    asked: Asked,
    gate: Gate,
    parent: str,
    device: str,
) -> Trained:
    described = {"options": asdict(options), "data": examples.digest, "parent": parent}
    return train_with_progress(
        examples,
        options,
        device,
        gate,
        target.head(parent),
        target.encoder if options.scope == "query" else None,
        run_folder(target, described, asked.run, resume=asked.resume),
        None if asked.ray is None else task_over_shards(target, asked.ray, options),
    )


def _examples(target: Collection, asked: Asked) -> Examples:
    from dsearch.training import examples_from_corpus

    if asked.self_supervised:
        return examples_from_corpus(target, seed=asked.seed)
    return judged_of(target, asked)


def _options(asked: Asked) -> TrainingOptions:
    """The defaults of the scope and the source of examples, and what was chosen."""
    from dsearch.training import TrainingOptions, query_options, self_supervised_options

    chosen = {"objective": "listwise", **asked.chosen()}
    if asked.self_supervised:
        return self_supervised_options(**chosen)
    return query_options(**chosen) if asked.scope == "query" else TrainingOptions(**chosen)
