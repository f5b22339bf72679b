"""The scene of the benchmarks: a reader with a long trajectory, workers with prompts of a given length."""

from __future__ import annotations

from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.models.chat import conversation, render
from agentflow.models.engine import Engine
from agentflow.models.requests import Request
from agentflow.runtime.agent import deliver, plan_turn
from agentflow.workflow.fields import Generation

TEXT = "the quick brown fox jumps over a lazy dog while seven red boats drift along the quiet river at dawn"
WORDS = TEXT.split()


def trajectory(ours: Engine, length: int) -> Message:
    """A reader's message whose conversation renders to `length` tokens."""
    for count in range(length, 0, -1):
        turns = conversation("", " ".join(WORDS[i % len(WORDS)] for i in range(count)))
        ids = tuple(render(ours.tokenizer, turns, reply=False))
        if len(ids) <= length:
            return Message("read", turns, "", ids, ours.prefill(ids), ours)
    raise ValueError("the template alone is longer than that")


def own_prompt(ours: Engine, message: Message, length: int) -> str:
    """A prompt that leaves about `length` tokens to prefill on the message's cache."""
    for count in range(1, length + 1):
        prompt = " ".join(WORDS[i % len(WORDS)] for i in range(count))
        ids = render(ours.tokenizer, conversation("", prompt, message.turns), reply=True)
        if len(ids) - len(message.token_ids) >= length - 3:  # the turn's end marks are computed anew
            return prompt
    raise ValueError("no prompt of that length")


def request_over(ours: Engine, message: Message, prompt: str, channel: str, new_tokens: int) -> Request:
    """Send the message over a channel, receive it, and make the receiver's request, as the runtime does."""
    _, delivery = deliver(make_channel(channel), message, Task(prompt, "", ours))
    plan = plan_turn(
        ours,
        system="",
        prompt=prompt,
        deliveries=[delivery],
        settings=Generation(max_new_tokens=new_tokens),
        seed=0,
        keep_cache=False,
        reuse=False,
        cancelled=lambda: False,
    )
    return plan.request
