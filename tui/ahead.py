"""Imports that the first picture does without and the first message doesn't.

Invariant: they are made while the pair is loaded, on a thread: later the screen would stand still.
"""

from __future__ import annotations

from importlib import import_module

_NAMES = """
    markdown_it.tree edgespec.tui.highlighting pygments.lexers.python
    edgespec.tui.screens.pairs edgespec.tui.screens.settings edgespec.tui.screens.history
""".split()


def import_ahead() -> None:
    """Import what the first message and the first screens need."""
    for name in _NAMES:
        import_module(name)
