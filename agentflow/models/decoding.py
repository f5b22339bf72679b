"""One row's way through decoding: choosing tokens, and knowing when to stop."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from agentflow.models.requests import Finish, Request, Sampling

_REPLACEMENT = "\ufffd"


class Sampler:
    """Chooses a row's next token from its logits, with transformers' own warpers in its usual order."""

    def __init__(self, sampling: Sampling) -> None:
        from transformers import (
            LogitsProcessorList,
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )

        self.greedy = sampling.temperature == 0.0
        self._warpers: Any = LogitsProcessorList()
        if self.greedy:
            return
        self._generator = torch.Generator().manual_seed(sampling.seed)
        self._warpers.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            self._warpers.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            self._warpers.append(TopPLogitsWarper(sampling.top_p))

    def choose(self, logits: Tensor) -> int:
        """The next token of `logits (vocabulary,)`; sampling runs on the CPU, so seeds mean the same everywhere."""
        if self.greedy:
            return int(logits.argmax())
        warped = self._warpers(None, logits.float().cpu().unsqueeze(0))
        return int(torch.multinomial(warped.softmax(dim=-1)[0], 1, generator=self._generator))


class Row:
    """The state of one request while it is decoded."""

    def __init__(self, request: Request, tokenizer: Any, end_ids: Collection[int]) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.text = ""
        self.finish: Finish | None = "prefill" if request.max_new_tokens == 0 else None
        self.first_token_seconds = self.seconds = 0.0
        self._sampler = Sampler(request.sampling)
        self._tokenizer, self._end_ids = tokenizer, end_ids
        self._spoken = 0

    def interrupted(self, elapsed: float) -> bool:
        """End the row before its next step when its time is up or it is called off."""
        if self.finish is None and self.request.cancelled is not None and self.request.cancelled():
            self.finish = "cancelled"
        elif self.finish is None and self.request.deadline is not None and elapsed >= self.request.deadline:
            self.finish = "deadline"
        return self.finish is not None

    def step(self, logits: Tensor, elapsed: float) -> int:
        """Take the next token from `logits (vocabulary,)` and decide whether the row goes on."""
        token = self._sampler.choose(logits)
        self.token_ids.append(token)
        self.seconds = elapsed
        if len(self.token_ids) == 1:
            self.first_token_seconds = elapsed
        if token in self._end_ids:
            self.finish = "end"
        else:
            self.text = self._tokenizer.decode(self.token_ids, skip_special_tokens=True)
            self._look_for_stop()
            if self.finish is None and len(self.token_ids) >= self.request.max_new_tokens:
                self.finish = "length"
        self._speak()
        return token

    def _look_for_stop(self) -> None:
        found = [at for s in self.request.stop if (at := self.text.find(s)) >= 0]
        if found:
            self.text, self.finish = self.text[: min(found)], "stop"

    def _speak(self) -> None:
        """Stream what is certain: not half a character, and not what may become a stop string."""
        if self.request.on_token is None:
            return
        end = len(self.text)
        if self.finish is None:
            if self.text.endswith(_REPLACEMENT):
                return
            held = (n for s in self.request.stop for n in range(len(s) - 1, 0, -1) if self.text.endswith(s[:n]))
            end -= max(held, default=0)
        if end > self._spoken:
            self.request.on_token(self.text[self._spoken : end])
            self._spoken = end
