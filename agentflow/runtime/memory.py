"""An agent's memory: how long its conversation may become, and what is done with one that would become longer.

What counts is all that a turn holds at once: the positions it stands on, its new prompt, and the longest answer it may
give. `fail` says so and does nothing; `drop_oldest` goes on with a shorter conversation, as if its beginning had never
been said; `compact` goes on with the whole of it, in fewer positions, chosen and fitted by latent briefing for the
prompt that comes next.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from agentflow.channels.base import Context
from agentflow.channels.briefing_settings import LatentBriefingSettings
from agentflow.channels.compaction import compact
from agentflow.channels.selection import scene_of
from agentflow.channels.trajectory import read
from agentflow.errors import AgentMemoryError
from agentflow.kv.payload import Turn
from agentflow.models.chat import conversation
from agentflow.models.engine import Engine
from agentflow.models.loading import local_positions, local_windows
from agentflow.models.spec import ModelSpec
from agentflow.models.tally import tallied
from agentflow.runtime.foundation import Foundation, lay
from agentflow.runtime.results import MemoryResult
from agentflow.workflow.frames import address
from agentflow.workflow.parts import MemorySpec
from agentflow.workflow.problems import Problem
from agentflow.workflow.schema import Workflow


@dataclass(frozen=True)
class Limit:
    """The memory of one agent, and the unit that is about to speak for it.

    Attributes:
        where: the limit is written.
    """

    spec: MemorySpec
    agent: str
    unit: str
    where: str


@dataclass(frozen=True, eq=False)
class Standing:
    """A conversation up to its newest prompt, and what its tokens stand on."""

    turns: tuple[Turn, ...]
    foundation: Foundation
    memory: MemoryResult | None = None


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A turn that is about to be taken.

    Attributes:
        history: the conversation that it continues, the newest of `caches` a rendering of it where there are some.
        prompt: the newest one, with what stands at its head.
        new_tokens: of the longest answer.
        reuse: whether computed prefixes are looked for in the engine's store.
    """

    engine: Engine
    system: str
    prompt: str
    history: tuple[Turn, ...]
    caches: tuple[Context, ...]
    new_tokens: int
    reuse: bool

    def laid(self) -> Standing:
        """Lay it out as it is."""
        turns = conversation(self.system, self.prompt, self.history)
        return Standing(turns, lay(self.engine, turns, self.caches, reply=self.new_tokens > 0, reuse=self.reuse))

    def held(self, foundation: Foundation) -> int:
        """How many tokens it holds on a foundation, its answer included."""
        return foundation.length + self.new_tokens

    def within(self, limit: Limit | None) -> Standing:
        """Lay it out so that it holds no more than its agent's memory does.

        Raises:
            AgentMemoryError: it would hold more, and the policy is to fail, or has nothing left to give up.
        """
        whole = self.laid()
        if limit is None or self.held(whole.foundation) <= limit.spec.max_tokens:
            return whole
        start, needed = time.perf_counter(), self.held(whole.foundation)
        with tallied() as computed:
            if limit.spec.policy == "drop_oldest":
                made = _shortened(self, limit)
            elif limit.spec.policy == "compact":
                made = _compacted(self, limit, whole)
            else:
                raise _too_long(limit, needed, "", "Raise it, send the agent less, or choose another `policy`.")
        assert made.memory is not None
        seconds = time.perf_counter() - start
        return replace(made, memory=replace(made.memory, tokens=needed, prefilled=computed.prefilled, seconds=seconds))


def _shortened(whole: Trajectory, limit: Limit) -> Standing:
    """The longest end of the conversation that fits; instructions stay, and it begins with a question again."""
    told = len(list(takewhile(lambda turn: turn.role == "system", whole.history)))
    said = whole.history[told:]
    starts = [n for n in range(1, len(said) + 1) if n == len(said) or said[n].role == "user"]

    def without(dropped: int) -> Trajectory:
        return replace(whole, history=(*whole.history[:told], *said[dropped:]))

    def fits(dropped: int) -> bool:
        return whole.held(without(dropped).laid().foundation) <= limit.spec.max_tokens

    place = bisect_left(starts, True, key=fits)
    if place == len(starts):
        shortest = without(len(said)).laid().foundation
        raise _too_long(limit, whole.held(shortest), " without any earlier turn", _SHORTER)
    made = without(starts[place]).laid()
    held = whole.held(made.foundation)
    return replace(made, memory=MemoryResult(limit.spec.policy, limit.spec.max_tokens, held, dropped=starts[place]))


def _compacted(whole: Trajectory, limit: Limit, laid: Standing) -> Standing:
    """The whole conversation, in as many positions as there is room for behind the newest prompt and the answer."""
    engine, base = whole.engine, laid.foundation
    if not whole.caches and whole.history:
        cache, token_ids, _ = read(whole.history, engine)
        known = Context(whole.history, cache=cache, token_ids=token_ids)
        base = replace(whole, caches=(known,)).laid().foundation
    settings = LatentBriefingSettings(threshold="top_k")
    room = limit.spec.max_tokens - whole.new_tokens - len(base.suffix)
    if base.prefix is None or room <= settings.sinks:
        needed = len(base.suffix) + whole.new_tokens
        raise _too_long(limit, needed, " for its newest turn alone", _SHORTER)
    scene = scene_of(engine, base.prefix, base.token_ids, whole.history, whole.system, whole.prompt, base.head)
    assert scene is not None  # the foundation's own tokens are those of this conversation
    briefing = compact(scene, settings.model_copy(update={"top_k": room}))
    kept, of = len(briefing.cache), len(base.prefix)
    losses = (*base.losses, f"memory: {kept} of {of} positions kept")
    made = replace(base, prefix=briefing.cache, exact=False, losses=losses)
    figures = MemoryResult(
        limit.spec.policy, limit.spec.max_tokens, whole.held(made), kept=kept, of=of, stats=briefing.stats
    )
    return Standing(laid.turns, made, figures)


_SHORTER = "Raise it, shorten the prompt, or lower `max_new_tokens`."


def _too_long(limit: Limit, needed: int, for_what: str, fix: str) -> AgentMemoryError:
    return AgentMemoryError(
        f"The memory of the agent '{limit.agent}' holds {limit.spec.max_tokens:,} tokens, and '{limit.unit}' needs "
        f"{needed:,}{for_what}, the longest answer included.",
        where=limit.where,
        fix=fix,
    )


def memory_problems(workflow: Workflow, models: dict[str, ModelSpec]) -> Iterator[Problem]:
    """Say which agents' memories can't hold a turn, or don't fit their models, as far as that is known unloaded."""
    limited = {name: agent.memory for name, agent in workflow.agents.items() if agent.memory is not None}
    longest = dict.fromkeys(limited, (0, ""))
    for node in workflow.nodes:
        agent = "" if workflow.is_tool(node) else workflow.agent_node(node).agent
        if agent in limited and workflow.agent_node(node).choose is None:
            longest[agent] = max(longest[agent], (workflow.effective(node).new_tokens, node))
    for name, spec in limited.items():
        yield from _misfits(workflow, name, spec, models.get(name), *longest[name])


def _misfits(
    workflow: Workflow, agent: str, spec: MemorySpec, model: ModelSpec | None, new_tokens: int, node: str
) -> Iterator[Problem]:
    path = ("agents", agent, "memory")
    if model is not None and model.remote is not None:
        what = f"'{model.model}' is remote, and its tokens can't be counted here before it has read them"
        yield workflow.problem(path, what, "Leave it out: the endpoint says so where a conversation is too long.")
        return
    if new_tokens >= spec.max_tokens:
        what = f"'{address(node)}' may answer with {new_tokens:,} tokens, which leaves no room for what it is asked"
        yield workflow.problem((*path, "max_tokens"), what, "Raise it, or lower `max_new_tokens`.")
    positions = local_positions(model) if model is not None else None
    if model is not None and positions is not None and spec.max_tokens > positions:
        what = f"the model '{model.model}' has {positions:,} positions, fewer than {spec.max_tokens:,}"
        yield workflow.problem((*path, "max_tokens"), what, f"Write {positions} or less, or choose another model.")
    if spec.policy == "compact" and model is not None and local_windows(model):
        what = f"'{model.model}' has sliding-window layers, whose positions can't be dropped"
        yield workflow.problem((*path, "policy"), what, "Use drop_oldest or fail.")
