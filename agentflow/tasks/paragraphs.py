"""Titled paragraphs, gold or not: which to keep, and how to share them between two agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentflow.tasks.draws import Draws


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `gold` if the answer needs it."""

    title: str
    text: str
    gold: bool = False

    def document(self) -> dict[str, str]:
        """Return the plain form workflows see."""
        return {"title": self.title, "text": self.text}


def join_sentences(sentences: Sequence[str]) -> str:
    """Return one text; HotpotQA's sentences bring their own leading space, other sources' don't."""
    text = ""
    for sentence in sentences:
        glued = text and sentence and not text[-1].isspace() and not sentence[0].isspace()
        text += f" {sentence}" if glued else sentence
    return text.strip()


def keep(paragraphs: list[Paragraph], count: int | None, draws: Draws) -> list[Paragraph] | None:
    """Return `count` paragraphs in their order: all gold ones and a random choice of the others.

    None for `count` keeps all; more gold ones than `count` are all kept. Returns None when paragraphs must go
    but it is not known which are gold.
    """
    if count is None or count >= len(paragraphs):
        return paragraphs
    gold = [at for at, paragraph in enumerate(paragraphs) if paragraph.gold]
    if not gold:
        return None
    others = [at for at, paragraph in enumerate(paragraphs) if not paragraph.gold]
    chosen = {*gold, *draws.sample(others, max(0, count - len(gold)))}
    return [paragraph for at, paragraph in enumerate(paragraphs) if at in chosen]


def split(paragraphs: list[Paragraph], draws: Draws) -> tuple[list[Paragraph], list[Paragraph]] | None:
    """Return two halves in file order, sender's first, each with half of the gold paragraphs.

    Of an odd number the larger part falls to either side at random for the gold ones; in all, the sender gets
    the larger half. None when there are fewer than two gold paragraphs.
    """
    gold = [at for at, paragraph in enumerate(paragraphs) if paragraph.gold]
    if len(gold) < 2:
        return None
    others = [at for at, paragraph in enumerate(paragraphs) if not paragraph.gold]
    share = (len(gold) + draws.below(2)) // 2
    rest = max(0, min(len(others), (len(paragraphs) + 1) // 2 - share))
    sender = {*draws.sample(gold, share), *draws.sample(others, rest)}
    return (
        [paragraph for at, paragraph in enumerate(paragraphs) if at in sender],
        [paragraph for at, paragraph in enumerate(paragraphs) if at not in sender],
    )
