"""The same items over several channels and their controls, item by item, so that every figure is paired.

Items are the outer loop: all arms of an item run beside one another on the same machine in the same minute, sender
turns are computed once for all of them, and a comparison that is stopped has whole items to show. Every row is
appended to `rows.jsonl` as soon as it is there; running the same comparison into the same folder computes what is
missing and nothing else.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3
from filelock import FileLock, Timeout
from torch import Tensor

from agentflow.errors import RunError, UserError
from agentflow.evaluation.controls import (
    MISMATCHED,
    SELF,
    UnfinishedError,
    answer_node,
    arms_of,
    label,
    vary,
    with_itself,
)
from agentflow.evaluation.foreign import overheard
from agentflow.evaluation.inputs import inputs_of
from agentflow.evaluation.machine import describe_machine, peak_memory, reset_peak
from agentflow.evaluation.measure import row_of
from agentflow.evaluation.probe import AnswerProbe
from agentflow.evaluation.rows import NO_SUCH_CONTROL, Arm, Comparison, Row
from agentflow.evaluation.standins import Mismatched
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import Binding, bind
from agentflow.runtime.memo import Memo
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import write_json
from agentflow.tasks.base import Item, Task
from agentflow.tools import Toolbox
from agentflow.workflow.parts import ChannelSpec
from agentflow.workflow.schema import Workflow

Shown = Callable[[Comparison], None]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How to compare.

    Attributes:
        controls: names of controls (see `controls.CONTROLS`).
        seed: of sampling, and of the bootstrap in reports.
        probe: also score the right answers (NLL, KL); costs a forward pass of the answer for each question.
        max_batch: children of one mapped node that are answered as one batch; 1 times each of them alone.
        out: folder of rows and reports; None keeps everything in memory.
        published: figures of papers to stand beside, each {name, figure, source}.
    """

    controls: tuple[str, ...] = ()
    seed: int = 0
    probe: bool = True
    max_batch: int = 8
    out: Path | None = None
    published: tuple[dict[str, str], ...] = ()


def compare(
    workflow: Workflow,
    task: Task,
    items: Sequence[Item],
    channels: Sequence[str | ChannelSpec],
    engines: EnginePool,
    *,
    options: CompareOptions | None = None,
    shown: Shown = lambda _comparison: None,
    tools: Toolbox | None = None,
) -> Comparison:
    """Run every arm over every item.

    Args:
        channels: the first is the reference that the others are paired with, and, if it is text, the one that
            KL is measured from.
        shown: called after every item with everything so far.
        tools: which there are; by default those that are installed.

    Raises:
        UserError: no items, a channel that does not fit, or a folder that holds another comparison.
    """
    chosen = options or CompareOptions()
    if not items:
        raise UserError("There are no items to compare on.")
    if tools is None:
        with Toolbox() as installed:
            return compare(workflow, task, items, channels, engines, options=chosen, shown=shown, tools=installed)
    specs = [ChannelSpec.of(c) for c in channels]
    bindings = {label(s.name, s.settings): bind(workflow.with_channel(s), tools) for s in specs}
    arms = arms_of(specs, chosen.controls, bindings)
    run = _Run(workflow, task, items, arms, engines, chosen, tools)
    with locked(chosen.out):
        run.start(bindings)
        for number in range(len(items)):
            if run.item(number):
                shown(run.comparison())
        return run.comparison()


class _Run:
    """One comparison on its way."""

    def __init__(
        self,
        workflow: Workflow,
        task: Task,
        items: Sequence[Item],
        arms: Sequence[Arm],
        engines: EnginePool,
        options: CompareOptions,
        tools: Toolbox,
    ) -> None:
        self.workflow, self.task, self.items = workflow, task, list(items)
        self.arms, self.engines, self.options, self.tools = list(arms), engines, options, tools
        self.node = answer_node(workflow)
        self.rows: dict[tuple[str, str], Row] = {}
        self.machine: dict[str, Any] = {}
        self._memo = Memo()
        self._marks: dict[str, str] = {}

    def start(self, bindings: Mapping[str, Binding]) -> None:
        """Load models, and whatever an earlier run of the same comparison left."""
        self._marks = {arm.name: self._mark(arm, bindings) for arm in self.arms}
        specs = dict.fromkeys(spec for b in bindings.values() for spec in b.models.values())
        self.machine = describe_machine([self.engines.speaker(spec) for spec in specs])
        out = self.options.out
        if out is None:
            return
        manifest, file = self._manifest(), out / "comparison.json"
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            differing = [k for k in manifest if found.get(k) != manifest[k]]
            if differing:
                raise RunError(
                    f"This folder holds another comparison: its {', '.join(differing)} differ.",
                    where=str(out),
                    fix="Choose another --out, or remove the folder.",
                )
            self._read_rows(out / "rows.jsonl")
        else:
            write_json(file, manifest)

    def item(self, number: int) -> bool:
        """Run the arms of an item that are missing; whether there were any."""
        item, foreign = self.items[number], self._stranger(number)
        missing = [arm for arm in self.arms if (item.id, arm.name) not in self.rows]
        if not missing:
            return False
        reference: dict[int, Tensor] | None = None
        if self._probes and any(arm.name != "text" for arm in missing):
            reference = self._reference(item)
        for arm in missing:
            if (item.id, arm.name) not in self.rows:  # text may be there by now: the reference needed it
                self._keep(self._run_arm(arm, item, foreign, reference))
        return True

    def _stranger(self, number: int) -> Item | None:
        """The next item, in the order of a circle, whose senders see something else; None where there is none."""
        item, names = self.items[number], self.task.private
        circle = (*self.items[number + 1 :], *self.items[:number])
        return next((one for one in circle if any(one.inputs.get(n) != item.inputs.get(n) for n in names)), None)

    def comparison(self) -> Comparison:
        """Everything so far; rows of arms that an earlier command had and this one has not stay in the file only."""
        order = {arm.name: n for n, arm in enumerate(self.arms)}
        place = {item.id: n for n, item in enumerate(self.items)}
        rows = sorted((r for r in self.rows.values() if r.arm in order), key=lambda r: (place[r.item], order[r.arm]))
        return Comparison(
            workflow=self.workflow.name,
            task=self.task.name,
            task_settings=self.task.settings.model_dump(),
            metrics=self.task.metrics,
            primary=self.task.primary,
            reference=self.arms[0].name,
            arms=tuple(self.arms),
            items=tuple(i.id for i in self.items),
            rows=tuple(rows),
            seed=self.options.seed,
            machine=self.machine,
            command=shlex.join(["agentflow", *sys.argv[1:]]) if Path(sys.argv[0]).name == "agentflow" else "",
            published=self.options.published,
        )

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _probes(self) -> bool:
        """Whether right answers are scored; an episode has none."""
        return self.options.probe and not self.task.interactive

    def _reference(self, item: Item) -> dict[int, Tensor] | None:
        """Distributions along the right answers of the receiver that read the whole text."""
        probe = AnswerProbe(self.node, _golds(item), keep=True)
        text = Arm("text", "channel", "text")
        row = self._answer(text, item, None, probe)
        if (item.id, "text") not in self.rows and any(arm.name == "text" for arm in self.arms):
            self._keep(row)
        return probe.distributions or None

    def _run_arm(self, arm: Arm, item: Item, foreign: Item | None, reference: dict[int, Tensor] | None) -> Row:
        probe = AnswerProbe(self.node, _golds(item), reference=reference) if self._probes else None
        return self._answer(arm, item, foreign, probe)

    def _answer(self, arm: Arm, item: Item, foreign: Item | None, probe: AnswerProbe | None) -> Row:
        about = self.rows.get((item.id, label(arm.channel, arm.settings)))
        inputs, other = inputs_of(self.workflow, item), inputs_of(self.workflow, foreign or item)
        try:
            if arm.control == MISMATCHED and foreign is None:
                raise UserError("there is no other item whose message could be sent")
            text = self.rows.get((item.id, "text"))
            variation = vary(arm, self.workflow, inputs, other, self.task.private, about, text, self.tools)
        except UnfinishedError as error:
            return Row(item.id, arm.name, item.group, error=str(error))
        except UserError as error:
            return Row(item.id, arm.name, item.group, error=f"{NO_SUCH_CONTROL}: {error}")
        # Nothing runs beside what is timed.
        options = RunOptions(seed=self.options.seed, max_batch=self.options.max_batch, reuse=False, overlap="off")
        binding = variation.binding
        if variation.foreign is not None:
            heard = overheard(binding, variation.foreign, self.engines, options, self._memo)
            binding = binding.with_compared(partial(Mismatched, heard=heard))
        for engine in filter(None, map(self.engines.loaded, set(binding.models.values()))):
            engine.prefixes.clear()  # a channel must not profit from what another arm has computed
        orchestrator = Orchestrator(binding, self.engines, options=options, memo=self._memo, probe=probe)
        reset_peak()
        result = orchestrator.run([(item.id, variation.inputs)])[0]
        return row_of(self.task, item, arm, self.node, result, binding.workflow, probe, peak_memory())

    def _mark(self, arm: Arm, bindings: Mapping[str, Binding]) -> str:
        """What an arm's rows depend on and its name does not say; "" for nothing."""
        binding = bindings.get(label(arm.channel, arm.settings))
        if arm.control == SELF:
            try:
                binding = bind(with_itself(self.workflow, arm), self.tools)
            except UserError:
                return ""  # told where it is to run
        return "" if binding is None else binding.mark

    def _keep(self, row: Row) -> None:
        row = replace(row, mark=self._marks.get(row.arm, ""))
        self.rows[row.item, row.arm] = row
        if self.options.out is not None:
            with (self.options.out / "rows.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_json(), ensure_ascii=False) + "\n")

    def _read_rows(self, file: Path) -> None:
        """Rows of an earlier run; a last line that was cut by a kill is computed again."""
        if not file.exists():
            return
        good = []
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                row = Row.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue
            if row.error and not row.impossible:
                continue  # what failed is tried again
            if row.mark != self._marks.get(row.arm, row.mark):
                continue  # its adapter was trained anew
            good.append(line)
            self.rows[row.item, row.arm] = row
        part = file.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in good), encoding="utf-8")
        part.replace(file)

    def _manifest(self) -> dict[str, Any]:
        """What must be equal for rows to belong together. Arms may be added: they are rows of their own."""
        return {
            "workflow": self.workflow.name,
            "workflow_digest": blake3(self.workflow.model_dump_json().encode()).hexdigest(),
            "task": self.task.name,
            "task_settings": self.task.settings.model_dump(),
            "items": [item.id for item in self.items],
            "items_digest": blake3(json.dumps([asdict(i) for i in self.items], default=str).encode()).hexdigest(),
            "seed": self.options.seed,
            "probe": self.options.probe,
            "models": self.machine["models"],
        }


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Keep a second process out of a folder while the block lasts; nothing to do without one."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise RunError("Another process is comparing into this folder.", where=str(folder)) from None


def _golds(item: Item) -> list[str]:
    return [answers[0] for answers in item.answers]
