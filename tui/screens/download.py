"""The download of a pair's models: how far, how fast, and a way to stop.

Invariant: the screen ends only when the bridge said that the download ended, or when it was told to
stop and the person doesn't wait for it; so nothing is downloaded behind it unseen. What is
downloaded is the bridge's to keep whole.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Footer, Static

from edgespec.tui.downloads import Meter, Progress
from edgespec.tui.messages import DownloadEnded, Downloading, Event
from edgespec.tui.pairs import PairInfo
from edgespec.tui.screens.sheet import Heading, SmallSheet, plain
from edgespec.tui.shown import one_line, shown
from edgespec.units import human_bytes


class Downloads(Protocol):
    """What the screens need of the bridge."""

    def download(self, pair: str) -> None:
        """Begin, or go on; told by events."""
        ...

    def cancel_download(self, pair: str) -> None:
        """Give up; told by an event."""
        ...


class DownloadBar(Static):
    """A line that fills from the left, with its share in figures."""

    def __init__(self) -> None:
        super().__init__()
        self._share: float | None = None

    def fill(self, share: float | None) -> None:
        """None: it isn't known how much there is."""
        self._share = share
        self.refresh()

    def render(self) -> Content:
        """The bar at its present width."""
        share = self._share
        width = max(1, self.size.width - 6)
        if share is None:
            return Content.styled("╌" * width, "$foreground-muted")
        full = int(width * share)
        return Content.assemble(
            ("━" * full, "$primary"),
            ("─" * (width - full), "$foreground-muted"),
            (f"{share:6.0%}", "bold"),
        )


class DownloadScreen(SmallSheet[bool]):
    """Downloads a pair; dismissed with whether it is all here now."""

    DEFAULT_CSS = """
    DownloadScreen {
        DownloadBar { height: 1; margin-top: 1; }
        .figures { height: 1; color: $text-muted; }
        .error { height: auto; margin-top: 1; color: $error; display: none; }
        .rest { height: auto; margin-top: 1; color: $text-muted; }
        &.-failed .error { display: block; }
        &.-failed .rest { display: none; }
        #again { display: none; }
        &.-failed #again { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),
        Binding("escape", "close", "Close"),
        Binding("r", "again", "Try again"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(
        self, info: PairInfo, downloads: Downloads, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__()
        self._info, self._downloads, self._clock = info, downloads, clock
        self._pair = info.choice.pair or ""
        self._meter = Meter()
        self._under_way = self._given_up = False
        self._over: DownloadEnded | None = None  # while another screen is on top
        self._model = Static(classes="model")
        self._figures = Static(classes="figures")
        self._bar = DownloadBar()
        self._error = Static(classes="error")

    def compose(self) -> ComposeResult:
        """What is downloaded, how far it is, and a button to stop."""
        info = self._info
        with Vertical(classes="sheet"):
            yield Heading(f"Download {info.name}", human_bytes(info.download_bytes))
            yield self._model
            yield self._bar
            yield self._figures
            yield plain(
                f"Licence: {', '.join(info.licences)}. It is kept on this machine, so it is "
                "downloaded once.",
                classes="rest",
            )
            yield self._error
            with Horizontal(classes="buttons"):
                yield Button("Try again", id="again", compact=True)
                yield Button("Stop", id="stop", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin."""
        self.action_again()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """What can be done now: stop while it runs, else close it or try again."""
        if action == "again":
            return not self._under_way
        if action == "close":
            return not self._under_way or self._given_up
        return self._under_way and not self._given_up if action == "stop" else True

    def handle(self, event: Event) -> None:
        """What the bridge tells."""
        if isinstance(event, Downloading) and event.pair == self._pair and not self._given_up:
            self._show(self._meter.take(event, self._clock()))
        elif isinstance(event, DownloadEnded) and event.pair == self._pair and self._under_way:
            self._end(event)

    def action_again(self) -> None:
        """Begin, also once more."""
        self._under_way, self._given_up = True, False
        self._meter = Meter()
        self.remove_class("-failed")
        self.refresh_bindings()
        self._model.update(Content("Looking for it"))
        self._figures.update(Content(""))
        self._bar.fill(None)
        self._stop_button("Stop")
        self._downloads.download(self._pair)

    def action_stop(self) -> None:
        """Give up; the screen ends when the download has, or with the same key once more."""
        self._given_up = True
        self.refresh_bindings()
        self._model.update(Content("Stopping; where the connection hangs, that takes a while"))
        self._stop_button("Close")
        self._downloads.cancel_download(self._pair)

    def action_close(self) -> None:
        """Leave it undone."""
        self.dismiss(False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The buttons do what the keys do."""
        if event.button.id == "again":
            self.action_again()
        elif self._under_way and not self._given_up:
            self.action_stop()
        else:
            self.action_close()

    def _show(self, progress: Progress) -> None:
        count = len(self._info.missing)
        number = len(self._meter.models)
        of = f"  {number} of {count}" if count > 1 and number <= count else ""
        what = "Checking what came: " if progress.again else ""
        self._model.update(
            Content.assemble(what, (one_line(progress.model), "bold"), (of, "$foreground-muted"))
        )
        self._figures.update(Content(progress.line))
        self._bar.fill(progress.share)

    def on_screen_resume(self) -> None:
        """What was on top is gone; the download may have ended behind it."""
        over, self._over = self._over, None
        if over is not None:
            self._end(over)

    def _end(self, event: DownloadEnded) -> None:
        if not self.is_active:
            self._over = event
            return
        self._under_way = False
        if not event.error:
            self.dismiss(not event.cancelled)
            return
        self._error.update(Content(shown(event.error)))
        self.add_class("-failed")
        self.refresh_bindings()
        self._stop_button("Close")
        self.query_one("#again", Button).focus()

    def _stop_button(self, label: str) -> None:
        self.query_one("#stop", Button).label = label
