"""From conversations to tokens, exactly as the model's chat template gives them.

A receiver's turn is appended to the *conversation* and the whole is rendered again; what a cached prefix shares with
the rendering, token for token, is kept, and the rest is prefilled. So a turn may end inside a cached prefix, the
tokenizer may merge across the seam, the template may rewrite earlier turns: the joined sequence is always the
template's own, and a cache can only ever save work, never change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentflow.errors import ModelError
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Turn


def append_turn(turns: Sequence[Turn], turn: Turn) -> tuple[Turn, ...]:
    """The conversation with one more turn; a turn of the same role as the last one is merged into it.

    Many templates insist on alternating roles, and a message handed over often ends with the user's turn.
    """
    if turns and turns[-1].role == turn.role:
        merged = Turn(turn.role, f"{turns[-1].content}\n\n{turn.content}")
        return (*turns[:-1], merged)
    return (*turns, turn)


def conversation(system: str, prompt: str, history: Sequence[Turn] = ()) -> tuple[Turn, ...]:
    """An agent's conversation: its system turn, or, behind a `history` that has one already, its instructions
    at the head of its own user turn."""
    if not history:
        first = (Turn("system", system),) if system else ()
        return (*first, Turn("user", prompt))
    told = any(t.role == "system" and t.content == system for t in history)
    return append_turn(history, Turn("user", f"{system}\n\n{prompt}" if system and not told else prompt))


def render(tokenizer: Any, turns: Sequence[Turn], *, reply: bool) -> list[int]:
    """Token ids of a conversation; with `reply`, up to where the assistant's answer begins.

    Models without a chat template get the contents, one paragraph a turn.

    Raises:
        ModelError: the template refuses this conversation (an order of roles it does not know).
    """
    text = _rendered(tokenizer, turns, reply=reply)
    is_chat = bool(getattr(tokenizer, "chat_template", None))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if is_chat else tokenizer(text)["input_ids"]
    return [int(i) for i in ids]


def anchor(tokenizer: Any) -> tuple[int, ...]:
    """The token that every conversation begins with: it stands before a message that has positions of its own.

    Models put much of their attention on the first position, whatever it says (arXiv 2309.17453).
    """
    return tuple(render(tokenizer, conversation("", "-"), reply=False)[:1])


def reply_frame(tokenizer: Any, turns: Sequence[Turn]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A conversation's tokens up to where the assistant's turn opens, and that opening: at least one token."""
    whole = render(tokenizer, turns, reply=True)
    shared = shared_length(render(tokenizer, turns, reply=False), whole[:-1])
    return tuple(whole[:shared]), tuple(whole[shared:])


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def frames(tokenizer: Any, turns: Sequence[Turn]) -> list[str]:
    """The template's own text before each turn's content and behind the last; shorter where it leaves a turn out.

    Found by rendering marks in place of the contents. Raises `ModelError` as `render` does.
    """
    marks = [f"⟦content of turn {n}⟧" for n in range(len(turns))]
    rest = _rendered(tokenizer, [Turn(t.role, mark) for t, mark in zip(turns, marks, strict=True)], reply=False)
    found = []
    for mark in marks:
        if mark not in rest:
            break
        frame, _, rest = rest.partition(mark)
        found.append(frame)
    return [*found, rest]


def _rendered(tokenizer: Any, turns: Sequence[Turn], *, reply: bool) -> str:
    messages = [{"role": t.role, "content": t.content} for t in turns]
    if not getattr(tokenizer, "chat_template", None):
        return "\n\n".join(t.content for t in turns) + ("\n\n" if reply else "")
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply))
    except Exception as error:  # templates raise what they like (jinja2.TemplateError and others)
        raise ModelError(f"The model's chat template refuses this conversation: {error}") from error


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text inside a conversation, such as a whole answer."""
    return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]


def prompt_span(tokenizer: Any, system: str, prompt: str, history: Sequence[Turn]) -> tuple[list[int], slice]:
    """An agent's turn behind `history` up to where it answers, and which of its tokens are the prompt's own words.

    Found by rendering the turn without the prompt: what is equal at both ends is frame (template, instructions).
    """
    whole = render(tokenizer, conversation(system, prompt, history), reply=True)
    bare = render(tokenizer, conversation(system, "", history), reply=True)
    start = shared_length(whole, bare)
    tail = shared_length(whole[start:][::-1], bare[start:][::-1])
    stop = len(whole) - tail
    return whole, slice(start, stop) if start < stop else slice(0, len(whole))


@dataclass(frozen=True, eq=False)
class Joined:
    """A rendering on top of a cache: what is kept of the cache, and the tokens still to prefill."""

    token_ids: tuple[int, ...]
    prefix: KVCache | None
    suffix: tuple[int, ...]


def join(token_ids: Sequence[int], cache: KVCache | None, cached_ids: Sequence[int], head: int = 0) -> Joined:
    """Stand `token_ids` on a cache of `cached_ids` as far as they agree; at least one token is left to prefill.

    Args:
        head: where the conversation begins in the cache; what other conversations left before it is kept.
    """
    shared = 0
    if cache is not None:
        limit = min(len(token_ids) - 1, len(cached_ids) - head, cache.next_position - head)
        while shared < limit and token_ids[shared] == cached_ids[head + shared]:
            shared += 1
    prefix = cache.before(head + shared) if cache is not None and head + shared else None
    return Joined(tuple(token_ids), prefix, tuple(token_ids[shared:]))
