"""The chat's own colours, dark and light.

Invariant: what colour says is also said by a word, a shape or a style; blue and orange carry the
differences, which every kind of colour vision tells apart.
"""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="edgespec-dark",
    primary="#7aa2f7",
    secondary="#56b4e9",
    accent="#e0a458",
    foreground="#d5d9e2",
    background="#14161b",
    surface="#1a1d24",
    panel="#22262f",
    success="#6fbf9b",
    warning="#e0a458",
    error="#e5786d",
    dark=True,
    variables={"footer-key-foreground": "#7aa2f7", "border": "#2c313c"},
)

LIGHT = Theme(
    name="edgespec-light",
    primary="#2456b8",
    secondary="#0a6a9c",
    accent="#9a5a00",
    foreground="#23262d",
    background="#fbfaf7",
    surface="#f2f0eb",
    panel="#e7e4dd",
    success="#1c7a4d",
    warning="#9a5a00",
    error="#b3261e",
    dark=False,
    variables={"footer-key-foreground": "#2456b8", "border": "#d4d0c7"},
)
