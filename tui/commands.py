"""What a person can ask the chat to do: one table for slash commands, palette and help.

Invariant: every action has a row here, so whatever a key does can be typed and found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Command(NamedTuple):
    """One command; the app does it in `command_NAME`, or `action_NAME` where it takes no words.

    `words` is what may follow, as the help shows it; `keys` is a key that does the same; `lines`:
    the words may have several lines; `needs_settings`: it looks at the pair's settings or changes
    them, so it waits until they are read.
    """

    name: str
    help: str
    words: str = ""
    keys: str = ""
    aliases: tuple[str, ...] = ()
    lines: bool = False
    needs_settings: bool = False

    @property
    def title(self) -> str:
        """How the palette calls it."""
        return self.help[0].upper() + self.help[1:]


COMMANDS = (
    Command("help", "show keys and commands", keys="f1"),
    Command("pair", "choose the models to talk to", "[NAME]", "ctrl+o", ("model",),
            needs_settings=True),
    Command("system", "set the system prompt, from the next answer on", "TEXT", lines=True,
            needs_settings=True),
    Command("set", "change a setting", "NAME VALUE", lines=True, needs_settings=True),
    Command("save", "keep this pair's settings for the next time", needs_settings=True),
    Command("settings", "look at all settings", keys="ctrl+s", needs_settings=True),
    Command("export", "write the conversation to a file", "[md|json] [FILE]"),
    Command("clear", "begin a new conversation; the old one stays in the history", keys="ctrl+n",
            aliases=("new",)),
    Command("stats", "show the figures panel, its next page, or hide it", keys="ctrl+g",
            aliases=("figures",)),
    Command("tokens", "show where each token came from, or stop it", keys="ctrl+t"),
    Command("search", "find text in this conversation", "[TEXT]", "ctrl+f", ("find",)),
    Command("history", "find an earlier conversation", keys="ctrl+l", aliases=("resume",)),
    Command("rename", "give this conversation a name", "TITLE"),
    Command("again", "have the last question answered anew", keys="ctrl+r",
            aliases=("regenerate",)),
    Command("continue", "go on with the last answer", keys="f9"),
    Command("edit", "change an earlier question and ask it again", keys="f2"),
    Command("copy", "copy the last answer, answer N from the end, or a code block",
            "[N] [code [M]]", "ctrl+y"),
    Command("stop", "stop the answer and keep what came", keys="escape"),
    Command("theme", "change the colours", "[NAME]"),
    Command("quit", "leave", keys="ctrl+q", aliases=("exit",)),
)  # fmt: skip

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}


def named(name: str) -> Command:
    """The command of this name or alias; KeyError where there is none."""
    return _BY_NAME[name]


def parse(line: str) -> tuple[Command | None, str, str]:
    """A line that begins with a slash: its command, the words behind it, or what is wrong.

    Exactly one of the first and the last is there.
    """
    name, *rest = line[1:].split(maxsplit=1) or [""]
    command = _BY_NAME.get(name.lower())
    if command is not None:
        return command, "".join(rest).strip(), ""
    import difflib

    close = difflib.get_close_matches(name.lower(), list(_BY_NAME), n=1)
    hint = f"did you mean /{close[0]}?" if close else "/help lists what there is."
    return None, "", f"There is no command /{name}: {hint} A space before it sends it as a message."


def is_command(text: str) -> bool:
    """Whether a message is for the chat itself: a slash and a word, and no path.

    In one line, unless the command takes several.
    """
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if not text.startswith("/") or not first[1:].replace("-", "").isalpha():
        return False
    command = _BY_NAME.get(first[1:].lower())
    return "\n" not in text.strip() or (command is not None and command.lines)


def as_written(question: str) -> str:
    """A question as it is written to be asked: behind a space where it looks like a command."""
    return f" {question}" if is_command(question.strip("\n")) else question


def completions(line: str, values: Sequence[str] = ()) -> list[str]:
    """Lines that the one being typed could become; `values` may follow its command."""
    if not line.startswith("/") or "\n" in line:
        return []
    name, space, rest = line[1:].partition(" ")
    if not space:
        return [f"/{command.name}" + " " * bool(command.words) for command in COMMANDS
                if command.name.startswith(name.lower())]  # fmt: skip
    if " " in rest:
        return []
    return [f"/{name} {value}" for value in values if value.startswith(rest) and value != rest]
