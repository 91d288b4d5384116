"""`dsearch guide`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def guide(
    topic: Annotated[str | None, typer.Argument(help="What about; without it, a list.")] = None,
) -> None:
    """Read the guides: concepts, choosing an index, fine-tuning, operating, …"""
    from dsearch.guide import guide as text_of
    from dsearch.guide import guides

    if topic is None:
        listed = guides()
        width = max(len(one.topic) for one in listed)
        for one in listed:
            typer.echo(f"{one.topic:<{width}}  {one.title}")
        return
    text = text_of(topic)
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text))
