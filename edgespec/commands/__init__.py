"""The commands, one file each.

Invariant: a module here registers its command with `add` and imports nothing heavy until it runs.
"""
