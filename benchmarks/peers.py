"""What is measured beside us: transformers alone, and the package `avp` where it is installed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from agentflow.channels.base import Message
from agentflow.models.embedded import fetch
from agentflow.models.quiet import quiet_transformers
from agentflow.models.spec import resolve_model


def avp_connector(model: Any, tokenizer: Any) -> Any | None:
    """The Hugging Face connector of the package `avp` on the same weights; None when it is not installed."""
    try:
        from avp.connectors.huggingface import HuggingFaceConnector
    except ImportError:
        return None
    warnings.filterwarnings("ignore", message="AVP: generate")  # random words often end at once
    return HuggingFaceConnector(model=model, tokenizer=tokenizer, device="cpu")


class BareModel:
    """transformers' own forward pass of `own` tokens on a warm cache, with its own attention."""

    def __init__(self, name: str, message: Message, own: int) -> None:
        from transformers import AutoModelForCausalLM, DynamicCache

        with quiet_transformers():
            self.model = AutoModelForCausalLM.from_pretrained(
                str(fetch(resolve_model(name))), dtype=torch.float32, attn_implementation="sdpa"
            ).eval()
        assert message.cache is not None
        layers = zip(message.cache.keys, message.cache.values, strict=True)
        self.warm = DynamicCache([(k[None], v[None]) for k, v in layers])
        self.ids = torch.tensor([list(message.token_ids[:own])])
        self.length, self.own = len(message.cache), own

    def __call__(self) -> None:
        """One forward pass; the cache is cut back to where it was."""
        places = torch.arange(self.length, self.length + self.own)[None]
        with torch.no_grad():
            self.model(input_ids=self.ids, position_ids=places, past_key_values=self.warm, logits_to_keep=1)
        self.warm.crop(-self.own)


class AvpHandover:
    """The peer's way: think over the trajectory (not timed), then generate on its context."""

    def __init__(self, connector: Any, message: Message, prompt: str) -> None:
        turns = [{"role": t.role, "content": t.content} for t in message.turns]
        self.connector, self.prompt = connector, prompt
        self.context = connector.think(turns, steps=1)
        self.ready = self._fresh()

    def _fresh(self) -> Any:
        fresh = copy.copy(self.context)
        fresh.past_key_values = copy.deepcopy(self.context.past_key_values)
        return fresh

    def __call__(self) -> None:
        """One hand-over; its generate changes the context it is given, so the next copy is made outside."""
        self.connector.generate(self.prompt, context=self.ready, max_new_tokens=1, do_sample=False)
        self.ready = self._fresh()


class AvpContext:
    """The peer's way: think over the trajectory once, then generate on that context.

    Its `generate` changes the context it is given, so every use gets a copy, made outside the time.
    """

    def __init__(self, connector: Any, message: Message, prompt: str, new_tokens: int) -> None:
        turns = [{"role": t.role, "content": t.content} for t in message.turns]
        self.connector, self.prompt, self.new_tokens = connector, prompt, new_tokens
        self.context = connector.think(turns, steps=1)
        self.ready = self.context

    def prepare(self) -> None:
        """Copy the context."""
        self.ready = self.fresh()

    def fresh(self) -> Any:
        """A context that may be used up."""
        fresh = copy.copy(self.context)
        fresh.past_key_values = copy.deepcopy(self.context.past_key_values)
        return fresh

    def __call__(self) -> str:
        """Generate on the copy."""
        answer: str = self.connector.generate(
            self.prompt,
            context=self.ready,
            max_new_tokens=self.new_tokens,
            min_new_tokens=self.new_tokens,
            do_sample=False,
        )
        return answer
