"""The command line's root; its commands are listed in grouped_help.py and imported when one is called."""

from __future__ import annotations

from typing import Annotated

import typer

import dsearch
from dsearch.cli.grouped_help import GroupedHelp

app = typer.Typer(
    name="dsearch",
    cls=GroupedHelp,
    help="A differentiable search engine: index a corpus, query it over HTTP, fine-tune its retrieval.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    from dsearch.cli.session import remember_home

    remember_home(None)  # of an earlier command in this process
