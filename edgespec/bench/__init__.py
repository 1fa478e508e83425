"""The benchmark: speculation against plain decoding, and against other programs, in turn.

Invariant: both sides of every ratio answered the same prompt, right after each other, from empty
caches; a figure that was not measured is absent, never guessed.
"""
