"""AgentFlow in LangGraph and LangChain: a workflow as a node of a graph, and an engine as a chat model.

Needs the extra `langgraph`. Both are ordinary Runnables, so `invoke`, `stream`, `batch`, their asynchronous forms,
callbacks and tracing work as for any other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Literal

from pydantic import Field

from agentflow.errors import RunError, UserError, did_you_mean
from agentflow.kv.payload import Turn
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Generation, Request, Sampling
from agentflow.models.spec import resolve_model
from agentflow.runtime.flow import Flow
from agentflow.runtime.foundation import Foundation, lay
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.results import ItemResult
from agentflow.workflow.inputs import resolve_inputs

try:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable
except ImportError as error:
    raise UserError("LangGraph is not installed.", fix="pip install 'agentflow-kv[langgraph]'") from error

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {"system": "system", "human": "user", "ai": "assistant"}
_ASKED = ("max_tokens", "temperature", "top_p", "top_k", "seed")


class WorkflowNode(Runnable):  # type: ignore[misc]  # langchain_core is not looked into by mypy
    """A workflow as a node of a graph: state in, what is new in the state out.

    Args:
        flow: of `agentflow.load_workflow`.
        inputs: the state's key for each of the workflow's inputs, where it is named otherwise.
        outputs: the state's key for each output that is wanted; by default all of them, by their own names.
        channel: put every message but those of fixed edges on this channel.

    Raises:
        UserError: an input or output that the workflow does not have, or a workflow that can't run.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        channel: str | Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> None:
        self.flow, self.options, self.name = flow, options, flow.workflow.name
        for named, known, what in (
            (inputs or {}, flow.workflow.inputs, "input"),
            (outputs or {}, flow.workflow.outputs, "output"),
        ):
            for name in named:
                if name not in known:
                    raise UserError(f"'{self.name}' has no {what} '{name}'.", fix=did_you_mean(name, known))
        self._inputs = {name: (inputs or {}).get(name, name) for name in flow.workflow.inputs}
        self._outputs = dict(outputs) if outputs is not None else {name: name for name in flow.workflow.outputs}
        self._binding = flow.bind(channel)

    def invoke(self, input: Any, config: Any = None, **_: Any) -> dict[str, Any]:
        """Run the workflow once on a state. Raises `RunError` where a node has failed, `UserError` for its inputs."""
        found: dict[str, Any] = self._call_with_config(self._one, input, config, run_type="chain")
        return found

    def batch(
        self, inputs: list[Any], config: Any = None, *, return_exceptions: bool = False, **_: Any
    ) -> list[dict[str, Any]]:
        """Run the workflow on many states as one run, so that nodes of one model are answered in batches."""
        if not inputs:
            return []
        found: list[dict[str, Any]] = self._batch_with_config(
            self._many, inputs, config, return_exceptions=return_exceptions, run_type="chain"
        )
        return found

    def _one(self, state: Mapping[str, Any]) -> dict[str, Any]:
        (found,) = self._many([state])
        if isinstance(found, Exception):
            raise found
        return found

    def _many(self, states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Exception]:
        found: list[dict[str, Any] | Exception] = []
        items = []
        for number, state in enumerate(states):
            try:
                items.append((str(number), resolve_inputs(self.flow.workflow, self._given(state))))
                found.append({})
            except UserError as error:
                found.append(error)
        runner = Orchestrator(self._binding, self.flow.engines, options=self.options)
        for result in runner.run(items) if items else []:
            found[int(result.item)] = self._taken(result)
        return found

    def _given(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: state[key] for name, key in self._inputs.items() if key in state}

    def _taken(self, result: ItemResult) -> dict[str, Any] | Exception:
        if result.errors:
            told = "; ".join(f"{unit.partition('/')[2] or unit}: {what}" for unit, what in result.errors.items())
            return RunError(f"The workflow '{self.name}' has failed: {told}")
        return {key: result.outputs[name] for name, key in self._outputs.items()}


class EngineChat(BaseChatModel):  # type: ignore[misc]
    """An engine as a chat model. A conversation that goes on computes its new end alone (`cache_read` in the usage).

    Attributes:
        model: a name, a hub id, a folder, or a mapping, as in a workflow.
        engines: shared with workflows, a model is loaded once.
    """

    model: str | dict[str, Any] = "smollm2-135m"
    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int = 0
    engines: EnginePool = Field(default_factory=EnginePool, exclude=True, repr=False)

    @property
    def engine(self) -> Engine:
        """The engine that answers, loaded the first time. Raises `ModelError`."""
        return self.engines.get(resolve_model(self.model))

    @property
    def _llm_type(self) -> str:
        return "agentflow"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, **{name: getattr(self, name) for name in _ASKED}}

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **asked: Any) -> Any:
        del run_manager
        answer = self._answered(*self._request(messages, stop, asked))
        message = AIMessage(answer.text, usage_metadata=_usage(answer), response_metadata=_about(self, answer))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **asked: Any) -> Iterator[Any]:
        pieces: SimpleQueue[str | Generation | BaseException] = SimpleQueue()
        gone = threading.Event()
        foundation, request = self._request(messages, stop, asked, pieces=pieces, gone=gone)

        def work() -> None:
            try:
                pieces.put(self._answered(foundation, request))
            except BaseException as error:  # noqa: BLE001 - raised again where it is listened to
                pieces.put(error)

        threading.Thread(target=work, name="agentflow-chat", daemon=True).start()
        try:
            while isinstance(piece := pieces.get(), str):
                chunk = ChatGenerationChunk(message=AIMessageChunk(piece))
                if run_manager is not None:
                    run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk
        finally:
            gone.set()  # whoever stops listening stops the engine
        if isinstance(piece, BaseException):
            raise piece
        about = _about(self, piece)
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=_usage(piece), response_metadata=about))

    def _request(
        self,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        asked: Mapping[str, Any],
        *,
        pieces: SimpleQueue[Any] | None = None,
        gone: threading.Event | None = None,
    ) -> tuple[Foundation, Request]:
        for name in asked:
            if name not in _ASKED:
                raise UserError(f"An engine has no setting '{name}'.", fix=did_you_mean(name, _ASKED))
        said = {name: asked.get(name, getattr(self, name)) for name in _ASKED}
        foundation = lay(self.engine, turns_of(messages), (), reply=True, reuse=True)
        request = Request(
            foundation.suffix,
            foundation.prefix,
            max_new_tokens=said.pop("max_tokens"),
            sampling=Sampling(**said),
            stop=tuple(stop or ()),
            keep_cache=True,
            cancelled=gone.is_set if gone is not None else None,
            on_token=pieces.put if pieces is not None else None,
        )
        return foundation, request

    def _answered(self, foundation: Foundation, request: Request) -> Generation:
        (answer,) = self.engine.generate([request])
        if answer.cache is not None:
            known = (*foundation.token_ids, *answer.token_ids)[: answer.cache.next_position]
            self.engine.prefixes.add(known, answer.cache)
        return answer


def turns_of(messages: Sequence[BaseMessage]) -> tuple[Turn, ...]:
    """The turns of a conversation.

    Raises:
        UserError: a message of another kind (of a tool), or one with something else than text.
    """
    turns = []
    for message in messages:
        if message.type not in _ROLES:
            raise UserError(f"An engine can't read a message of the kind '{message.type}'.", fix="Send it as text.")
        content = message.content
        others = [part for part in content if not isinstance(part, str) and part.get("type") != "text"]
        if not isinstance(content, str) and others:
            raise UserError(f"An engine reads text, and no '{others[0].get('type')}'.")
        turns.append(Turn(_ROLES[message.type], str(message.text)))
    return tuple(turns)


def _usage(answer: Generation) -> dict[str, Any]:
    read = answer.prefilled + answer.reused
    return {
        "input_tokens": read,
        "output_tokens": answer.generated,
        "total_tokens": read + answer.generated,
        "input_token_details": {"cache_read": answer.reused},
    }


def _about(chat: EngineChat, answer: Generation) -> dict[str, Any]:
    reason = "length" if answer.finish == "length" else "stop"
    return {"finish_reason": reason, "model_name": resolve_model(chat.model).model}
