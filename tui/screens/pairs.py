"""The pair picker: what is on this disk, what is to download, what fits this machine.

Invariant: it is dismissed with a choice only when all of the pair's models are here.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Footer, OptionList, Rule, Static

from edgespec.errors import EdgespecError
from edgespec.platform.memory import total_memory
from edgespec.tui.messages import Choice
from edgespec.tui.pairs import PairInfo, check_file, list_pairs
from edgespec.tui.screens.ask import AskText, Confirm
from edgespec.tui.screens.download import Downloads, DownloadScreen
from edgespec.tui.screens.sheet import Cell, Heading, Rows, Sheet, row
from edgespec.tui.shown import one_line, shown
from edgespec.units import human_bytes

if TYPE_CHECKING:
    from edgespec.tui.settings_file import SettingsFile

Source = Callable[[], list[PairInfo]]
"""Lists the pairs; may take a while."""


class PairPicker(Sheet[Choice | None]):
    """Choose what to talk to; downloads it where it isn't here."""

    DEFAULT_CSS = """
    PairPicker {
        .detail { min-height: 4; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f10", "choose", "Choose", key_display="enter"),
        Binding("a", "add", "Add a file"),
        Binding("x", "remove", "Remove"),
        Binding("escape", "dismiss(None)", "Close"),
    ]

    def __init__(
        self,
        current: Choice,
        downloads: Downloads,
        files: SettingsFile | None = None,
        *,
        source: Source | None = None,
        memory_bytes: int | None = None,
        wanted: Choice | None = None,
    ) -> None:
        """Args:
        current: what is loaded.
        downloads: the bridge.
        files: where the person's own files are remembered; None: none can be added.
        source: lists the pairs; None: the registry's and the person's own.
        memory_bytes: this machine's memory; None: as the system tells.
        wanted: chosen already, so that only what has to be asked is asked; None: nothing is.
        """
        super().__init__()
        self._current, self._downloads, self._files = current, downloads, files
        self._wanted = wanted
        self._memory = total_memory() if memory_bytes is None else memory_bytes
        self._source = source or self._list
        self._pairs: list[PairInfo] = []
        self._rows = Rows("Looking for pairs")
        self._detail = Static(classes="detail")

    def compose(self) -> ComposeResult:
        """The list, and what there is to know of the pair under the cursor."""
        memory = f"{human_bytes(self._memory)} of memory" if self._memory else ""
        with Vertical(classes="sheet"):
            yield Heading("Pairs", memory)
            yield self._rows
            yield Rule()
            yield self._detail
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self._load(self._wanted or self._current)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Keys are shown where they do something."""
        if action == "add":
            return self._files is not None
        if action == "remove":
            info = self._under_cursor
            return self._files is not None and info is not None and info.added
        return True

    # ------------------------------------------------------------------------------------ the list

    def _list(self) -> list[PairInfo]:
        from edgespec.registry import load_registry

        files = self._files.files() if self._files is not None else ()
        return list_pairs(load_registry(), files, self._memory)

    @work(thread=True, exclusive=True, group="pairs")
    def _load(self, highlight: Choice) -> None:
        try:
            found = self._source()
        except EdgespecError as error:
            self.app.call_from_thread(self._fail, str(error))
        else:
            self.app.call_from_thread(self._fill, found, highlight)

    def _fail(self, sentence: str) -> None:
        if self.left:
            return
        self._pairs = []
        self._rows.empty = "The pairs can't be listed"
        self._rows.show([])
        self._detail.update(Content.styled(shown(sentence), "$text-error"))

    def _fill(self, pairs: list[PairInfo], highlight: Choice) -> None:
        if self.left:
            return
        self._pairs = pairs
        at = [n for n, info in enumerate(pairs) if self._is(info, highlight)]
        self._rows.show([self._row(info) for info in pairs], at[0] if at else 0)
        self._rows.focus()
        self._tell()
        wanted, self._wanted = self._wanted, None
        if wanted is not None and at:
            self.action_choose()

    def _is(self, info: PairInfo, choice: Choice) -> bool:
        named = choice.pair is not None or choice.target is not None
        return info.choice == choice if named else info.default

    def _row(self, info: PairInfo) -> Callable[[int], Content]:
        if info.problem:
            state = "can't be loaded"
        elif info.here:
            state = "on disk"
        else:
            state = f"{human_bytes(info.download_bytes)} to download"
        fit = "too big" if info.too_big else ""
        mark = "●" if self._is(info, self._current) else " "
        quiet = "$foreground-muted" if info.problem else ""
        cells = (
            Cell(mark, 1, "$primary"),
            Cell(info.name, 0, quiet),
            Cell(state, 19, "" if info.here and not info.problem else "$foreground-muted"),
            Cell(human_bytes(info.memory_bytes) if info.memory_bytes else "", 8,
                 "$foreground-muted", right=True, drop=58),
            Cell(fit, 7, "$text-warning", drop=44),
        )  # fmt: skip
        return lambda width: row(width, cells)

    @property
    def _under_cursor(self) -> PairInfo | None:
        at = self._rows.highlighted
        return self._pairs[at] if at is not None and at < len(self._pairs) else None

    def on_option_list_option_highlighted(self) -> None:
        """Say what there is to know."""
        self._tell()

    def _tell(self) -> None:
        info = self._under_cursor
        self.refresh_bindings()
        if info is None:
            return
        marks = ["the default"] * info.default + ["not tried by this project"] * info.untested
        facts = [f"drafts: {', '.join(info.drafters)}"]
        facts += [f"licence: {', '.join(info.licences)}"] if info.licences else []
        facts += marks
        trouble = info.problem or info.too_big
        fits = f"It fits: about {human_bytes(info.memory_bytes)} of memory."
        self._detail.update(
            Content("\n").join(
                [
                    Content.styled(one_line(info.description), "$foreground"),
                    Content(one_line(" · ".join(facts))),
                    Content.styled(shown(trouble), "$text-warning")
                    if trouble
                    else Content(fits if info.memory_bytes else ""),
                ]
            )
        )

    # ----------------------------------------------------------------------------------- choosing

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click."""
        event.stop()
        self.action_choose()

    @work
    async def action_choose(self) -> None:
        """Take the pair under the cursor, after what has to be asked and downloaded."""
        info = self._under_cursor
        if info is None:
            return
        if info.problem:
            self.notify(shown(info.problem), severity="error", markup=False)
            return
        if info.too_big and not await self.ask(
            Confirm(
                info.name,
                f"{info.too_big} It may be very slow, or the system may end it.",
                "Load it all the same",
            )
        ):
            return
        if not info.here and not await self.ask(DownloadScreen(info, self._downloads)):
            self._load(info.choice)  # some of it may be here now
            return
        self.dismiss(info.choice)

    @work
    async def action_add(self) -> None:
        """Add a file of the person's."""
        text = ""
        while True:
            answer = await self.ask(
                AskText("Add a model", "A GGUF file, or a folder that holds an ONNX model.", text)
            )
            if answer is None or self._files is None:
                return
            text = answer
            try:  # elsewhere: a disk may be slow, and another window may be saving
                path = await to_thread(check_file, text)
                await to_thread(self._files.add_file, path)
            except EdgespecError as error:
                self.notify(shown(str(error)), severity="error", markup=False)
            else:
                self._load(Choice(target=path))
                return

    @work
    async def action_remove(self) -> None:
        """Take a file from the list; it stays on the disk."""
        info = self._under_cursor
        if self._files is None or info is None or not info.added:
            return
        try:
            await to_thread(self._files.remove_file, info.choice.target or "")
        except EdgespecError as error:
            self.notify(shown(str(error)), severity="error", markup=False)
        self._load(self._current)
