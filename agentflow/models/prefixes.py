"""Token prefixes that are computed already: a radix tree over token ids, one for each engine.

A growing trajectory prefills only its new end: the longest stored prefix of its tokens is found and stood on. Caches
that extend one another share memory (see `kv.arena`), so the tree holds views, and its bytes are counted once for
each buffer. The least recently used entries go first when a byte budget is passed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentflow.kv.cache import KVCache


@dataclass(eq=False)
class _Node:
    """A stretch of tokens below its parent, and the caches that end in or below it."""

    tokens: tuple[int, ...]
    parent: _Node | None = None
    children: dict[int, _Node] = field(default_factory=dict)
    cache: KVCache | None = None  # covers every token from the root to the end of this node


@dataclass(frozen=True)
class PrefixStats:
    """What re-use saved so far.

    Attributes:
        lookups: sequences looked up; `hits` of them shared at least one token with a stored one.
        tokens_found: positions that need not be computed, of `tokens_asked`.
        bytes: held now, in `entries` caches.
    """

    lookups: int
    hits: int
    tokens_asked: int
    tokens_found: int
    bytes: int
    entries: int


class PrefixStore:
    """Finds the longest computed prefix of a token sequence.

    Args:
        max_bytes: budget for the buffers behind the stored caches.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.max_bytes = max_bytes
        self._root = _Node(())
        self._recent: OrderedDict[int, _Node] = OrderedDict()  # by id of the node, oldest first
        self._lock = threading.Lock()
        self._lookups = self._hits = self._asked = self._found = 0

    def find(self, token_ids: Sequence[int]) -> tuple[KVCache | None, int]:
        """The cache of the longest stored prefix, cut to what is shared, and its length in tokens."""
        with self._lock:
            node, shared = self._descend(token_ids)
            holder = node if node.cache is not None else _below(node)
            self._lookups += 1
            self._asked += len(token_ids)
            if holder is None or shared == 0:
                return None, 0
            assert holder.cache is not None
            self._hits += 1
            self._found += shared
            self._recent.move_to_end(id(holder))
            return holder.cache.before(shared), shared

    def add(self, token_ids: Sequence[int], cache: KVCache) -> None:
        """Remember `cache`, which covers exactly `token_ids` with every position kept.

        A compacted or biased cache is not the prefix of any longer text, and is ignored.
        """
        if not cache.contiguous or len(token_ids) != len(cache) or not token_ids:
            return
        with self._lock:
            node = self._insert(tuple(token_ids))
            node.cache = cache
            self._recent[id(node)] = node
            self._recent.move_to_end(id(node))
            # An ancestor's cache is a view of this one's beginning: one buffer need not be held twice.
            above = node.parent
            while above is not None:
                if above.cache is not None:
                    self._forget(above)
                above = above.parent
            self._evict()

    @property
    def stats(self) -> PrefixStats:
        """Hit statistics and what is held."""
        with self._lock:
            return PrefixStats(self._lookups, self._hits, self._asked, self._found, self._bytes(), len(self._recent))

    def clear(self) -> None:
        """Forget everything but the statistics."""
        with self._lock:
            self._root = _Node(())
            self._recent.clear()

    # -- the tree -----------------------------------------------------------------------------------------

    def _descend(self, token_ids: Sequence[int]) -> tuple[_Node, int]:
        """The node in or at whose end the agreement ends, and how many tokens agree."""
        node, at = self._root, 0
        while at < len(token_ids) and (child := node.children.get(token_ids[at])) is not None:
            shared = _shared(child.tokens, token_ids, at)
            node, at = child, at + shared
            if shared < len(child.tokens):
                break
        return node, at

    def _insert(self, token_ids: tuple[int, ...]) -> _Node:
        node, at = self._root, 0
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None:
                child = _Node(token_ids[at:], node)
                node.children[token_ids[at]] = child
                return child
            shared = _shared(child.tokens, token_ids, at)
            if shared < len(child.tokens):
                child = _split(node, child, shared)
            node, at = child, at + shared
        return node

    def _forget(self, node: _Node) -> None:
        """Drop a node's cache, and branches that then lead nowhere."""
        node.cache = None
        self._recent.pop(id(node), None)
        while node.parent is not None and not node.children and node.cache is None:
            del node.parent.children[node.tokens[0]]
            node = node.parent

    def _bytes(self) -> int:
        buffers = {n.cache.keys[0].untyped_storage().data_ptr(): n.cache for n in self._recent.values() if n.cache}
        return sum(cache.buffer_bytes for cache in buffers.values())

    def _evict(self) -> None:
        while len(self._recent) > 1 and self._bytes() > self.max_bytes:
            self._forget(next(iter(self._recent.values())))


def _shared(tokens: tuple[int, ...], token_ids: Sequence[int], at: int) -> int:
    """How many of a node's tokens agree with `token_ids` from `at` on."""
    limit = min(len(tokens), len(token_ids) - at)
    n = 0
    while n < limit and tokens[n] == token_ids[at + n]:
        n += 1
    return n


def _split(parent: _Node, child: _Node, at: int) -> _Node:
    """Cut a node in two after `at` tokens; the upper half is returned."""
    upper = _Node(child.tokens[:at], parent)
    parent.children[child.tokens[0]] = upper
    child.tokens, child.parent = child.tokens[at:], upper
    upper.children[child.tokens[0]] = child
    return upper


def _below(node: _Node) -> _Node | None:
    """Some node below that holds a cache: everything there begins with what leads to `node`."""
    stack = [node]
    while stack:
        found = stack.pop()
        if found.cache is not None:
            return found
        stack.extend(found.children.values())
    return None
