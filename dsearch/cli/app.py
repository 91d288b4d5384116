"""The commands, in the order in which a newcomer needs them."""

from __future__ import annotations

from typing import Annotated

import typer

import dsearch
from dsearch.cli import (
    aliases,
    backends,
    cluster,
    compare,
    config,
    copies,
    demo,
    doctor,
    documents,
    evaluate,
    feedback,
    guide,
    index,
    keys,
    maintain,
    migrate,
    models,
    run,
    search,
    serve,
    train,
    tune,
)

app = typer.Typer(
    name="dsearch",
    help="A differentiable search engine: index a corpus, query it over HTTP, fine-tune its retrieval.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    demo.demo,
    index.index,
    search.search,
    search.similar,
    documents.facets,
    documents.update,
    documents.delete,
    serve.serve,
    tune.tune,
    train.train,
    evaluate.evaluate,
    compare.compare,
    run.run,
    models.promote,
    models.rollback,
    models.refresh,
    index.collections,
    maintain.stats,
    aliases.alias,
    maintain.verify,
    maintain.recover,
    copies.backup,
    copies.restore,
    copies.export,
    maintain.compact,
    maintain.purge,
    migrate.migrate,
    config.config,
    backends.backends,
    doctor.doctor,
    guide.guide,
):
    app.command()(command)
app.add_typer(models.models_app, name="models")
app.add_typer(feedback.feedback, name="feedback")
app.add_typer(keys.keys, name="keys")
app.add_typer(cluster.cluster, name="cluster")
app.add_typer(cluster.cluster, name="cluster")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(dsearch.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A differentiable search engine: index a corpus, query it over HTTP, fine-tune its retrieval."""
