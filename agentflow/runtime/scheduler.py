"""Which node may run next: pure bookkeeping over the graph, for any number of items, without models or threads.

Every item is one pass through the workflow. A unit is a node of an item, or one child of a mapped node. Units come
out in a fixed order (item, then topological place, then child), so the same run makes the same batches, and early
items finish, and free their caches, before late ones begin.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Unit:
    """A node of an item; `child` counts the elements of a map."""

    item: str
    node: str
    child: int | None = None

    def __str__(self) -> str:
        child = "" if self.child is None else f"[{self.child}]"
        return f"{self.item}/{self.node}{child}"


class Scheduler:
    """Tracks what is ready, running, done, failed and skipped.

    Args:
        order: node names in topological order.
        parents: for each node, the nodes it waits for.
        items: item ids in the order they should be served.
    """

    def __init__(self, order: Sequence[str], parents: Mapping[str, Sequence[str]], items: Sequence[str]) -> None:
        self._place = {node: n for n, node in enumerate(order)}
        self._items = {item: n for n, item in enumerate(items)}
        self._children_of: dict[str, list[str]] = {node: [] for node in order}
        for node, waits_for in parents.items():
            for parent in waits_for:
                self._children_of[parent].append(node)
        self._waiting = {(item, node): len(parents[node]) for item in items for node in order}
        self._open_children: dict[tuple[str, str], int] = {}
        self._closed: set[tuple[str, str]] = set()
        self._heard: set[tuple[str, str]] = set()  # nodes that something was left for by a node they wait for
        self._heap: list[tuple[int, int, int, Unit]] = []  # what has failed since it was put here is left out later
        self._running = 0
        for (item, node), count in self._waiting.items():
            if count == 0:
                self._push(Unit(item, node))

    @property
    def finished(self) -> bool:
        """Nothing is ready or running any more."""
        return self._running == 0 and self.peek() is None

    @property
    def running(self) -> int:
        """Units taken and not yet reported on."""
        return self._running

    def peek(self) -> Unit | None:
        """The next unit that `take` would give, or None."""
        while self._heap and (self._heap[0][3].item, self._heap[0][3].node) in self._closed:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def take(self) -> Unit:
        """The next ready unit; it counts as running until it is reported on."""
        if self.peek() is None:
            raise IndexError("nothing is ready")
        self._running += 1
        return heapq.heappop(self._heap)[3]

    def put_back(self, unit: Unit) -> None:
        """Return a unit that was taken but not started, or is to be tried again; nothing, if its node has failed."""
        self._running -= 1
        if (unit.item, unit.node) not in self._closed:
            self._push(unit)

    def expand(self, unit: Unit, count: int) -> None:
        """Replace a mapped node by its children; with none, the node is done at once."""
        self._running -= 1
        if count == 0:
            self._close(unit.item, unit.node)
            return
        self._open_children[unit.item, unit.node] = count
        for child in range(count):
            self._push(Unit(unit.item, unit.node, child))

    def finish(self, unit: Unit) -> bool:
        """Report success; true when this completed the node (its last child, or a plain node)."""
        self._running -= 1
        key = (unit.item, unit.node)
        if unit.child is not None:
            self._open_children[key] -= 1
            if self._open_children[key] > 0:
                return False
        if key in self._closed:
            return False
        self._close(*key)
        return True

    def fail(self, unit: Unit) -> list[Unit]:
        """Report failure: everything that depends on it is skipped; returns those units, in order."""
        self._running -= 1
        key = (unit.item, unit.node)
        if key in self._closed:
            return []
        self._closed.add(key)
        skipped, stack = [], list(self._children_of[unit.node])
        while stack:
            node = stack.pop()
            if (unit.item, node) not in self._closed:
                self._closed.add((unit.item, node))
                skipped.append(Unit(unit.item, node))
                stack.extend(self._children_of[node])
        return sorted(skipped, key=lambda u: self._place[u.node])

    def skip(self, unit: Unit) -> list[Unit]:
        """Report that a node is left out: what waits for nothing else is left out too; returns those, in order."""
        self._running -= 1
        self._closed.add((unit.item, unit.node))
        skipped, stack = [], [unit.node]
        while stack:
            for child in self._children_of[stack.pop()]:
                key = (unit.item, child)
                self._waiting[key] -= 1
                if self._waiting[key] or key in self._closed:
                    continue
                if key in self._heard:
                    self._push(Unit(unit.item, child))
                else:
                    self._closed.add(key)
                    skipped.append(Unit(unit.item, child))
                    stack.append(child)
        return sorted(skipped, key=lambda u: self._place[u.node])

    def _close(self, item: str, node: str) -> None:
        self._closed.add((item, node))
        for child in self._children_of[node]:
            self._heard.add((item, child))
            self._waiting[item, child] -= 1
            if self._waiting[item, child] == 0 and (item, child) not in self._closed:
                self._push(Unit(item, child))

    def _push(self, unit: Unit) -> None:
        child = -1 if unit.child is None else unit.child
        heapq.heappush(self._heap, (self._items[unit.item], self._place[unit.node], child, unit))
