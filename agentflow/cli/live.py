"""What a run looks like while it runs: a table and a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agentflow.cli.console import amount, count, plain, seconds, visible
from agentflow.cli.warned import Warned

if TYPE_CHECKING:
    from agentflow.runtime.events import Event, Listener
    from agentflow.workflow.schema import Workflow

SPOKEN = 400
PLAIN_PAUSE = 5.0
"""Seconds between two lines about items where the output is no terminal."""

# Column -> least width of the terminal that has room for it.
_FIGURES = {"prefilled": 0, "generated": 46, "received": 56, "reused": 66, "seconds": 74}


@dataclass
class _NodeRow:
    at_work: set[tuple[str, str, int | None]] = field(default_factory=set)
    done: int = 0
    failed: int = 0
    skipped: int = 0
    retried: int = 0
    shortened: int = 0
    seconds: float = 0.0
    prefilled: int = 0
    reused: int = 0
    generated: int = 0
    bytes: int = 0

    @property
    def state(self) -> str:
        parts = [f"[cyan]{len(self.at_work)} running[/]" if self.at_work else ""]
        parts += [f"[green]{self.done} done[/]" if self.done else ""]
        parts += [f"[red]{self.failed} failed[/]" if self.failed else ""]
        parts += [f"[yellow]{self.skipped} skipped[/]" if self.skipped else ""]
        parts += [f"[yellow]{self.retried} tried again[/]" if self.retried else ""]
        parts += [f"[yellow]{self.shortened} cut to memory[/]" if self.shortened else ""]
        return ", ".join(filter(None, parts)) or "[dim]waiting[/]"

    def figure(self, name: str) -> str:
        if name == "received":
            return amount(self.bytes)
        return f"{self.seconds:.1f}" if name == "seconds" else f"{getattr(self, name):,}"


class _TimeLeft(ProgressColumn):
    """Time to go, once there is something to estimate it from."""

    def render(self, task: Task) -> Text:
        """The text of the column."""
        if task.finished or task.time_remaining is None:
            return Text("")
        return Text(f"{timedelta(seconds=int(task.time_remaining))} left", style="dim")


class LiveView:
    """Collects events and draws itself; children of a map and rounds of a loop are folded into their node's row."""

    def __init__(self, workflow: Workflow, title: str) -> None:
        from agentflow.workflow.frames import address

        self._address = address
        self._rows = {address(node): _NodeRow() for node in workflow.nodes}
        self._title = title
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _TimeLeft()
        )
        self._task = self._bar.add_task("items", total=None)
        # Units of a batch speak at once. One is listened to until it ends, then the next that says something.
        self._speaker: tuple[str, str, int | None] | None = None
        self._saying = ""
        self._warned = Warned()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        self._warned(event)
        if event.kind == "run_started":
            self._bar.update(self._task, total=event.data["items"])
        elif event.kind == "item_finished":
            self._bar.advance(self._task)
        row = self._rows.get(self._address(event.node))
        if row is None:
            return
        self._listen(event)
        _count(row, event)

    def _listen(self, event: Event) -> None:
        unit = (event.item, event.node, event.child)
        if event.kind == "node_token":
            if self._speaker is None:
                self._speaker, self._saying = unit, ""
            if self._speaker == unit:
                self._saying = (self._saying + event.data["text"])[-SPOKEN:]
        elif event.kind in ("node_finished", "node_failed") and self._speaker == unit:
            self._speaker = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [name for name, width in _FIGURES.items() if options.max_width >= width]
        table = Table(title=plain(self._title), title_justify="left", box=None, pad_edge=False)
        table.add_column("node", no_wrap=True)
        table.add_column("state", no_wrap=True, min_width=16)
        for name in names:
            table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
        for node, row in self._rows.items():
            table.add_row(plain(node), row.state, *(row.figure(name) for name in names))
        yield table
        for line in self._warned.lines():
            yield Text(visible(line), style="yellow")
        yield self._bar
        speaker = self._speaker
        if speaker is not None:
            yield _tail(f"{speaker[1]}: ", visible(self._saying.replace("\n", " ")), options.max_width)


def _count(row: _NodeRow, event: Event) -> None:
    if event.kind == "node_started":
        row.at_work.add((event.item, event.node, event.child))
    elif event.kind in ("node_finished", "node_failed", "node_skipped", "node_retried"):
        row.at_work.discard((event.item, event.node, event.child))
    if event.kind == "message":
        row.bytes += event.data["bytes"]
    row.skipped += event.kind == "node_skipped"
    row.failed += event.kind == "node_failed"
    row.shortened += event.kind == "memory"
    row.retried += event.kind == "node_retried"
    row.done += event.kind in ("node_finished", "node_reused")
    if event.kind == "node_finished":
        row.seconds += event.data["seconds"]
        row.prefilled += event.data["prefilled"]
        row.reused += event.data["reused"]
        row.generated += event.data["generated"]


def _tail(label: str, text: str, width: int) -> Text:
    """The last words of a text, on one line."""
    shown = Text(text, style="dim")
    room = max(10, width - len(label))
    while shown.cell_len > room:
        shown = shown[max(1, (shown.cell_len - room) // 2) :]  # wide characters take two cells
    return Text(label, style="cyan", no_wrap=True, overflow="crop") + shown


class PlainLines:
    """One line for each node of a single item, or now and then one for the items of many."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._total = self._finished = 0
        self._last = 0.0
        self._warned = Warned()

    def __call__(self, event: Event) -> None:
        """Print a line where one is due."""
        for line in self._warned(event):
            self._say(line)
        if event.kind == "run_started":
            self._total = event.data["items"]
        elif event.kind == "node_failed":
            self._say(f"{event.item}/{event.node}: failed: {event.data['error']}")
        elif event.kind == "node_retried":
            data = event.data
            self._say(f"{event.item}/{event.node}: {data['error']} Try {data['attempt']} in {seconds(data['wait'])}")
        elif event.kind == "node_skipped" and self._total == 1:
            self._say(f"{event.node}{_child(event)}: skipped, {event.data['because']}")
        elif event.kind == "memory" and self._total == 1:
            from agentflow.runtime.results import MemoryResult

            self._say(f"{event.node}{_child(event)}: {MemoryResult(**event.data)}")
        elif event.kind == "loop_ended" and self._total == 1:
            self._say(f"{event.node}: ended after {count(event.data['rounds'], 'round')} of at most {event.data['of']}")
        elif event.kind == "node_finished" and self._total == 1:
            data = event.data
            self._say(
                f"{event.node}{_child(event)}: {seconds(data['seconds'])}, prefilled {data['prefilled']}, "
                f"reused {data['reused']}, generated {data['generated']}"
            )
        elif event.kind == "item_finished":
            self._finished += 1
            if self._total > 1 and (self._finished == self._total or time.monotonic() - self._last > PLAIN_PAUSE):
                self._last = time.monotonic()
                self._say(f"{self._finished}/{self._total} items, {seconds(event.at)}")

    def _say(self, line: str) -> None:
        self._console.print(f"{self._title}: {visible(line)}", markup=False, soft_wrap=True)


def _child(event: Event) -> str:
    return "" if event.child is None else f"[{event.child}]"


@contextmanager
def live(console: Console, workflow: Workflow, title: str) -> Iterator[Listener]:
    """A listener that shows a run while the block lasts."""
    if not console.is_terminal:
        yield PlainLines(console, title)
        return
    view = LiveView(workflow, title)
    with Live(view, console=console, refresh_per_second=8):
        yield view


@contextmanager
def waiting(console: Console) -> Iterator[Callable[[str, float | None], None]]:
    """A `Progress` of the models room: a spinner that goes away on a terminal, a line for each step elsewhere."""
    if console.is_terminal:
        with console.status("") as status:
            yield lambda what, share: status.update(
                f"[dim]{plain(what)} …{'' if share is None else f' {share:.0%}'}[/]"
            )
        return
    said: list[str] = []

    def say(what: str, _share: float | None) -> None:
        if said[-1:] != [what]:
            said.append(what)
            console.print(f"{plain(what)} …", style="dim", soft_wrap=True)

    yield say
