"""What is asked of an engine, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from agentflow.kv.cache import KVCache

Finish = Literal["end", "stop", "length", "deadline", "cancelled", "prefill"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: greedy at temperature 0, else sampled with a generator of its own `seed`."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Request:
    """One row of a batch.

    Attributes:
        token_ids: what to prefill, on top of `prefix`; not empty, but for a remote model, which is told words.
        prefix: a cache to stand on; requests with the same one share it.
        max_new_tokens: 0 prefills only.
        stop: strings that end the answer and are cut off it.
        deadline: seconds from the start of the call after which decoding ends.
        keep_cache: return the cache of prefix, prompt and answer.
        choices: tokens of the answers to choose from; where there are some, nothing else is answered. How likely each
            is, with the end behind it, takes the place of single tokens: `sampling` chooses among them.
        cancelled: asked before every step; true ends the row.
        on_token: called with each new piece of text.
    """

    token_ids: tuple[int, ...]
    prefix: KVCache | None = None
    max_new_tokens: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    deadline: float | None = None
    keep_cache: bool = False
    choices: tuple[tuple[int, ...], ...] = ()
    cancelled: Callable[[], bool] | None = None
    on_token: Callable[[str], None] | None = None


@dataclass(frozen=True, eq=False)
class Generation:
    """An answer.

    Attributes:
        token_ids: the new tokens, the end token or stop string's tokens included.
        text: their text, special tokens and stop string cut off.
        prefilled: tokens that were computed for the prompt; `reused` came from the prefix.
        cache: of prefix, prompt and all new tokens but the last, when asked for.
        first_token_seconds: from the call to the first token; `seconds` to the last.
        counted: how many tokens a remote model says it wrote, which gives its words and not its tokens.
        warnings: what somebody should know about how the answer came, in words.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: Finish
    prefilled: int
    reused: int
    first_token_seconds: float
    seconds: float
    cache: KVCache | None = None
    counted: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def generated(self) -> int:
        """How many tokens were written."""
        return len(self.token_ids) if self.counted is None else self.counted


@dataclass(frozen=True, eq=False)
class Score:
    """How likely an answer is.

    Attributes:
        log_probs: `(n,)` natural log-probability of each token of the answer.
        distribution: `(n, vocabulary)` log-probabilities at these places, when asked for.
    """

    log_probs: Tensor
    distribution: Tensor | None = None

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood per token, in nats."""
        return -float(self.log_probs.mean())
