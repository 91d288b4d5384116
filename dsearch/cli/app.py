"""The list of commands, in the order in which a newcomer needs them."""

from __future__ import annotations

from typing import Annotated

import typer

import dsearch
from dsearch.cli.commands import (
    attend,
    collections,
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
from dsearch.cli.grouped_help import GroupedHelp, add_examples
from dsearch.cli.services import mcp, watch
from dsearch.cli.session import remember_home
from dsearch.cli.training import judge, synthesize

app = typer.Typer(
    name="dsearch",
    cls=GroupedHelp,
    help="A differentiable search engine: index a corpus, query it over HTTP, fine-tune its retrieval.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    demo.demo,
    index.index,
    watch.watch,
    search.search,
    search.similar,
    attend.attend,
    attend.predict,
    collections.show,
    index.facets,
    index.update,
    index.delete,
    serve.serve,
    mcp.mcp,
    judge.judge,
    tune.tune,
    train.train,
    synthesize.synthesize,
    evaluate.evaluate,
    evaluate.compare,
    evaluate.run,
    models.promote,
    models.rollback,
    models.remember,
    models.refresh,
    index.collections,
    collections.create,
    collections.drop,
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
app.add_typer(judge.judgements, name="judgements")
app.add_typer(feedback.feedback, name="feedback")
app.add_typer(keys.keys, name="keys")
app.add_typer(serve.cluster, name="cluster")
add_examples(app)


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
