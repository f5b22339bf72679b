"""An engine whose model is elsewhere: it asks actors, and knows of the model what can be known without weights.

Everything above sees an engine. Requests of one call are shared out among the model's actors and answered side by side;
caches come back as views of the object store, and go out again as references.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import ray
import torch
from torch import Tensor

from agentflow.errors import ModelError
from agentflow.kv.cache import KVCache
from agentflow.models import attention
from agentflow.models.engine import Engine
from agentflow.models.loading import LoadedModel
from agentflow.models.plan import Plan
from agentflow.models.requests import Generation, Request, Score
from agentflow.models.spec import ModelSpec
from agentflow.models.tally import count
from agentflow.runtime.executors.actors.actor import Answered, Ask, Description
from agentflow.runtime.executors.actors.crew import LIVES, LOST, MOVING, Crew, Member, reason_of, result_of
from agentflow.runtime.executors.actors.shelf import Held, Shelf
from agentflow.runtime.executors.actors.views import tensor_of

POLL = 0.1
"""Seconds between two looks at what is being written, and whether it is still wanted."""
NEW = 8.0
"""What a new token costs, in tokens prefilled."""


@dataclass(eq=False)
class _Part:
    """Requests that one actor is at work on."""

    member: Member
    numbers: list[int]
    weight: float
    name: str
    refs: list[Any]
    is_stopped: bool = False
    news: Any = None


class ActorEngine(Engine):
    """An engine on the actors of a model.

    Args:
        shelf: of caches in the object store.
    """

    def __init__(self, spec: ModelSpec, crew: Crew, shelf: Shelf) -> None:
        seen = crew.seen
        loaded = LoadedModel(
            spec, _shell(seen), seen.tokenizer, torch.device("cpu"), seen.dtype, seen.fingerprint, seen.ropes
        )
        super().__init__(loaded, prefix_bytes=shelf.max_bytes)
        self.crew, self.shelf = crew, shelf

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Answer all requests, in their order, by as many actors as there are.

        Raises:
            ModelError: as `Engine.generate`; no actor is left; or they die of these requests.
        """
        for request in requests:
            self.check(request)
        work = _Work(requests)
        parts = self._share(work, range(len(requests)))
        try:
            while parts:
                done, _ = ray.wait([part.refs[0] for part in parts], timeout=POLL)
                self._follow(parts, work)
                for part in [part for part in parts if part.refs[0] in done]:
                    parts.remove(part)
                    self.crew.end(part.member, part.weight)
                    try:
                        head, *kept = result_of(part.refs)
                    except LOST as error:
                        self._lost(part.member, error)
                        work.lost(part.numbers, error, self.loaded.spec.model)
                        parts += self._share(work, part.numbers)
                        continue
                    self._take(part, head, kept, work)
        finally:
            for part in parts:
                self.crew.end(part.member, part.weight)
                part.member.handle.stop.remote(part.name)
        return [work.answers[number] for number in range(len(requests))]

    def queries(self, cache: KVCache | None, token_ids: Sequence[int]) -> tuple[Tensor, ...]:
        """Queries of `token_ids` on top of `cache`, per layer `(heads, n, head_dim)`, after RoPE."""
        found = self._ask("queries", cache, tuple(token_ids))
        count(prefilled=len(token_ids))
        return tuple(tensor_of(blocks, form) for blocks, form in found)

    def score(
        self, prefix: KVCache | None, prompt: Sequence[int], answer: Sequence[int], *, keep_distribution: bool = False
    ) -> Score:
        """How likely `answer` is behind `prefix` and `prompt` (not empty)."""
        found: Score = self._ask("score", prefix, tuple(prompt), tuple(answer), keep_distribution)
        count(prefilled=len(prompt) + len(answer))
        return found

    def likelihoods(self, prefix: KVCache | None, token_id: int, answers: Sequence[Sequence[int]]) -> list[float]:
        """How likely each answer is behind `prefix` and one more token: natural logarithms, summed over its tokens."""
        found: list[float] = self._ask("likelihoods", prefix, token_id, [tuple(answer) for answer in answers])
        count(prefilled=sum(1 + len(answer) for answer in answers))
        return found

    def logits(self, requests: Sequence[Request], keep: int) -> NoReturn:
        """Gradients don't cross processes.

        Raises:
            ModelError: always.
        """
        del requests, keep
        raise _elsewhere(self, "trained against")

    def run_model(self, ids: Tensor, plan: Plan, cache: Any, keep: int = 1) -> NoReturn:
        """A plan of attention names memory of this process.

        Raises:
            ModelError: always.
        """
        del ids, plan, cache, keep
        raise _elsewhere(self, "used to recompute positions (`recompute`)")

    # -- inside -----------------------------------------------------------------------------------------

    def _share(self, work: _Work, numbers: Sequence[int]) -> list[_Part]:
        """Give every request to an actor, and each actor its requests in one call."""
        given: dict[int, tuple[Member, list[int], float]] = {}
        held: dict[int, Held] = {}
        for number in numbers:
            request = work.requests[number]
            weight = len(request.token_ids) + NEW * request.max_new_tokens
            near: list[str] = []
            moved = 0.0
            if request.prefix is not None:
                held[number] = self.shelf.hold(request.prefix)
                near, moved = self._nodes_of(held[number]), MOVING * len(request.prefix)
            member = self.crew.begin(weight, near, moved, partial(_is_wanted, request))
            if member is None:
                work.answers[number] = Generation((), "", "cancelled", 0, 0, 0.0, 0.0)
                continue
            _, mine, total = given.get(id(member), (member, [], 0.0))
            given[id(member)] = member, [*mine, number], total + weight
        return [self._call(work.requests, member, mine, weight, held) for member, mine, weight in given.values()]

    def _call(
        self, requests: Sequence[Request], member: Member, numbers: list[int], weight: float, held: dict[int, Held]
    ) -> _Part:
        refs = list(dict.fromkeys(held[n].ref for n in numbers if n in held))
        asks = []
        for n in numbers:
            bare = replace(requests[n], prefix=None, cancelled=None, on_token=None)
            is_heard = requests[n].on_token is not None
            if n in held:
                asks.append(Ask(bare, refs.index(held[n].ref), held[n].before, is_heard))
            else:
                asks.append(Ask(bare, is_heard=is_heard))
        name = secrets.token_hex(8)
        found = member.handle.generate.options(num_returns=1 + len(asks)).remote(name, asks, *refs)
        return _Part(member, numbers, weight, name, found)

    def _nodes_of(self, held: Held) -> list[str]:
        """Nodes that have an object; asked for only where actors are on several."""
        if len({member.node for member in self.crew.members}) < 2:
            return []
        return list(ray.experimental.get_object_locations([held.ref]).get(held.ref, {}).get("node_ids", []))

    def _follow(self, parts: Sequence[_Part], work: _Work) -> None:
        """Pass on what is being written, and stop what is not wanted any more."""
        for part in parts:
            mine = [work.requests[n] for n in part.numbers]
            if not part.is_stopped and not any(map(_is_wanted, mine)):
                part.is_stopped = True
                part.member.handle.stop.remote(part.name)
            if not any(request.on_token for request in mine):
                continue
            if part.news is not None and ray.wait([part.news], timeout=0)[0]:
                try:
                    texts = ray.get(part.news)
                except LOST:  # told by the call itself
                    texts = None
                part.news = None
                if texts is not None:
                    work.tell(part.numbers, texts)
            if part.news is None:
                part.news = part.member.handle.said.remote(part.name)

    def _take(self, part: _Part, head: Answered, kept: list[Any], work: _Work) -> None:
        count(prefilled=head.tally.prefilled, generated=head.tally.generated)
        for number, answer, shipped, ref in zip(part.numbers, head.answers, kept, part.refs[1:], strict=True):
            cache = None
            if shipped is not None:
                cache = shipped.cache()
                self.shelf.keep(cache, ref)
            work.answers[number] = replace(answer, cache=cache, warnings=(*answer.warnings, *work.losses[number]))
        work.tell(part.numbers, head.texts)

    def _ask(self, method: str, cache: KVCache | None, *arguments: Any) -> Any:
        """Call a method of some actor, on a cache, and wait for its result."""
        for left in reversed(range(LIVES)):
            held = None if cache is None else self.shelf.hold(cache)
            on = (0,) if held is None else (held.before, held.ref)
            member = self.crew.begin(1.0, self._nodes_of(held) if held else ())
            assert member is not None
            try:
                return result_of(getattr(member.handle, method).remote(*arguments, *on))
            except LOST as error:
                self._lost(member, error)
                if not left:
                    raise _hopeless(self.loaded.spec.model, error) from None
            finally:
                self.crew.end(member, 1.0)

    def _lost(self, member: Member, error: Exception) -> None:
        """An actor is gone, or a cache is: what we hold of it is then put into the store again."""
        if isinstance(error, ray.exceptions.ObjectLostError):
            self.shelf.clear()
        else:
            self.crew.missed(member, error)


class _Work:
    """What is asked of one call, and what has come of it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.answers: dict[int, Generation] = {}
        self.losses: list[list[str]] = [[] for _ in requests]
        self._heard = [""] * len(requests)

    def lost(self, numbers: Sequence[int], error: Exception, model: str) -> None:
        """Requests have to be asked again.

        Raises:
            ModelError: that has been so too often.
        """
        for number in numbers:
            self.losses[number].append(f"an actor of '{model}' was lost; this was asked again")
            if len(self.losses[number]) >= LIVES:
                raise _hopeless(model, error)

    def tell(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Pass on what is new of a text; one that is written again after a loss is heard once."""
        for number, text in zip(numbers, texts, strict=True):
            on_token, heard = self.requests[number].on_token, self._heard[number]
            if on_token is not None and len(text) > len(heard):
                on_token(text[len(heard) :])
                self._heard[number] = text


def _is_wanted(request: Request) -> bool:
    return request.cancelled is None or not request.cancelled()


def _hopeless(model: str, error: Exception) -> ModelError:
    return ModelError(
        f"{LIVES} actors of '{model}' were lost over the same request: {reason_of(error)}",
        fix="If their memory was not enough, give fewer requests at once (--batch).",
    )


def _shell(seen: Description) -> Any:
    """The model without weights: its configuration and modules, for what is asked of these."""
    from transformers import AutoModelForCausalLM

    attention.register()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(seen.config)
    model.generation_config = seen.generation_config
    return model.eval().requires_grad_(False)


def _elsewhere(engine: Engine, what: str) -> ModelError:
    return ModelError(
        f"'{engine.loaded.spec.model}' is on Ray actors and can't be {what} from here.",
        fix="Leave that out, or run with --executor local.",
    )
