"""Screens that ask the person something, on top of the chat; each is dismissed with the answer.

Invariant: a screen draws only text that went through `shown`, never reads it as markup, and keeps
nothing waiting: what touches a disk runs on a thread of its own.
"""
