"""The list of commands, in the order in which a newcomer needs them."""

from __future__ import annotations

from typing import Annotated

import typer

import dsearch
from dsearch.cli.commands import (
    demo,
    evaluate,
    feedback,
    index,
    keys,
    maintenance,
    models,
    search,
    serve,
    system,
    train,
    tune,
)
from dsearch.cli.session import remember_home

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
    index.facets,
    index.update,
    index.delete,
    serve.serve,
    tune.tune,
    train.train,
    evaluate.evaluate,
    evaluate.compare,
    evaluate.run,
    models.promote,
    models.rollback,
    models.remember,
    models.refresh,
    index.collections,
    maintenance.stats,
    maintenance.alias,
    maintenance.verify,
    maintenance.recover,
    maintenance.backup,
    maintenance.restore,
    maintenance.export,
    maintenance.compact,
    maintenance.purge,
    maintenance.migrate,
    system.config,
    system.backends,
    system.doctor,
    system.guide,
):
    app.command()(command)
app.add_typer(models.models_app, name="models")
app.add_typer(feedback.feedback, name="feedback")
app.add_typer(keys.keys, name="keys")
app.add_typer(serve.cluster, name="cluster")


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
    remember_home(None)  # of an earlier command in this process
