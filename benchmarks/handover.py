"""First token over a hand-over of 2,048 positions, with a worker's own turn of 40 tokens.

Beside it: the bare model forward of as many tokens on a warm cache (the limit), the same message over `text`, and
the package `avp` on the same weights and prompts.
"""

from __future__ import annotations

from agentflow.channels.base import Message
from agentflow.models.engine import Engine
from benchmarks.common import arguments, engine, interleaved, paired, ratio, report
from benchmarks.peers import AvpContext, BareModel, avp_connector
from benchmarks.scene import own_prompt, request_over, trajectory

TRAJECTORY, OWN = 2048, 40


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    ours = engine(chosen.model)
    message = trajectory(ours, TRAJECTORY)
    prompt = own_prompt(ours, message, OWN)
    bare = BareModel(chosen.model, message, OWN)
    ways = {
        "bare forward": bare,
        "cache": lambda: first_token(ours, message, prompt, "cache"),
        "text": lambda: first_token(ours, message, prompt, "text"),
    }
    connector = avp_connector(bare.model, ours.tokenizer)
    if connector is not None:
        ways["avp"] = AvpContext(connector, message, prompt, new_tokens=1)
    n = 15 if chosen.quick else 40
    seconds = interleaved(n, ways, few={"text": 2 if chosen.quick else 8})
    figures = {
        "first_token_over_bare": paired(seconds["cache"], seconds["bare forward"]),
        "text_over_cache_first_token": ratio(seconds["text"], seconds["cache"]),
        "avp_over_ours": ratio(seconds["avp"], seconds["cache"]) if "avp" in seconds else None,
    }
    report("Hand-over: first token", seconds, figures, trajectory=TRAJECTORY, own=OWN, model=chosen.model)


def first_token(ours: Engine, message: Message, prompt: str, channel: str) -> int:
    """Everything between the sender's message and the receiver's first token."""
    request = request_over(ours, message, prompt, channel, new_tokens=1)
    return ours.generate([request])[0].prefilled


if __name__ == "__main__":
    main()
