"""What an agent's own tokens stand on: nothing, one conversation's cache, several joined, or a stored prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentflow.channels.base import Context
from agentflow.errors import ChannelError
from agentflow.kv.cache import KVCache
from agentflow.kv.fanin import concat, overlaid
from agentflow.kv.payload import Turn
from agentflow.models.blend import recompute
from agentflow.models.chat import join, render
from agentflow.models.engine import Engine
from agentflow.models.pool import Speaker
from agentflow.models.remote import RemoteModel


@dataclass(frozen=True, eq=False)
class Foundation:
    """The cache to stand on and the tokens still to prefill.

    Attributes:
        token_ids: of everything, joined conversations first.
        head: where the agent's conversation begins in them.
        exact: whether the cache is what a prefill of `token_ids` would give, so that it may be stored by them.
        losses: in words, where it is not.
    """

    token_ids: tuple[int, ...]
    prefix: KVCache | None
    suffix: tuple[int, ...]
    head: int = 0
    exact: bool = True
    losses: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """How many positions it holds once everything is prefilled."""
        return len(self.suffix) + (len(self.prefix) if self.prefix is not None else 0)


def gather(contexts: Sequence[Context], senders: Sequence[str]) -> tuple[tuple[Turn, ...], str, list[Context]]:
    """Several contexts as one conversation to continue, a note for the head of the prompt, and caches in order.

    One conversation is continued; caches that come without one stand before it. Of several conversations, those that
    come with caches are joined behind one another and the last of them is continued; those in words are quoted in the
    note. What several senders have fused into the receiver's cache of one conversation is added up.

    Raises:
        ChannelError: a cache without its conversation.
    """
    caches = _added_up([c for c in contexts if c.cache is not None])
    talks = [(c, s) for c, s in zip(contexts, senders, strict=True) if c.turns and c.cache is None]
    if any(not c.turns and c.head < len(c.token_ids) for c in caches):
        raise ChannelError("A cache came without the conversation it was computed from.")
    caches.sort(key=lambda c: bool(c.turns))  # what stands before any conversation first
    notes = [c.note for c in contexts if c.note]
    if not any(c.turns for c in caches) and len(talks) == 1:
        return talks[0][0].turns, "\n\n".join(notes), caches
    quotes = [_quote(c, sender) for c, sender in talks]
    history = caches[-1].turns if caches else ()
    return history, "\n\n".join([*quotes, *notes]), caches


def lay(speaker: Speaker, turns: Sequence[Turn], caches: Sequence[Context], *, reply: bool, reuse: bool) -> Foundation:
    """Stand the rendering of an agent's conversation on what it received, or on what the engine has computed.

    A remote model stands on nothing: its conversation is rendered where it runs.
    """
    if isinstance(speaker, RemoteModel):
        return Foundation((), None, ())
    engine, token_ids = speaker, render(speaker.tokenizer, turns, reply=reply)
    if not caches:
        cache, found = engine.prefixes.find(token_ids) if reuse else (None, 0)
        joined = join(token_ids, cache, token_ids[:found])
        return Foundation(joined.token_ids, joined.prefix, joined.suffix)
    last = caches[-1]
    joined = join(token_ids, last.cache, last.token_ids, last.head)
    if len(caches) == 1:
        own = (*last.token_ids[: last.head], *token_ids)
        exact = not last.losses and last.cache is not None and last.cache.contiguous
        return Foundation(own, joined.prefix, joined.suffix, last.head, exact, last.losses)
    pieces = [(c.cache, c.token_ids) for c in caches[:-1] if c.cache is not None]
    if joined.prefix is not None:
        pieces.append((joined.prefix, last.token_ids))
    return _fan_in(engine, token_ids, joined.suffix, pieces, caches)


def _fan_in(
    engine: Engine,
    token_ids: Sequence[int],
    suffix: tuple[int, ...],
    pieces: Sequence[tuple[KVCache, tuple[int, ...]]],
    caches: Sequence[Context],
) -> Foundation:
    last = caches[-1]
    how = last.joining
    prefix = concat([cache for cache, _ in pieces], engine.loaded.ropes, drop_sinks=how.drop_sinks)
    before = tuple(t for cache, ids in pieces for t in ids[: cache.next_position])
    first = pieces[0][0].next_position
    losses = [f"{len(pieces)} caches joined, keys re-rotated"]
    if how.recompute and len(pieces) > 1:
        prefix = recompute(engine, prefix, before, start=first, share=how.recompute)
        losses.append(f"{how.recompute:.0%} of the later positions recomputed")
    # Where the agent's own conversation begins: behind everything but the last piece.
    head = len(before) + len(suffix) - len(token_ids)
    kept = tuple(loss for c in caches for loss in c.losses)
    return Foundation((*before, *suffix), prefix, suffix, head, exact=False, losses=(*kept, *losses))


def _added_up(caches: Sequence[Context]) -> list[Context]:
    """Contexts with one for each conversation that something was fused into."""
    found: list[Context] = []
    for context in caches:
        place = next((n for n, c in enumerate(found) if _alike(c, context)), -1)
        if place < 0:
            found.append(context)
            continue
        first = found[place]
        assert first.cache is not None
        assert context.cache is not None
        assert context.base is not None
        cache = overlaid(first.cache, context.cache, context.base)
        found[place] = replace(first, cache=cache, losses=(*first.losses, *context.losses))
    return found


def _alike(one: Context, other: Context) -> bool:
    """Whether something was fused into both, and into the same tokens."""
    return one.base is not None and other.base is not None and one.token_ids == other.token_ids


def _quote(context: Context, sender: str) -> str:
    lines = [f"Conversation of {sender}:"]
    lines += [f"{t.role}: {t.content}" for t in context.turns if t.role != "system"]
    return "\n".join(lines)
