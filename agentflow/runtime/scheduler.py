"""Which node may run next: pure bookkeeping over the graph, for any number of items, without models or threads.

Every item is one pass through the workflow. A unit is a node of an item, or one child of a mapped node. Units come
out in a fixed order (item, then topological place, then child), so the same run makes the same batches, and early
items finish, and free their caches, before late ones begin.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice


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
        after: for each node, more nodes that it waits for, though they send it nothing: whether they were left out
            makes no difference to it.
    """

    def __init__(
        self,
        order: Sequence[str],
        parents: Mapping[str, Sequence[str]],
        items: Sequence[str],
        *,
        after: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._place = {node: n for n, node in enumerate(order)}
        self._items = {item: n for n, item in enumerate(items)}
        self._parents, after = parents, after or {}
        self._children_of: dict[str, list[str]] = {node: [] for node in order}
        self._followers_of: dict[str, list[str]] = {node: [] for node in order}
        for waits, found in ((parents, self._children_of), (after, self._followers_of)):
            for node, others in waits.items():
                for other in others:
                    found[other].append(node)
        counts = {node: len(parents[node]) + len(after.get(node, ())) for node in order}
        self._waiting = {(item, node): count for item in items for node, count in counts.items()}
        self._open_children: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], Iterator[int]] = {}  # children of a map that are let in one by one
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

    def expand(self, unit: Unit, count: int, at_once: int | None = None) -> None:
        """Replace a mapped node by its children; with none, the node is done at once.

        Args:
            at_once: how many may be ready or running at the same time.
        """
        self._running -= 1
        if count == 0:
            self._close(unit.item, unit.node)
            return
        key = (unit.item, unit.node)
        self._open_children[key] = count
        self._held[key] = iter(range(count))
        for child in islice(self._held[key], at_once or count):
            self._push(Unit(*key, child))

    def finish(self, unit: Unit) -> bool:
        """Report success; true when this completed the node (its last child, or a plain node)."""
        self._running -= 1
        key = (unit.item, unit.node)
        if unit.child is not None:
            self._open_children[key] -= 1
            if self._open_children[key] > 0:
                held = next(self._held[key], None)
                if held is not None and key not in self._closed:
                    self._push(Unit(*key, held))
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
        skipped, stack = [], self._dependants(unit.node)
        while stack:
            node = stack.pop()
            if (unit.item, node) not in self._closed:
                self._closed.add((unit.item, node))
                skipped.append(Unit(unit.item, node))
                stack.extend(self._dependants(node))
        return sorted(skipped, key=lambda u: self._place[u.node])

    def skip(self, unit: Unit) -> list[Unit]:
        """Report that a node is left out: what waits for nothing else is left out too; returns those, in order."""
        self._running -= 1
        self._closed.add((unit.item, unit.node))
        skipped, stack = [], [unit.node]
        while stack:
            for child in self._dependants(stack.pop()):
                key = (unit.item, child)
                self._waiting[key] -= 1
                if self._waiting[key] or key in self._closed:
                    continue
                if key in self._heard or not self._parents[child]:
                    self._push(Unit(unit.item, child))
                else:
                    self._closed.add(key)
                    skipped.append(Unit(unit.item, child))
                    stack.append(child)
        return sorted(skipped, key=lambda u: self._place[u.node])

    def _close(self, item: str, node: str) -> None:
        self._closed.add((item, node))
        self._heard.update((item, child) for child in self._children_of[node])
        for child in self._dependants(node):
            self._waiting[item, child] -= 1
            if self._waiting[item, child] == 0 and (item, child) not in self._closed:
                self._push(Unit(item, child))

    def _dependants(self, node: str) -> list[str]:
        return self._children_of[node] + self._followers_of[node]

    def _push(self, unit: Unit) -> None:
        child = -1 if unit.child is None else unit.child
        heapq.heappush(self._heap, (self._items[unit.item], self._place[unit.node], child, unit))
