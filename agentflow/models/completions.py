"""Chat completions as OpenAI's API has them: what is asked, and what the server's answer says, piece by piece.

The form is served by vLLM, TGI, llama.cpp, Ollama, `transformers serve` and most hosted models. Answers are foreign
data: every field is looked at before it is used, and what does not fit is a `BadAnswer`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from agentflow.kv.payload import Turn
from agentflow.models.endpoint import Endpoint
from agentflow.models.requests import Finish, Request
from agentflow.models.unanswered import BadAnswer, failure

BYTES_PER_TOKEN = 4
"""What a token of English text is worth, where nobody says how many there are."""


def body_of(endpoint: Endpoint, turns: Sequence[Turn], request: Request) -> dict[str, Any]:
    """The fields of a request."""
    chosen = request.sampling
    body: dict[str, Any] = {
        "model": endpoint.name,
        "messages": [{"role": turn.role, "content": turn.content} for turn in turns],
        endpoint.length_field: request.max_new_tokens,
        "temperature": chosen.temperature,
        "seed": chosen.seed % 2**31,  # some servers read no more bits
    }
    if chosen.top_p < 1.0:
        body["top_p"] = chosen.top_p
    if chosen.top_k:
        body["top_k"] = chosen.top_k
    if request.stop:
        body["stop"] = list(request.stop)
    if endpoint.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in body.items() if name not in endpoint.omit} | endpoint.extra


def estimated_tokens(text: str) -> int:
    """About how many tokens a text is."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


def told(turns: Sequence[Turn]) -> int:
    """About how many tokens a conversation is, with four for the frame of each turn."""
    return sum(estimated_tokens(turn.content) + 4 for turn in turns)


@dataclass
class Reply:
    """An answer as far as it is there.

    Attributes:
        finish: why it ended; None while it has not.
        prompt, cached, generated: tokens as the server counts them; None until it says so.
    """

    text: str = ""
    finish: Finish | None = None
    prompt: int | None = None
    cached: int = 0
    generated: int | None = None
    _half: str = ""

    def take(self, data: str) -> str:
        """Take in one event of a stream, or a whole answer; returns the text that is new.

        Raises:
            BadAnswer: no JSON, no completion, or the server's own word that it failed.
        """
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise BadAnswer("it answered with something that is no JSON") from None
        if not isinstance(found, dict):
            raise BadAnswer("it answered with JSON that is no completion")
        if found.get("error"):
            said = failure(found)
            raise BadAnswer(f"the server says: {said}", passing=said.passing, status=said.status)
        self._count(found.get("usage"))
        choices = found.get("choices")
        return "" if choices == [] else self._choice(choices)  # a stream's last event may hold the usage alone

    def _choice(self, choices: Any) -> str:
        first = choices[0] if isinstance(choices, list) else None
        said = (first.get("delta") or first.get("message")) if isinstance(first, dict) else None
        if not isinstance(first, dict) or not isinstance(said or {}, dict):
            raise BadAnswer("it answered with JSON that is no completion")
        new = (said or {}).get("content")
        if new is not None and not isinstance(new, str):
            raise BadAnswer("it answered with content that is no text")
        why = first.get("finish_reason")
        new = self._whole(new or "", is_last=why is not None)
        self.text += new
        if why == "content_filter":
            raise BadAnswer("its content filter held the answer back", passing=False)
        if why is not None:
            self.finish = "length" if why == "length" else "end"
        return new

    def _whole(self, new: str, *, is_last: bool) -> str:
        """New text without half characters: JSON may cut one between two events, and say half of one that is none."""
        new = self._half + new
        self._half = new[-1:] if not is_last and "\ud800" <= new[-1:] <= "\udbff" else ""
        whole = new[: len(new) - len(self._half)]
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        prompt, generated = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if _is_count(prompt) and _is_count(generated):
            self.prompt, self.generated = prompt, generated
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self.cached = min(cached, prompt) if _is_count(cached) else 0


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
