"""`dsearch train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.cluster_training import require_over_shards, task_over_shards
from dsearch.cli.full import train_full_with_progress
from dsearch.cli.runs import run_folder, training_processes
from dsearch.cli.session import opened_engine, print_json
from dsearch.cli.train_by_server import train_by_server
from dsearch.cli.train_feedback import require_feedback, train_on_feedback, trust_of
from dsearch.cli.train_null_slot import learned_null_slot, require_judged
from dsearch.cli.train_overlay import learned_overlay
from dsearch.cli.train_told import tell_trained
from dsearch.cli.train_values import VALUE, require_field, train_values
from dsearch.cli.training import (
    judged_examples,
    registered,
    start_of_training,
    stop_unless,
    train_with_progress,
)
from dsearch.errors import HomeLocked, InvalidRequest

if TYPE_CHECKING:
    from dsearch.training import TrainingOptions


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
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries at most.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the projections.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Queries a step.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of scope full: float32, or bfloat16 (autocast).")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Scope full: run the transformer through torch.compile.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    overlay: Annotated[
        bool,
        typer.Option("--overlay", help="Change keys of single judged documents too, within a bound."),
    ] = False,
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
    chosen: dict[str, Any] = _given(
        objective=objective,
        epochs=epochs,
        learning_rate=learning_rate,
        seed=seed,
        heads=heads,
        scope=scope,
        encoder_method=encoder_training,
        encoder_learning_rate=encoder_learning_rate,
        batch_size=batch_size,
        precision=precision,
        compiled=compiled or None,
        tune=None if tune or scope == "full" else False,
    )
    of_values = objective == VALUE or field is not None
    if of_values:
        refused = {
            "--from": source,
            "--trusted-keys": trusted_keys,
            "--self-supervised": self_supervised,
            "--teacher": teacher,
            f"--scope {scope}": scope != "head",
            "--encoder-training": encoder_training,
            "--encoder-learning-rate": encoder_learning_rate,
            "--precision": precision,
            "--compile": compiled,
            "--null-slot": null_slot,
            "--overlay": overlay,
            "--ray": ray,
        }
        require_field(objective, field, refused)
    elif source is not None or trusted_keys is not None:
        require_feedback(source, self_supervised=self_supervised, scope=scope, teacher=teacher)
    elif (data is None) == (not self_supervised):
        raise InvalidRequest("give either --data BEIR_FOLDER, --self-supervised or --from feedback")
    for option, given_by in {"--null-slot": null_slot, "--overlay": overlay}.items():
        if given_by:
            require_judged(option, data, source, scope)
    if ray is not None:
        require_over_shards(source, scope, null_slot=null_slot, overlay=overlay)
    slot, of_overlay = None, None
    trust = trust_of(trusted_keys, data, split, exclude)
    if scope == "full" and (data is None or teacher is not None):
        raise InvalidRequest("--scope full learns from judgements alone; give --data BEIR_FOLDER")
    if scope != "full" and (precision is not None or compiled):
        raise InvalidRequest("--precision and --compile are of --scope full; leave them out")
    try:
        if of_values:
            assert field is not None  # it was asked for
            train_values(
                collection,
                field,
                home=home,
                encoder=encoder,
                device=device,
                threads=threads,
                data=data,
                split=split,
                exclude=exclude,
                chosen=chosen,
                alpha=alpha,
                margin=margin,
                run=run,
                resume=resume,
                strict=strict,
                promote=promote,
                accept=accept,
                json=json,
            )
            return
        with (
            training_processes(scope, device) as processes,
            opened_engine(
                home,
                readonly=not processes.first,
                encoder=encoder,
                device=device,
                backend=backend,
                threads=threads,
            ) as (engine, settings),
        ):
            from dsearch.training import Gate, examples_from_corpus

            target = engine.collection(collection)
            if source is None:
                chosen.setdefault("objective", "listwise")
            parent = start_of_training(target)
            gate = Gate(alpha=alpha, margin=margin)
            if scope == "full":
                assert data is not None  # it was asked for
                examples = judged_examples(target, data, split, exclude, strict=strict)
                trained = train_full_with_progress(
                    target, examples, chosen, gate, parent, processes, run, resume=resume
                )
                if not processes.first:
                    return
            elif source is not None:
                trained, examples = train_on_feedback(target, trust, chosen, gate, settings.device, parent)
            else:
                training = _options(chosen, self_supervised=self_supervised)
                if data is None:
                    examples = examples_from_corpus(target, seed=seed)
                else:
                    examples = judged_examples(target, data, split, exclude, teacher, strict=strict)
                described = {"options": asdict(training), "data": examples.digest, "parent": parent}
                trained = train_with_progress(
                    examples,
                    training,
                    settings.device,
                    gate,
                    target.head(parent),
                    target.encoder if training.scope == "query" else None,
                    run_folder(target, described, run, resume=resume),
                    None if ray is None else task_over_shards(target, ray, training),
                )
                if overlay:
                    trained, of_overlay = learned_overlay(trained, examples, training, gate, settings.device)
                if null_slot:
                    assert data is not None  # it was asked for
                    trained, slot = learned_null_slot(
                        target, data, split, trained, examples, training, settings.device
                    )
            made = registered(target, trained, promote=promote, accept=accept, parent=parent)
    except HomeLocked as locked:
        live = train_by_server(
            locked,
            collection,
            home=home,
            data=data,
            split=split,
            strict=strict,
            chosen=chosen,
            also=_given(
                self_supervised=self_supervised,
                from_feedback=source is not None,
                field=field,
                null_slot=null_slot,
                promote=promote,
                accept=accept,
                alpha=alpha,
                margin=margin,
            ),
            here_only={
                "--exclude": exclude,
                "--trusted-keys": trusted_keys,
                "--teacher": teacher,
                "--overlay": overlay,
                "--batch-size": batch_size,
                "--precision": precision,
                "--compile": compiled,
                "--run": run,
                "--resume": resume,
                "--encoder": encoder,
                "--device": device,
                "--backend": backend,
                "--threads": threads,
                "--ray": ray,
            },
            json=json,
        )
        stop_unless(live or not promote)
        return
    version, live = made.version, made.live is not None
    if json:
        about = {"version": made.live or version, "live": live, "trained": version, "reason": made.reason}
        print_json({**about, **trained.record})
        stop_unless(live or not promote)
        return
    tell_trained(collection, made, parent, trained, len(examples), of_overlay, slot)
    stop_unless(live or not promote)


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not left to others' defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _options(chosen: dict[str, Any], *, self_supervised: bool) -> TrainingOptions:
    """The defaults of the scope and the source of examples, and what was chosen."""
    from dsearch.training import TrainingOptions, query_options, self_supervised_options

    if self_supervised:
        return self_supervised_options(**chosen)
    return query_options(**chosen) if chosen["scope"] == "query" else TrainingOptions(**chosen)
