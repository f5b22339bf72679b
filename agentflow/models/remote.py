"""A model that is served elsewhere: words go there, words come back, and whatever goes wrong between ends in one error.

Requests run on one event loop of the model's own, so that a deadline, a call-off or a lost connection ends them at
once, the server hears of it, and connections are used again. Callers wait on their own threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpx2

from agentflow.errors import ModelError
from agentflow.kv.payload import Turn
from agentflow.models.completions import Reply, body_of, estimated_tokens, told
from agentflow.models.pacing import Pace, backoff
from agentflow.models.requests import Finish, Generation, Request
from agentflow.models.spec import ModelSpec
from agentflow.models.unanswered import BadAnswer, ForeignAnswer, in_words, refused, too_long, unanswered

POLL = 0.1
"""Seconds between two looks at whether a request was called off."""
CONNECT = 30.0
"""The most seconds to wait for a connection."""
DRAIN = 0.2
"""Seconds for a server to close a finished stream, so that its connection can be used again."""
REFUSAL_BYTES = 1 << 16
ESTIMATED = "its endpoint does not count tokens: the numbers are estimates"

T = TypeVar("T")
log = logging.getLogger(__name__)


class RemoteModel:
    """Asks one endpoint. May be used from several threads.

    Raises:
        ModelError: the key that it needs is not set.
    """

    def __init__(self, spec: ModelSpec) -> None:
        if spec.remote is None:
            raise ModelError(f"'{spec.model}' is not served elsewhere.", fix="Load it with an engine.")
        self.spec, self.endpoint = spec, spec.remote
        self.endpoint.key()  # a missing one is told before anything runs
        limits = httpx2.Limits(max_connections=self.endpoint.max_concurrency)
        timeout = httpx2.Timeout(self.endpoint.silence, connect=min(CONNECT, self.endpoint.silence), pool=None)
        self._client = httpx2.AsyncClient(timeout=timeout, limits=limits)
        self._pace = Pace(self.endpoint.requests_per_minute)
        self._room = asyncio.Semaphore(self.endpoint.max_concurrency)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="agentflow-remote", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    @property
    def mark(self) -> str:
        """What must be equal for a stored answer to be this model's."""
        return self.endpoint.mark

    def check(self, request: Request) -> None:
        """Refuse what can't be asked of a remote model. Raises `ModelError`."""
        if request.max_new_tokens < 1:
            raise ModelError(f"'{self.spec.model}' is remote: it keeps no cache, so it has to say something.")
        if request.choices:
            raise ModelError(f"'{self.spec.model}' is remote: it does not tell how likely each choice is.")

    def answer(self, turns: Sequence[Turn], request: Request) -> Generation:
        """Ask for the next turn of a conversation, and again while what fails may pass.

        A deadline ends the answer where it is, as an engine's does.

        Raises:
            ModelError: no answer in all tries, or a failure that no other try would mend.
        """
        self.check(request)
        return self._wait_for(self._answer(turns, request))

    def names(self) -> list[str]:
        """The models that the endpoint serves. Raises `ModelError` where it can't be asked."""
        return self._wait_for(self._names())

    # -- inside, on the event loop ----------------------------------------------------------------------

    def _wait_for(self, asking: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _answer(self, turns: Sequence[Turn], request: Request) -> Generation:
        start = time.perf_counter()
        asked = _Asked(self, turns, request, start)
        work = asyncio.ensure_future(asked.tries())
        ended: Finish | None = None
        while not work.done() and ended is None:
            left = POLL if request.deadline is None else start + request.deadline - time.perf_counter()
            await asyncio.wait({work}, timeout=max(0.0, min(POLL, left)))
            if request.cancelled is not None and request.cancelled():
                ended = "cancelled"
            elif left <= 0:
                ended = "deadline"
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            return asked.generation(ended)
        work.result()
        return asked.generation()

    async def _names(self) -> list[str]:
        try:
            answer = await self._client.get(f"{self.endpoint.url}/models", headers=self._headers())
            if answer.status_code != 200:
                raise refused(answer, answer.text, self.endpoint)
            return sorted(str(one["id"]) for one in answer.json()["data"])
        except (BadAnswer, httpx2.HTTPError) as error:
            raise unanswered(self.spec, [in_words(error, self.endpoint)]) from None
        except (ValueError, LookupError, TypeError):
            raise unanswered(self.spec, [BadAnswer("it answered with no list of models")]) from None

    def _headers(self) -> dict[str, str]:
        key = self.endpoint.key()
        return {"Authorization": f"Bearer {key}"} if key is not None else {}

    async def post(self, body: bytes, reply: Reply, asked: _Asked) -> None:
        """One try. Raises `BadAnswer`, `TimeoutError` or httpx's errors."""
        await self._pace.turn()
        headers = {**self._headers(), "Content-Type": "application/json"}
        address = f"{self.endpoint.url}/chat/completions"
        async with (
            self._room,
            asyncio.timeout(self.endpoint.timeout),
            self._client.stream("POST", address, content=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise refused(response, await _read(response, REFUSAL_BYTES, cut=True), self.endpoint)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/event-stream":
                await self._stream(response, reply, asked)
            elif kind == "application/json":
                asked.said(reply.take(self.endpoint.cleaned(await _read(response, self.endpoint.max_bytes))))
            else:
                raise ForeignAnswer(f"it answered with {kind[:60] or 'no content type'}, not JSON", passing=False)
        if reply.finish is None:
            raise BadAnswer("its answer was cut before the end")

    async def _stream(self, response: httpx2.Response, reply: Reply, asked: _Asked) -> None:
        size, events = 0, aiter(httpx2.EventSource(response, max_event_size=self.endpoint.max_bytes))
        async for event in events:
            size += len(event.data)
            if size > self.endpoint.max_bytes:
                raise too_long(self.endpoint.max_bytes)
            if event.data.strip() == "[DONE]":
                reply.finish = reply.finish or "end"
                break
            if event.data:
                asked.said(reply.take(self.endpoint.cleaned(event.data)))
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                async for _ in events:
                    pass

    def hold(self, seconds: float) -> None:
        """Leave the server alone for a while."""
        self._pace.hold(seconds)


class _Asked:
    """One question on its way: the tries so far, and what has been said."""

    def __init__(self, model: RemoteModel, turns: Sequence[Turn], request: Request, start: float) -> None:
        self._model, self._turns, self._request, self._start = model, turns, request, start
        self._failures: list[BadAnswer] = []
        self._reply = Reply()
        self._first = 0.0

    async def tries(self) -> None:
        """Ask until there is an answer. Raises `ModelError`."""
        end = self._model.endpoint
        body = json.dumps(body_of(end, self._turns, self._request), ensure_ascii=False).encode("utf-8", "replace")
        while True:
            self._reply = Reply()
            try:
                return await self._model.post(body, self._reply, self)
            except (BadAnswer, TimeoutError, httpx2.HTTPError) as error:
                found = in_words(error, end)
            self._failures.append(found)
            patience = found.wait or 0.0
            if not found.passing or len(self._failures) > end.max_retries or patience > end.timeout:
                raise unanswered(self._model.spec, self._failures)
            wait = max(patience, backoff(len(self._failures)))
            log.info("%s: %s; try %d in %.1f s", self._model.spec.model, found, len(self._failures) + 1, wait)
            if found.wait is not None:
                self._model.hold(found.wait)
            if self._reply.text and self._request.on_token is not None:
                self._request.on_token("\n")  # what was heard is said again
            await asyncio.sleep(wait)

    def said(self, piece: str) -> None:
        """Take notice of new text."""
        if not piece:
            return
        self._first = self._first or time.perf_counter() - self._start
        if self._request.on_token is not None:
            self._request.on_token(piece)

    def generation(self, ended: Finish | None = None) -> Generation:
        """The answer as it is now; with why it was ended from here, where it was."""
        reply, seconds = self._reply, time.perf_counter() - self._start
        text, finish = reply.text, ended or reply.finish or "end"
        places = [at for stop in self._request.stop if (at := text.find(stop)) >= 0]
        if places:  # a server that knows no stop texts
            text, finish = text[: min(places)], "stop"
        counted = reply.prompt is not None and reply.generated is not None
        prompt = reply.prompt if reply.prompt is not None else told(self._turns)
        tries = Counter(map(str, self._failures))
        warnings = [f"asked {sum(tries.values()) + 1} times: {'; '.join(tries)}"] if tries else []
        return Generation(
            token_ids=(),
            text=text,
            finish=finish,
            prefilled=prompt - reply.cached,
            reused=reply.cached,
            first_token_seconds=self._first or seconds,
            seconds=seconds,
            counted=reply.generated if reply.generated is not None else estimated_tokens(text),
            warnings=tuple(warnings if counted else [*warnings, ESTIMATED]),
        )


async def _read(response: httpx2.Response, most: int, *, cut: bool = False) -> str:
    """A body as text: refused where it is longer than allowed, or cut there."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > most:
            if cut:
                break
            raise too_long(most)
    return body[:most].decode("utf-8", "replace")
