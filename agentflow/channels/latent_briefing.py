"""Channel `latent_briefing`: the sender's cache, compacted for the receiver's task.

After Latent Briefing (Ramp Labs, April 2026) on Attention Matching (arXiv 2602.16284): queries of the receiver's own
prompt score the positions of the trajectory; one selection for all layers and heads keeps those that stand out; biases
and values of what is kept are fitted so that the receiver attends as it would have to everything. Where holes are left,
kept keys are turned to stand right behind one another and the receiver's tokens follow them; as published, they stay
where they were (`gaps: keep`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from agentflow.channels.base import FITS, Channel, Compatibility, Context, Joining, Message, Task
from agentflow.channels.briefing_settings import LatentBriefingSettings
from agentflow.channels.cache import context_of_cache
from agentflow.channels.compaction import Briefing, compact
from agentflow.channels.selection import scene_of
from agentflow.channels.trajectory import encode
from agentflow.errors import ChannelError
from agentflow.kv.bodies import CacheBody, TextBody
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Header, Payload
from agentflow.models.engine import Engine
from agentflow.models.heads import weights_mark
from agentflow.models.loading import local_windows
from agentflow.models.spec import ModelSpec

_SENT = {"warn": "sent all the same", "text": "sent as text", "full": "sent whole"}


class LatentBriefingChannel(Channel):
    """The positions that matter for the receiver's task, refitted to answer its attention as all of them would."""

    name = "latent_briefing"
    Settings = LatentBriefingSettings
    settings: LatentBriefingSettings
    needs_cache = True
    takes_words = True
    task_free = False
    compresses = True
    rank = 20

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Any sender: its words are encoded by the receiver's model where the weights differ."""
        del sender
        if local_windows(receiver):
            return Compatibility(False, _windows(receiver.model), "text")
        return FITS

    def mark(self, sender: ModelSpec, receiver: ModelSpec) -> str:
        """The digest of the head weights' files: they may be made anew under the same names."""
        del sender
        chosen = self.settings.head_weights
        if self.settings.score != "task" or chosen == "uniform":
            return ""
        return weights_mark(receiver, None if chosen == "auto" else Path(chosen))

    def send(self, message: Message, task: Task) -> Payload:
        """Encode the trajectory (where the sender has not), and compact it for the task."""
        engine = task.engine
        _refuse_windows(engine)
        start = time.perf_counter()
        cache, token_ids, computed = encode(message, engine)
        if cache is not message.cache:  # encoded anew: nothing stands before it, and nothing was lost
            message = replace(message, head=0, losses=())
        encoded = time.perf_counter()
        scene = scene_of(engine, cache, token_ids, message.turns, task.system, task.prompt, message.head)
        if scene is None:
            raise ChannelError(f"The receiver's conversation does not begin with that of '{message.sender}'.")
        briefing = compact(scene, self.settings)
        stats = {
            **briefing.stats,
            "trajectory_tokens": float(computed),
            "trajectory_seconds": encoded - start,
            "compaction_seconds": time.perf_counter() - encoded,
        }
        return self._payload(message, engine, scene.cache, token_ids, briefing, stats)

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Stand on the compacted cache; or read the text that was sent in its place."""
        if isinstance(payload.body, TextBody):
            return Context(turns=payload.body.turns)
        context = context_of_cache(payload, receiver, Joining())
        return replace(context, stats=dict(payload.stats))

    def _payload(
        self,
        message: Message,
        engine: Engine,
        full: KVCache,
        token_ids: tuple[int, ...],
        briefing: Briefing,
        stats: dict[str, float],
    ) -> Payload:
        s = self.settings
        lost = s.max_loss is not None and stats["output_error"] > s.max_loss
        stats["bound_passed"] = float(lost)
        told = f"output error {stats['output_error']:.3g} is above max_loss {s.max_loss}; {_SENT[s.on_loss]}"
        warnings = (f"{told} (on_loss: {s.on_loss})",) if lost else ()
        cache, losses = briefing.cache, [f"{len(briefing.cache)} of {len(full)} positions kept"]
        if lost and s.on_loss == "text":
            header = Header(self.name, message.sender, losses=("sent as text: the loss bound was passed",))
            return Payload(header, TextBody(message.turns), stats, warnings)
        if lost and s.on_loss == "full":
            cache, losses = full, ["sent whole: the loss bound was passed"]
        header = Header(
            self.name, message.sender, engine.fingerprint, full.next_position, len(cache), (*message.losses, *losses)
        )
        body = CacheBody(cache, token_ids[: full.next_position], message.turns, message.head)
        return Payload(header, body, stats, warnings)


def _windows(model: str) -> str:
    return f"'{model}' has sliding-window layers, whose positions can't be dropped"


def _refuse_windows(engine: Engine) -> None:
    if engine.has_windows:
        raise ChannelError(
            f"{_windows(engine.loaded.spec.model)}.",
            fix="Use the channel 'cache' or 'text' for this receiver.",
        )
