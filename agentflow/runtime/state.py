"""One item's way through a workflow: its inputs, what nodes said, and the messages still needed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from agentflow.channels.base import Message
from agentflow.kv.payload import Payload
from agentflow.runtime.records import Answer, Record
from agentflow.runtime.results import NodeResult


@dataclass(eq=False)
class ItemState:
    """Changes while the item runs; only the orchestrator's thread and the unit that is running touch it.

    Attributes:
        results: by node, then by child (0 for a plain node).
        messages: of finished nodes, dropped as soon as no receiver is left.
        payloads: by sender, then by edge number and child, made once for channels that don't look at the task.
        awaited: by sender, how many receivers are not done yet.
        elements: of mapped nodes, the list they run over.
        errors: by unit, in words.
        skipped: units that were left out because the workflow says so, and why.
        failures: how often a unit has failed so far.
        answers: in a resumed run, what messages can be made from again (see `runtime.recall`).
        ended: loops that have ended early, with the rounds they came through.
        passed: nodes of rounds that were not needed any more, and the node of the last round that stands for them.
        values: inputs and outputs of sub-workflows, once they are worked out.
        recalling: held while that is done: several threads may ask for the same message.
    """

    id: str
    inputs: dict[str, Any]
    results: dict[str, dict[int, NodeResult]] = field(default_factory=dict)
    messages: dict[str, dict[int, Message]] = field(default_factory=dict)
    payloads: dict[str, dict[tuple[int, int], Payload]] = field(default_factory=dict)
    awaited: Counter[str] = field(default_factory=Counter)
    elements: dict[str, list[Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    open_nodes: set[str] = field(default_factory=set)
    answers: dict[str, dict[int, Answer]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    recalling: threading.Lock = field(default_factory=threading.Lock)
    _digests: dict[str, dict[int, str]] = field(default_factory=dict)
    _joint: dict[str, str] = field(default_factory=dict)

    def in_order(self, node: str) -> tuple[NodeResult, ...]:
        """A node's results in the order of its children."""
        found = self.results.get(node, {})
        return tuple(found[child] for child in sorted(found))

    def take(self, record: Record) -> None:
        """Keep what a unit left behind."""
        child = record.unit.child or 0
        self.results.setdefault(record.unit.node, {})[child] = record.result
        self._digests.setdefault(record.unit.node, {})[child] = record.digest

    def digest(self, node: str) -> str:
        """Of all that a finished node, children in their order, was asked and said; asked for by its receivers."""
        if node not in self._joint:
            found = self._digests.get(node, {})
            self._joint[node] = blake3("".join(found[child] for child in sorted(found)).encode()).hexdigest()
        return self._joint[node]

    def forget(self, *senders: str) -> None:
        """Drop what senders have for others where nobody waits for it; `recall` may need it, and calls this again."""
        if not self.recalling.acquire(blocking=False):
            return
        try:
            for sender in senders:
                if not self.awaited[sender]:
                    self.messages.pop(sender, None)
                    self.payloads.pop(sender, None)
        finally:
            self.recalling.release()

    def said(self, node: str) -> Mapping[str, Any] | None:
        """What templates see of a node: `text` (children joined by lines) and `texts`; None where it has not run.

        `value` and `values` are what tools gave, as it is; of a value that is a mapping, each key as well.
        """
        if node not in self.results:
            return None
        results = self.in_order(node)
        texts, values = [r.text for r in results], [r.shown for r in results]
        value = values[0] if len(values) == 1 else values
        keys = value if isinstance(value, dict) else {}
        return {**keys, "text": "\n".join(texts), "texts": texts, "value": value, "values": values}

    def rounds_of(self, loop: str) -> int | None:
        """After how many rounds a loop has ended early; None where it has not."""
        return self.ended.get(loop)

    def source(self, node: str) -> str:
        """The node that stands for one: itself, or, where a loop ended before its round, that of the last round."""
        return self.passed.get(node, node)
