"""What every channel between two models carries: held-out answers beside each message's zero and mismatched controls.

    python -m benchmarks.lcf_table -n 100 --bundles FOLDER [--contexts shared divergent split] [--only ARM …]
                                   [--seed N] [--store FILE]

Items are those that `agentflow compare private_facts` makes; no training meets them. For every arm: the right
answer's likelihood, the divergence from the receiver that reads the text (both with the answer given, per token), and
the score of a greedy answer. Answers of one arm are decoded in batches, so no seconds are told. Every finished arm is
kept in FILE; stopped, the same command goes on. Every bundle of this pair in FOLDER
is measured. With the contexts shared and another, the last table tells what each arm loses to the other, and how that
compares with what `c2c` loses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from agentflow.adapters.base import Adapter, Place
from agentflow.adapters.bundle import open_bundle
from agentflow.adapters.card import CARD
from agentflow.adapters.examples import Example, Sample, make_examples, samples_of
from agentflow.adapters.passes import Message, Pair
from agentflow.adapters.recipe import DataRecipe
from agentflow.adapters.wire import CodeBits, pack, unpack
from agentflow.evaluation.machine import describe_machine
from agentflow.evaluation.statistics import mean_interval, paired_difference
from agentflow.kv.cache import KVCache
from agentflow.kv.fanin import fitted
from agentflow.models.engine import Engine
from agentflow.models.requests import Request
from agentflow.tasks.base import Item
from agentflow.tasks.registry import make_task
from benchmarks.common import engine

BATCH, NEW_TOKENS = 8, 16
READ = "Remember these facts: {context}"
READER = "You read carefully and remember exact names, numbers and words."
ANSWERER = "Answer the question from the text above. Reply with the answer only, in a few words."
REASONER = "Think step by step about what you read, and say why before you say what."
ORDER = ("c2c", "lcf_mapped", "lcf_slots", "lcf_delta", "lcf_pooled", "lcf_aligned")
Context = Literal["shared", "divergent", "split"]
CONTEXTS: tuple[Context, ...] = "shared", "divergent", "split"


@dataclass(frozen=True)
class Arm:
    """One way to answer.

    Attributes:
        bundle: none: the receiver alone, or with the text.
        bits: of the codes on the wire; None: as they are.
    """

    name: str
    bundle: str | None = None
    message: Message = "right"
    bits: CodeBits | None = None
    text: bool = False


Figures = dict[str, list[float]]
"""For every item: `nll`, `kl` and `score`."""


class Table:
    """Both models, the items, and what is asked about them."""

    def __init__(self, sender: Engine, receiver: Engine, items: Sequence[Item], context: Context) -> None:
        self.pair, self.items = Pair(sender, receiver), items
        self.task = make_task("private_facts", {"level": "easy"})
        self.samples = [_in_context(item, context) for item in items]
        self._examples: dict[Place, list[Example]] = {}
        self._taught: dict[int, list[Tensor]] = {}

    def examples(self, place: Place) -> list[Example]:
        """The items in tokens."""
        if place not in self._examples:
            self._examples[place] = make_examples(self.samples, self.pair.sender, self.pair.receiver, place)
        return self._examples[place]

    def measure(self, arm: Arm, adapter: Adapter | None) -> Figures:
        """All figures of an arm."""
        place: Place = "text" if arm.text else adapter.place if adapter is not None else "front"
        examples = self.examples(place)
        found: Figures = {"nll": [], "kl": [], "score": []}
        with torch.no_grad():
            for start in range(0, len(examples), BATCH):
                batch = examples[start : start + BATCH]
                strangers = [examples[(start + n + 1) % len(examples)] for n in range(len(batch))]
                caches = self._caches(arm, adapter, batch, strangers)
                for nll, kl in self._likelihoods(start, batch, caches):
                    found["nll"].append(nll)
                    found["kl"].append(kl)
                asked = [Request(e.asked, c, max_new_tokens=NEW_TOKENS) for e, c in zip(batch, caches, strict=True)]
                for n, said in enumerate(self.pair.receiver.generate(asked)):
                    found["score"].append(self.task.score_answer(self.items[start + n], 0, said.text)["exact"])
        return found

    def _caches(
        self, arm: Arm, adapter: Adapter | None, batch: Sequence[Example], strangers: Sequence[Example]
    ) -> list[KVCache]:
        theirs, own = self.pair.read(batch)
        ropes = self.pair.ropes
        if adapter is None:
            return own
        if arm.message == "mismatched":
            others, _ = self.pair.read(strangers)
            theirs = [fitted(other, len(cache), ropes[0]) for other, cache in zip(others, theirs, strict=True)]
        made = []
        for e, cache, mine in zip(batch, theirs, own, strict=True):
            codes = adapter.encode(cache, ropes[0])
            if arm.bits:
                widths = {name: t.shape[-1] for name, t in codes.items()}
                codes = unpack(pack(codes, arm.bits), widths, arm.bits)
            if arm.message == "zero":
                codes = {name: torch.zeros_like(t) for name, t in codes.items()}
            made.append(adapter.decode(codes, mine, ropes[1], e.partners))
        return made

    def _likelihoods(
        self, start: int, batch: Sequence[Example], caches: Sequence[KVCache]
    ) -> list[tuple[float, float]]:
        """Each answer's NLL, and its divergence from the receiver that reads the text, per token in nats."""
        if start not in self._taught:
            rows = torch.split(self.pair.taught(batch), [len(e.answer) for e in batch])
            self._taught[start] = [row.log_softmax(-1) for row in rows]
        requests = [Request((*e.asked, *e.answer), c) for e, c in zip(batch, caches, strict=True)]
        logits = self.pair.receiver.logits(requests, keep=max(len(e.answer) for e in batch) + 1)[:, :-1]
        found = []
        for e, row, wanted in zip(batch, logits, self._taught[start], strict=True):
            told = row[-len(e.answer) :].float().log_softmax(-1)
            nll = -told.gather(1, torch.tensor(e.answer)[:, None]).mean()
            found.append((float(nll), float((wanted.exp() * (wanted - told)).sum(-1).mean())))
        return found


def _in_context(item: Item, context: Context) -> Sample:
    """shared: both have the reader's and answerer's instructions; divergent: the sender is told to reason, the receiver
    to act; split: the receiver has half of the facts itself, and is asked about the sender's."""
    told = REASONER if context == "divergent" else READER
    split = 1.0 if context == "split" else 0.0
    data = DataRecipe(read=READ, sender_system=told, receiver_system=ANSWERER, split=split)
    return samples_of([item], data)[0]


def arms_of(folder: Path, sender: Engine, receiver: Engine) -> list[Arm]:
    """Every arm that there is a bundle of this pair for."""
    arms = [Arm("receiver alone"), Arm("text", text=True)]
    bundles = [open_bundle(card.parent) for card in sorted(folder.glob(f"*/{CARD}"))]
    ends = sender.loaded.spec, receiver.loaded.spec
    fitting = [b for b in bundles if b.card.sender.same_source(ends[0]) and b.card.receiver.same_source(ends[1])]
    for bundle in sorted(fitting, key=lambda b: ORDER.index(b.card.adapter)):
        name, file = bundle.card.adapter, bundle.name
        bits: CodeBits | None = 4 if name == "lcf_delta" else None
        arms += [
            Arm(name, file, bits=bits),
            Arm(f"{name}, zero", file, "zero", bits),
            Arm(f"{name}, mismatched", file, "mismatched", bits),
        ]
        if name in ("lcf_mapped", "lcf_slots", "lcf_delta"):  # what few bits lose, beside 16
            arms += [Arm(f"{name}, {b} bits", file, bits=b) for b in (16, 4) if b != bits]
    return arms


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--bundles", type=Path, default=Path("configs/adapters"))
    parser.add_argument("--contexts", nargs="*", choices=CONTEXTS, default=["shared"])
    parser.add_argument("--only", nargs="*", metavar="ARM", help="these arms, as the table names them")
    parser.add_argument("--seed", type=int, default=0, help="of the items")
    parser.add_argument("--store", type=Path, default=Path("runs/lcf_table.json"))
    parser.add_argument("--sender", default="smollm2-135m")
    parser.add_argument("--receiver", default="smollm2-135m-26")
    asked = parser.parse_args()
    items = make_task("private_facts", {"level": "easy"}).items(data=None, limit=asked.n, seed=asked.seed)
    ends = engine(asked.sender), engine(asked.receiver)
    known: dict[str, Figures] = json.loads(asked.store.read_text()) if asked.store.is_file() else {}
    arms = [a for a in arms_of(asked.bundles, *ends) if not asked.only or a.name in asked.only]
    for context in asked.contexts:
        table = Table(*ends, items, context)
        for arm in arms if context == "shared" else [a for a in arms if _plain(a)]:
            key = f"{context}: {arm.name}"
            if len(known.get(key, {}).get("nll", ())) != asked.n:
                known[key] = table.measure(arm, _adapter(asked.bundles / arm.bundle) if arm.bundle else None)
                asked.store.parent.mkdir(parents=True, exist_ok=True)
                asked.store.write_text(json.dumps(known))
                print(key, {name: round(sum(v) / len(v), 3) for name, v in known[key].items()}, flush=True)
    print(written(known, asked.contexts))
    for context in asked.contexts:
        if context != "shared" and "shared" in asked.contexts:
            print(drops(known, context))
    print(json.dumps(describe_machine(ends), default=str))


def _adapter(folder: Path) -> Adapter:
    return open_bundle(folder).load().ready(torch.device("cpu"), torch.float32)


def _plain(arm: Arm) -> bool:
    """Whether an arm is run in every context: no controls, one width on the wire."""
    return arm.message == "right" and not arm.name.endswith("bits")


def written(known: dict[str, Figures], contexts: Sequence[Context]) -> str:
    """The table in Markdown: means with 95 % intervals, and paired differences of NLL."""
    lines = []
    for context in contexts:
        rows = {name.split(": ", 1)[1]: f for name, f in known.items() if name.startswith(f"{context}: ")}
        lines += ["", f"**{context}**", "", _HEAD, "|---|---:|---:|---:|---:|---:|"]
        for name, f in rows.items():
            alone, right = rows.get("receiver alone", f), rows.get(name.split(",")[0])
            lines.append(
                f"| {name} | {_mean(f['nll'])} | {_apart(f['nll'], alone['nll']) if f is not alone else '–'} | "
                f"{_apart(f['nll'], right['nll']) if right is not None and right is not f else '–'} | "
                f"{_mean(f['kl'])} | {_mean(f['score'])} |"
            )
    return "\n".join(lines)


def drops(known: dict[str, Figures], context: Context) -> str:
    """The table of what each arm loses from the shared context to another, paired by item, and beside c2c."""
    lines = ["", f"**{context} − shared**", "", _DROPS, "|---|---:|---:|---:|---:|"]
    changes = {
        name: {
            figure: [b - a for a, b in zip(f[figure], known[f"{context}: {name}"][figure], strict=True)] for figure in f
        }
        for name, f in ((key.removeprefix("shared: "), f) for key, f in known.items() if key.startswith("shared: "))
        if f"{context}: {name}" in known
    }
    for name, change in changes.items():
        beside = changes["c2c"] if name != "c2c" and "c2c" in changes else None
        cells = [mean_interval(change[figure], seed=0).text(3, sign=True) for figure in ("nll", "score")]
        cells += [_apart(change[figure], beside[figure]) if beside else "–" for figure in ("nll", "score")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


_DROPS = "| arm | NLL | score | NLL, beside c2c's | score, beside c2c's |"
_HEAD = "| arm | NLL | Δ to the receiver alone | Δ to the right message | KL | score |"


def _mean(values: Sequence[float]) -> str:
    return mean_interval(values, seed=0).text(3)


def _apart(first: Sequence[float], second: Sequence[float]) -> str:
    return paired_difference(first, second, seed=0).text(3, sign=True)


if __name__ == "__main__":
    main()
