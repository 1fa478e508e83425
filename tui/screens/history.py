"""The list of conversations: resume, rename, delete, export, and find by title.

Invariant: nothing is deleted or replaced without a yes, and the list is read again after each
change, so it shows what is on the disk.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Footer, OptionList, Rule, Static

from edgespec.errors import EdgespecError
from edgespec.tui.export import AlreadyThere, export, file_name
from edgespec.tui.history import History, Summary
from edgespec.tui.messages import Event, Failed, Finished
from edgespec.tui.screens.ask import AskText, Confirm
from edgespec.tui.screens.dates import stamp, when
from edgespec.tui.screens.sheet import Cell, Heading, Rows, Sheet, row
from edgespec.tui.shown import one_line, shown
from edgespec.tui.widgets.fields import TextField
from edgespec.units import human_bytes

_NONE = "No conversation yet: each one is kept here, turn by turn."


class HistoryList(Sheet[str | None]):
    """Choose a conversation; dismissed with its id, to resume it."""

    DEFAULT_CSS = """
    HistoryList {
        Input { margin-bottom: 1; }
        &.-low Input { margin-bottom: 0; }
        .detail { min-height: 2; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f10", "resume", "Resume", key_display="enter"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("r", "rename", "Rename"),
        Binding("e", "export", "Export"),
        Binding("d,delete", "delete", "Delete", key_display="d"),
        Binding("escape", "back", "Close"),
        Binding("down", "leave_search", show=False),
    ]

    def __init__(
        self,
        history: History,
        *,
        now: Callable[[], datetime] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`now` gives the time with its zone; `folder` is where exports go (None: here)."""
        super().__init__()
        self._history = history
        self._now = now or (lambda: datetime.now().astimezone())
        self._folder = folder
        self._all: list[Summary] = []
        self._found: list[Summary] = []
        self._input = TextField(placeholder="Search titles", compact=True)
        self._empty = "Looking for conversations"
        self._rows = Rows(self._empty)
        self._detail = Static(classes="detail")

    def compose(self) -> ComposeResult:
        """The search, the list, and what there is to know of the one under the cursor."""
        with Vertical(classes="sheet"):
            yield Heading("Conversations")
            yield self._input
            yield self._rows
            yield Rule()
            yield self._detail
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self._rows.focus()
        self._load()

    def handle(self, event: Event) -> None:
        """An answer that ended behind the list was saved, and belongs in it."""
        if isinstance(event, Finished | Failed):
            self._load()

    # ------------------------------------------------------------------------------------ the list

    def _load(self) -> None:
        """Read the list; nothing where it was closed, as after a change that took long."""
        if not self.left:
            self._read(self.app)

    @work(thread=True, exclusive=True, group="history")
    def _read(self, app: App[Any]) -> None:
        try:
            found = self._history.list()
        except EdgespecError as error:
            app.call_from_thread(self._fail, str(error))
        else:
            app.call_from_thread(self._fill, found)

    def _fail(self, sentence: str) -> None:
        """Say why; what was listed before stays."""
        if self.left:
            return
        self._empty = "The conversations can't be listed"
        if not self._all:
            self._filter()
        self._detail.update(Content.styled(shown(sentence), "$text-error"))

    def _fill(self, found: list[Summary]) -> None:
        if self.left:
            return
        self._all, self._empty = found, _NONE
        count = len(found)
        self.query_one(Heading).aside(f"{count:,}" if count else "")
        self._filter()

    def on_input_changed(self) -> None:
        """Filter as it is typed."""
        self._filter()

    def _filter(self) -> None:
        """Show the titles that hold every word of the search, at the conversation shown before."""
        before = self._under_cursor
        words = self._input.value.casefold().split()
        self._found = [
            summary
            for summary in self._all
            if all(word in summary.title.casefold() for word in words)
        ]
        ids = [summary.id for summary in self._found]
        at = ids.index(before.id) if before is not None and before.id in ids else 0
        now = self._now()
        self._rows.empty = "No title holds these words." if words and self._all else self._empty
        self._rows.show([self._row(summary, now) for summary in self._found], at)
        self._tell()

    def _row(self, summary: Summary, now: datetime) -> Callable[[int], Content]:
        damaged = bool(summary.problem)
        title = "can't be read" if damaged else summary.title or "(no words)"
        turns = "" if damaged else f"{summary.turns} turn{'s' * (summary.turns != 1)}"
        mark = "●" if self._history.is_open(summary.id) else "!" if damaged else " "

        def draw(width: int) -> Content:
            return row(
                width,
                (
                    Cell(mark, 1, "$text-warning" if damaged else "$primary"),
                    Cell(title, 0, "$foreground-muted" if damaged else ""),
                    Cell(summary.pair, 19, "$foreground-muted", drop=84),
                    Cell(turns, 9, "$foreground-muted", right=True, drop=48),
                    Cell(when(summary.at, now), 12, "$foreground-muted", right=True),
                ),
            )

        return draw

    @property
    def _under_cursor(self) -> Summary | None:
        at = self._rows.highlighted
        return self._found[at] if at is not None and at < len(self._found) else None

    @property
    def _readable(self) -> Summary | None:
        """The one under the cursor; where it can't be read, the person is told why."""
        summary = self._under_cursor
        if summary is not None and summary.problem:
            self._say(summary.problem)
            return None
        return summary

    def on_option_list_option_highlighted(self) -> None:
        """Say what there is to know."""
        self._tell()

    def _tell(self) -> None:
        summary = self._under_cursor
        if summary is None:
            self._detail.update(Content(""))
        elif summary.problem:
            text = f"{summary.problem} It is kept as it is."
            self._detail.update(Content.styled(shown(text), "$text-warning"))
        else:
            at = stamp(summary.at, self._now())
            facts = [f"last changed {at}"] if at else []
            facts += [human_bytes(summary.size_bytes)]
            facts += [f"with {summary.pair}"] if summary.pair else []
            facts += ["open here"] if self._history.is_open(summary.id) else []
            self._detail.update(
                Content.assemble(
                    (one_line(summary.title), "$foreground"), "\n", one_line(" · ".join(facts))
                )
            )

    # ------------------------------------------------------------------------------------- the keys

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click."""
        event.stop()
        self.action_resume()

    def on_input_submitted(self) -> None:
        """Enter in the search goes on to what was found."""
        self._rows.focus()

    def action_resume(self) -> None:
        """Go on with the conversation under the cursor."""
        if (summary := self._readable) is not None:
            self.dismiss(summary.id)

    def action_search(self) -> None:
        """Type a part of a title."""
        self._input.focus()

    def action_leave_search(self) -> None:
        """Down in the search goes to the list."""
        if self.focused is self._input:
            self._rows.focus()

    def action_back(self) -> None:
        """Leave the search, then the list."""
        if self.focused is self._input or self._input.value:
            self._input.value = ""
            self._rows.focus()
        else:
            self.dismiss(None)

    @work
    async def action_rename(self) -> None:
        """Give it another title."""
        summary = self._readable
        if summary is None:
            return
        title = await self.ask(
            AskText("Rename", "Empty: the beginning of its first question.", summary.title)
        )
        if title is not None:
            self._do(lambda: self._history.rename(summary.id, title))

    @work
    async def action_delete(self) -> None:
        """Delete it, after a yes."""
        summary = self._under_cursor
        if summary is None:
            return
        title = one_line(summary.title) or summary.id
        if await self.ask(
            Confirm("Delete", f"Delete “{title}” from this machine for good?", "Delete")
        ):
            self._do(lambda: self._history.delete(summary.id))

    @work
    async def action_export(self) -> None:
        """Write it to a file; an existing one only after a yes."""
        summary = self._readable
        if summary is None:
            return
        path = str((self._folder or Path.cwd()) / f"{file_name(summary.title)}.md")
        while True:
            answer = await self.ask(
                AskText("Export", "A file that ends in .md (Markdown) or .json.", path, "Export")
            )
            if answer is None:
                return
            path = answer
            try:
                written, notes = await to_thread(self._export, summary, Path(path))
            except AlreadyThere as there:
                if not await self.ask(
                    Confirm("Export", f"{there.path} is there already.", "Replace it")
                ):
                    continue
                try:
                    written, notes = await to_thread(
                        self._export, summary, Path(path), replace=True
                    )
                except EdgespecError as error:
                    self._say(str(error))
                    continue
            except EdgespecError as error:
                self._say(str(error))
                continue
            self.notify(shown(f"Written to {written}"), markup=False)
            for note in notes:
                self.notify(shown(note), severity="warning", markup=False)
            return

    def _export(
        self, summary: Summary, path: Path, *, replace: bool = False
    ) -> tuple[Path, Sequence[str]]:
        """The file written, and what of the conversation isn't in it."""
        found = self._history.read(summary.id)
        return export(path, found.turns, title=summary.title, replace=replace), found.notes

    def _do(self, change: Callable[[], None]) -> None:
        self._change(self.app, change)  # a screen that was closed meanwhile knows it no more

    @work(thread=True, group="changes")
    def _change(self, app: App[Any], change: Callable[[], None]) -> None:
        try:
            change()
        except EdgespecError as error:
            app.call_from_thread(self._say, str(error))
        app.call_from_thread(self._load)

    def _say(self, sentence: str) -> None:
        self.notify(shown(sentence), severity="error", markup=False)
