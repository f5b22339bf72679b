"""A trajectory that grows in 20 turns to 4,096 tokens: how many tokens are prefilled in all."""

from __future__ import annotations

import time

from agentflow.kv.payload import Turn
from agentflow.models.chat import append_turn, conversation, join, render
from agentflow.models.engine import Engine
from agentflow.models.requests import Request
from benchmarks.common import arguments, engine, report
from benchmarks.scene import WORDS

LENGTH, TURNS, SPOKEN = 4096, 20, 8


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    ours = engine(chosen.model)
    prefilled, length, seconds = grow(ours, LENGTH, TURNS)
    figures = {"prefilled_over_length": prefilled / length}
    stats = ours.prefixes.stats
    report(
        "A growing trajectory",
        {"a turn": seconds},
        figures,
        prefilled=prefilled,
        length=length,
        turns=TURNS,
        found=stats.tokens_found,
        asked=stats.tokens_asked,
        model=chosen.model,
    )


def grow(ours: Engine, length: int, turns: int) -> tuple[int, int, list[float]]:
    """Ask and answer until the conversation has about `length` tokens; tokens prefilled, length, seconds a turn."""
    history: tuple[Turn, ...] = ()
    prefilled, ids, seconds = 0, [], []
    for turn in range(1, turns + 1):
        history, ids = ask(ours, history, turn, turn * length // turns)
        start = time.perf_counter()
        cache, found = ours.prefixes.find(ids)
        joined = join(ids, cache, ids[:found])
        answer = ours.generate([Request(joined.suffix, joined.prefix, max_new_tokens=SPOKEN, keep_cache=True)])[0]
        seconds.append(time.perf_counter() - start)
        prefilled += answer.prefilled
        assert answer.cache is not None
        ours.prefixes.add((*ids, *answer.token_ids)[: answer.cache.next_position], answer.cache)
        history = append_turn(history, Turn("assistant", answer.text))
    return prefilled, len(ids), seconds


def ask(ours: Engine, history: tuple[Turn, ...], turn: int, length: int) -> tuple[tuple[Turn, ...], list[int]]:
    """A further question, so long that everything up to the answer has about `length` tokens."""
    count = length
    while True:
        prompt = f"{turn}: " + " ".join(WORDS[i % len(WORDS)] for i in range(count))
        turns = conversation("", prompt, history)
        ids = render(ours.tokenizer, turns, reply=True)
        if len(ids) <= length or count <= 1:
            return turns, ids
        count -= max(1, (len(ids) - length) // 2)


if __name__ == "__main__":
    main()
