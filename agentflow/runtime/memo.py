"""Turns that were taken before: the same conversation, standing on nothing, asked of the same model in the same way.

Comparisons run every channel over the same sender; its turn is computed once. Nodes that receive something are never
looked up: what they cost is what is measured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from agentflow.models.pool import Speaker
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Turnplan


class Memo:
    """The latest `size` such turns, caches included.

    A turn found here may have been made without a cache where one is needed now; then it is not used.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.hits = 0
        self._turns: OrderedDict[Hashable, Generation] = OrderedDict()

    def find(self, speaker: Speaker, plan: Turnplan) -> Generation | None:
        """The answer to the same request, or None."""
        key = self._key(speaker, plan)
        found = self._turns.get(key) if key is not None else None
        if found is None or (plan.request.keep_cache and found.cache is None):
            return None
        self.hits += 1
        self._turns.move_to_end(key)
        return found

    def add(self, speaker: Speaker, plan: Turnplan, answer: Generation) -> None:
        """Remember an answer."""
        key = self._key(speaker, plan)
        if key is not None and answer.finish not in ("deadline", "cancelled"):
            self._turns[key] = answer
            while len(self._turns) > self.size:
                self._turns.popitem(last=False)

    def _key(self, speaker: Speaker, plan: Turnplan) -> Hashable | None:
        request = plan.request
        if plan.deliveries or request.prefix is not None:
            return None
        return (
            id(speaker),
            plan.turns,
            request.token_ids,
            request.max_new_tokens,
            request.sampling,
            request.stop,
            request.choices,
        )
