"""One agent's turn: contexts in, a request to the engine, a trajectory out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentflow.channels.base import Channel, Context, Message, Task
from agentflow.kv.payload import Payload, Turn
from agentflow.models.chat import append_turn, conversation, reply_frame, tokens_of
from agentflow.models.engine import Engine
from agentflow.models.pool import Speaker
from agentflow.models.requests import Generation, Request, Sampling
from agentflow.models.tally import tallied
from agentflow.runtime.foundation import Foundation, gather, lay
from agentflow.runtime.memory import Limit, Standing, Trajectory
from agentflow.runtime.records import Key
from agentflow.runtime.results import MemoryResult, MessageResult, NodeResult
from agentflow.workflow.fields import Generation as GenerationSettings


@dataclass(frozen=True, eq=False)
class Delivery:
    """A message as it reached the receiver: what it stands on, what the way cost, and who is heard."""

    context: Context
    result: MessageResult
    speaker: str


@dataclass(frozen=True, eq=False)
class Turnplan:
    """A turn that is ready to be generated.

    Attributes:
        turns: the conversation up to the answer.
        foundation: what the agent's own tokens stand on.
        request: to the engine.
        prepared_seconds: hand-over and preparation, before the engine is asked.
        key: of everything the answer depends on, where it was asked for (see `runtime.questions`).
        memory: what was done to fit it into the agent's memory; None where it fitted.
    """

    turns: tuple[Turn, ...]
    foundation: Foundation
    request: Request
    deliveries: tuple[Delivery, ...]
    prepared_seconds: float
    key: Key = field(default_factory=dict)
    memory: MemoryResult | None = None


def deliver(
    channel: Channel, message: Message, task: Task, payload: Payload | None = None, *, sender: str | None = None
) -> tuple[Payload, Delivery]:
    """Send a message and receive it; a `payload` that was made for another receiver may be used again.

    Args:
        sender: the sending node's name for the result, where the message gives it a shorter one.
    """
    start = time.perf_counter()
    with tallied() as computed:
        made = payload if payload is not None else channel.send(message, task)
        sent = time.perf_counter()
        context = channel.read(made) if task.receiver is None else channel.receive(made, task.receiver)
    header = made.header
    result = MessageResult(
        sender=sender or message.sender,
        channel=channel.name,
        bytes=made.nbytes,
        tokens=header.tokens,
        kept=header.kept,
        encode_seconds=sent - start,
        inject_seconds=time.perf_counter() - sent,
        losses=header.losses,
        stats={**made.stats, **context.stats} or None,
        prefilled=computed.prefilled,
        generated=computed.generated,
        warnings=(*made.warnings, *context.warnings),
    )
    return made, Delivery(context, result, message.sender)


def plan_turn(
    speaker: Speaker,
    *,
    system: str,
    prompt: str,
    deliveries: Sequence[Delivery],
    settings: GenerationSettings,
    choices: Sequence[str] | None = None,
    seed: int,
    keep_cache: bool,
    reuse: bool,
    limit: Limit | None = None,
    cancelled: Callable[[], bool],
    on_token: Callable[[str], None] | None = None,
) -> Turnplan:
    """Join what was received with the agent's own prompt into a request.

    Args:
        choices: the answers it may give; by default any.
        reuse: look for computed prefixes in the engine's store, and let the answer's cache go there.
        limit: of the agent's memory.

    Raises:
        UserError: too many tokens for the model, or contexts that can't be joined.
    """
    start = time.perf_counter()
    history, note, caches = gather([d.context for d in deliveries], [d.speaker for d in deliveries])
    engine = speaker if isinstance(speaker, Engine) else None
    options = tuple(tuple(tokens_of(engine.tokenizer, choice)) for choice in choices or ()) if engine else ()
    new_tokens = settings.new_tokens
    if options:
        new_tokens = max(map(len, options)) + 1  # with the end behind it
    asked = f"{note}\n\n{prompt}" if note else prompt
    if engine is not None:
        standing = Trajectory(engine, system, asked, history, tuple(caches), new_tokens, reuse).within(limit)
        deliveries, foundation = rewritten(engine, standing.foundation, standing.turns, deliveries)
    else:
        turns = conversation(system, asked, history)
        standing = Standing(turns, lay(speaker, turns, caches, reply=True, reuse=False))
        foundation = standing.foundation
    handover = sum(d.result.encode_seconds + d.result.inject_seconds for d in deliveries)
    request = Request(
        foundation.suffix,
        foundation.prefix,
        max_new_tokens=new_tokens,
        sampling=Sampling(settings.temperature or 0.0, settings.top_p or 1.0, settings.top_k or 0, seed),
        stop=settings.stop or (),
        deadline=settings.timeout,
        keep_cache=engine is not None and (keep_cache or reuse),
        choices=options,
        cancelled=cancelled,
        on_token=on_token,
    )
    speaker.check(request)
    seconds = handover + time.perf_counter() - start
    return Turnplan(standing.turns, foundation, request, tuple(deliveries), seconds, memory=standing.memory)


def rewritten(
    engine: Engine, foundation: Foundation, turns: Sequence[Turn], deliveries: Sequence[Delivery]
) -> tuple[Sequence[Delivery], Foundation]:
    """Let messages change the cache of the agent's own turn, up to where it answers: computed here, for that."""
    if not any(d.context.rewrite for d in deliveries):
        return deliveries, foundation
    own, _ = reply_frame(engine.tokenizer, turns)
    end = min(foundation.head + len(own), len(foundation.token_ids) - 1)
    cache = foundation.prefix.before(end) if foundation.prefix is not None else None
    known = cache.next_position if cache is not None else 0
    cache = engine.prefill(foundation.token_ids[known:end], cache)
    heard, losses = [], list(foundation.losses)
    for delivery in deliveries:
        if delivery.context.rewrite is not None:
            start = time.perf_counter()
            cache = delivery.context.rewrite(cache)
            stats = {**(delivery.result.stats or {}), "adapt_seconds": time.perf_counter() - start}
            heard.append(replace(delivery, result=replace(delivery.result, stats=stats)))
            losses += delivery.context.losses
        else:
            heard.append(delivery)
    suffix = foundation.token_ids[end:]
    return heard, replace(foundation, prefix=cache, suffix=suffix, exact=False, losses=tuple(losses))


def close_turn(name: str, speaker: Speaker, plan: Turnplan, generation: Generation) -> tuple[NodeResult, Message]:
    """The result of a generated turn, and the message its receivers can be sent.

    Args:
        name: as whom the receivers' models hear the node, in whichever round of a loop.
    """
    engine = speaker if isinstance(speaker, Engine) else None
    spoke = plan.request.max_new_tokens > 0
    turns = append_turn(plan.turns, Turn("assistant", generation.text)) if spoke else plan.turns
    base = plan.foundation
    token_ids = (*base.token_ids, *generation.token_ids)
    if generation.cache is not None:
        token_ids = token_ids[: generation.cache.next_position]  # the last token's keys were never computed
        if base.exact and engine is not None:
            engine.prefixes.add(token_ids, generation.cache)
    message = Message(name, turns, generation.text.strip(), token_ids, generation.cache, engine, base.head, base.losses)
    result = NodeResult(
        text=generation.text.strip(),
        finish=generation.finish,
        prefilled=generation.prefilled,
        reused=generation.reused,
        generated=generation.generated,
        first_token_seconds=plan.prepared_seconds + generation.first_token_seconds,
        seconds=plan.prepared_seconds + generation.seconds,
        messages=tuple(d.result for d in plan.deliveries),
        memory=plan.memory,
        warnings=generation.warnings,
    )
    return result, message
