"""Which token of one model stands for which token of another in a conversation, and which layer for which layer.

Tokens are aligned by the bytes they write, so that a character which several tokens share, or which one tokenizer cuts
and the other doesn't, needs no rule of its own. A conversation's rendering has sections: the contents of its turns, and
the chat template's own text before, between and behind them. Contents are the same for both models and are aligned by
overlap; template text differs, is aligned by its order only, and never with contents.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from agentflow.errors import AdapterError
from agentflow.kv.payload import Turn
from agentflow.models.chat import frames

LayerRule = Literal["terminal", "depth"]

_tables: weakref.WeakKeyDictionary[Any, list[bytes]] = weakref.WeakKeyDictionary()
_SPELT_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SLACK = 16  # bytes that a tokenizer may put before a text: a space, a mark of the beginning


def token_bytes(tokenizer: Any, token_ids: Sequence[int]) -> list[bytes]:
    """The bytes that each token writes: byte-level tokens, SentencePiece ones with byte fallback, special tokens."""
    if tokenizer not in _tables:
        _tables[tokenizer] = _table(tokenizer)
    table = _tables[tokenizer]
    return [table[i] if i < len(table) else b"" for i in token_ids]


def spans_of(tokenizer: Any, token_ids: Sequence[int], turns: Sequence[Turn]) -> Tensor:
    """Where each token stands in a conversation: section, first and last byte in it `(T, 3)`, int64.

    Section `2n + 1` is the content of turn `n`; `2n` is the template's text before it, and the last one that behind
    all turns. A token on the border belongs where most of its bytes are.

    Args:
        token_ids: of the conversation, as rendered, or cut short, or ending in tokens that the model wrote itself.
    """
    pieces = token_bytes(tokenizer, token_ids)
    ends = list(accumulate(len(piece) for piece in pieces))
    borders = _borders(tokenizer, b"".join(pieces), turns)
    rows, section = [], 0
    for piece, end in zip(pieces, ends, strict=True):
        start = end - len(piece)
        while section + 1 < len(borders) and start + end >= 2 * borders[section + 1][0]:
            section += 1
        origin = borders[section][1]
        rows.append((section, start - origin, end - origin))
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


def align(receiver: Tensor, sender: Tensor) -> Tensor:
    """For each of the receiver's tokens the sender's one of the same text, or -1 `(T,)`.

    In contents it is the token that shares most bytes; of two that share as many the later, which has seen more. In
    the template's text the last tokens stand for the last ones, behind the last turn the first for the first.

    Args:
        receiver, sender: `spans_of` one conversation, by the two models' tokenizers.
    """
    ours, theirs = _by_section(receiver), _by_section(sender)
    partners = [-1] * len(receiver)
    for section, places in ours.items():
        others = theirs.get(section, [])
        if section % 2:
            _overlap(partners, places, receiver, others, sender)
        elif section == max(ours):
            partners[places[0] : places[0] + min(len(places), len(others))] = others[: len(places)]
        else:
            for place, other in zip(reversed(places), reversed(others), strict=False):
                partners[place] = other
    return torch.tensor(partners, dtype=torch.int64)


def align_layers(sender: int, receiver: int, rule: LayerRule | Sequence[int]) -> tuple[int, ...]:
    """The sender's layer for each of the receiver's layers.

    Args:
        sender, receiver: numbers of layers.
        rule: terminal: the last for the last, and so on to the front, where the first stands for what is left over;
            depth: at the same share of the depth; or the layers' numbers themselves.

    Raises:
        AdapterError: the numbers are not those of the two models' layers.
    """
    if rule == "terminal":
        return tuple(max(0, n + sender - receiver) for n in range(receiver))
    if rule == "depth":
        return tuple((2 * n * (sender - 1) + receiver - 1) // max(1, 2 * (receiver - 1)) for n in range(receiver))
    assert not isinstance(rule, str)
    if len(rule) != receiver or not all(0 <= n < sender for n in rule):
        raise AdapterError(f"{len(rule)} layers {tuple(rule)} don't join {receiver} to layers 0 to {sender - 1}.")
    return tuple(rule)


def _by_section(spans: Tensor) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, section in enumerate(spans[:, 0].tolist()):
        found.setdefault(section, []).append(place)
    return found


def _overlap(partners: list[int], places: list[int], receiver: Tensor, others: list[int], sender: Tensor) -> None:
    spans = sender[others, 1:].tolist()
    first = 0
    for place in places:
        start, end = receiver[place, 1:].tolist()
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        most = 0
        for n in range(first, len(spans)):
            shared = min(end, spans[n][1]) - max(start, spans[n][0])
            if spans[n][0] >= end:
                break
            if shared >= max(most, 1):
                partners[place], most = others[n], shared


def _borders(tokenizer: Any, data: bytes, turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Where each section of a rendering begins, as far as it goes like the template says, and where its byte 0 is."""
    marks = [frame.encode() for frame in frames(tokenizer, turns)]
    borders, at = [(0, 0)], 0
    for n, turn in enumerate(turns[: len(marks) - 1]):
        found = data.find(marks[n], at)
        span = _content(data, found + len(marks[n]), turn.content, marks[n + 1]) if found >= 0 else None
        if span is None:
            break
        start, at, stripped = span
        borders += [(start, start - stripped), (at, at)]
    return borders


def _content(data: bytes, at: int, content: str, behind: bytes) -> tuple[int, int, int] | None:
    """Where a turn's content starts and ends near `at`, and how many of its first bytes the template stripped.

    None where it is not there. A space that some templates strip may also belong to what stands behind the content.
    """
    spans = []
    for text in (content, content.strip()):
        start = data.find(text.encode(), at, at + len(text.encode()) + _SLACK)
        if start >= 0:
            stripped = 0 if text == content else len(content.encode()) - len(content.lstrip().encode())
            spans.append((start, start + len(text.encode()), stripped))
    fitting = (span for span in spans if behind.startswith(data[span[1] : span[1] + len(behind)]))
    return next(fitting, spans[0] if spans else None)


def _table(tokenizer: Any) -> list[bytes]:
    """The bytes of every token of a vocabulary."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    by_bytes = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()
    letters = _byte_letters() if by_bytes else {}
    added = {int(i) for i in tokenizer.added_tokens_decoder}
    table = []
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        byte = None if by_bytes else _SPELT_BYTE.fullmatch(token or "")
        if byte is not None:
            table.append(bytes([int(byte[1], 16)]))
        elif by_bytes and number not in added and all(letter in letters for letter in token or ""):
            table.append(bytes(letters[letter] for letter in token or ""))
        else:
            table.append((token or "").replace("▁", "▁" if number in added else " ").encode())
    return table


@lru_cache(maxsize=1)
def _byte_letters() -> dict[str, int]:
    """The letter that byte-level tokenizers (GPT-2's) write for each byte: itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (b for b in range(256) if b not in printable)
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
