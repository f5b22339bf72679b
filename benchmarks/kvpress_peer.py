"""Score answers over caches compacted by the presses of NVIDIA's kvpress, token for token as given.

    python kvpress_peer.py MODEL_FOLDER ITEMS.jsonl OUT.jsonl --presses snapkv,expected_attention,finch --kept 0.3,0.2

Pins that worked together (CPU, Python 3.11); a fresh environment needs only the first three lines, pip finds the rest:

    kvpress==0.5.5
    torch==2.13.0
    transformers==5.2.0
    # found by pip: accelerate==1.15.0 cachetools==5.5.2 datasets==5.2.0 fire==0.6.0 huggingface_hub==1.33.0
    # numpy==2.4.6 pandas==2.3.3 peft==0.21.2 pyarrow==26.0.1 requests==2.34.2 safetensors==0.8.0 tokenizers==0.22.2

ITEMS has one object a line: {"id": str, "context": [ids], "question": [ids], "answer": [ids]}. OUT gets one line for
each (id, press, share): {"id", "press", "share", "kept_context", "kept_question", "nll", "kl", "seconds"}. Rows that
OUT already has are not computed again. Exit codes: 0 done, 1 a measurement that cannot be trusted, 2 bad input.

How a row is made
    1. Prefill context + question[:-1] under the press (W = len(question) - 1 question places).
    2. Feed question[-1] and answer[:-1] over what the press left. So each answer token, the first one too, is
       predicted from the compacted cache; a prefill of the whole question would predict the first answer token
       from logits that saw the full cache.
    nll is the mean over the answer's tokens, in nats. kl is KL(full || compacted), the mean over the same places, where
    full is one plain forward over the whole sequence. The keys and values of the W question places themselves were
    made in the prefill and so saw the whole context, as always in kvpress. `seconds` covers steps 1 and 2.

What is kept
    In each layer and key-value head exactly K = round(share * len(context)) context places and all question places.
    kvpress takes the integer part of length * (1 - compression_ratio); the ratio is set half a place above K + W, so
    that rounding in floats cannot lose one. Each head's kept places are counted from the scores that the press ranks,
    in each layer; a count other than K stops the run. kept_question counts the W kept ones and question[-1], fed
    after. `full` keeps everything, and must match the plain forward's nll to 1e-4, or the run stops.

What was set for each press (anything not named is the library's default)
    snapkv              window_size = W: the window is the question. The press ranks window places first by itself.
                        Smoothing of the scores over 5 neighbours is the default. It has no sinks.
    expected_attention  Defaults (512 future places, covariance, value norms, epsilon 0). It does not protect recent
                        places, so the question's scores are lifted above all others here. Its first 4 places (sinks)
                        are always kept; they count among the K. Query statistics come from all of the prefill but the
                        sinks, the question's places too.
    finch               window_size = W, set by hand, with chunk_length None: one chunk. FinchPress would otherwise
                        look for a delimiter token in the input, cut it out of the embeddings and take what follows as
                        the window; it refuses to start without a delimiter id. Here that id is -1, which no input
                        holds, so nothing is cut, the vocabulary is not grown and the sequence is the one given.
                        As by default, kept keys are rotated to places 0..K+W-1, so that new tokens go on at K + W,
                        as in the library's own pipeline; at the original length they would be misplaced.
    finch_unrotated     The same with rerotate_keys off: kept keys stay where they were.

Positions
    New tokens get position_ids from the original length on (all but `finch`, see above), while cache_position goes on
    from the cache's real length. The two must differ: the causal mask is built from cache_position, and with the
    original length there, the tokens fed in one call would see those after them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PRESSES = ("snapkv", "expected_attention", "finch", "finch_unrotated")
FULL = "full"
TOLERANCE = 1e-4
ABSENT_TOKEN = -1


class BadInputError(Exception):
    """An input that this script cannot use; ends with exit code 2."""


class MeasureError(Exception):
    """A measurement that did not hold what it must; ends with exit code 1."""


@dataclass(frozen=True)
class Item:
    """One sequence to score, cut into its three parts."""

    id: str
    context: list[int]
    question: list[int]
    answer: list[int]

    @property
    def prefill(self) -> list[int]:
        """The tokens that the press sees: all up to the question's last one."""
        return self.context + self.question[:-1]

    @property
    def fed(self) -> list[int]:
        """The tokens fed over the compacted cache, each of which predicts one answer token."""
        return self.question[-1:] + self.answer[:-1]


@dataclass(frozen=True)
class Task:
    """One row to compute."""

    item: Item
    press: str
    share: float

    @property
    def key(self) -> tuple[str, str, float]:
        """What tells this row from the others in the output."""
        return self.item.id, self.press, self.share

    @property
    def kept_context(self) -> int:
        """How many context places each head keeps."""
        return round(self.share * len(self.item.context))


class ScoreGuard:
    """Stands in for a press's `score`: lifts the question's places above all others and counts what gets kept."""

    def __init__(self, press: Any, context: int, kept: int) -> None:
        """Take the place of `press.score`; `kept` is the number of places the press will keep in each head."""
        self.inner = press.score
        self.context = context
        self.kept = kept
        self.context_counts: set[int] = set()
        press.score = self

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Score as the press does, then protect the question and note how many context places rank high enough."""
        scores: Tensor = self.inner(*args, **kwargs)
        scores[..., self.context :] = scores.max() + 1
        places = scores.topk(self.kept, dim=-1).indices
        self.context_counts.update((places < self.context).sum(dim=-1).flatten().tolist())
        return scores


def token_ids(record: dict[str, Any], name: str, vocabulary: int, where: str) -> list[int]:
    """Return one list of token ids of an input line, checked."""
    ids = record.get(name)
    if not isinstance(ids, list) or not ids:
        raise BadInputError(f"{where}: '{name}' must be a list of token ids that is not empty")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise BadInputError(f"{where}: '{name}' holds {token!r}, which is no token id below {vocabulary}")
    return ids


def read_item(line: str, where: str, vocabulary: int, longest: int) -> Item:
    """Parse and check one input line."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BadInputError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        raise BadInputError(f"{where}: must be an object with a string 'id'")
    parts = [token_ids(record, name, vocabulary, where) for name in ("context", "question", "answer")]
    if len(parts[1]) < 2:
        raise BadInputError(f"{where}: 'question' needs two tokens at least: one in the prefill, one fed after it")
    length = sum(len(part) for part in parts)
    if length > longest:
        raise BadInputError(f"{where}: {length} tokens, but the model takes {longest} at most")
    return Item(record["id"], *parts)


def read_items(path: Path, limit: int | None, vocabulary: int, longest: int) -> list[Item]:
    """Read the input, its first `limit` items only if given."""
    items: dict[str, Item] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        if limit is not None and len(items) == limit:
            break
        item = read_item(line, f"{path}:{number}", vocabulary, longest)
        if item.id in items:
            raise BadInputError(f"{path}:{number}: id {item.id!r} came before")
        items[item.id] = item
    if not items:
        raise BadInputError(f"{path}: no items")
    return list(items.values())


def read_text(path: Path) -> str:
    """Read a text file, or say why not."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from None


def read_config(folder: Path) -> tuple[int, int]:
    """Return the model's vocabulary size and its longest sequence."""
    path = folder / "config.json"
    try:
        config = json.loads(read_text(path))
        return int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{path}: no usable model configuration: {error!r}") from None


def plan(items: Sequence[Item], presses: Sequence[str], shares: Sequence[float]) -> list[Task]:
    """List all rows, the uncompacted one of each item first."""
    tasks = []
    for item in items:
        tasks.append(Task(item, FULL, 1.0))
        tasks += [Task(item, press, share) for press in presses for share in shares]
    for task in tasks:
        size = len(task.item.context)
        if task.press != FULL and not 0 < task.kept_context < size:
            kept = f"{task.kept_context} of {size}"
            raise BadInputError(f"item {task.item.id!r}: share {task.share} would keep {kept} context places")
    return tasks


def read_done(path: Path, tasks: Sequence[Task]) -> set[tuple[str, str, float]]:
    """Return the rows that the output already has; a last line cut short by a kill is taken off the file."""
    if not path.parent.is_dir():
        raise BadInputError(f"{path}: its folder does not exist")
    if not path.exists():
        return set()
    text = read_text(path)
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        print(f"{path}: last line was cut short, taken off", flush=True)
        path.write_text(whole, encoding="utf-8")
    expected = {task.key: task.kept_context for task in tasks}
    done = set()
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            key, kept = (row["id"], row["press"], row["share"]), row["kept_context"]
        except (ValueError, KeyError, TypeError):
            raise BadInputError(f"{path}:{number}: not a row of this script; give another output file") from None
        if expected.get(key, kept) != kept:
            raise BadInputError(f"{path}:{number}: made from other items; give another output file")
        done.add(key)
    return done


def load_model(folder: Path) -> Any:
    """Load the model in float32 from its folder, never from the network."""
    import transformers

    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    options = {"dtype": "float32", "attn_implementation": "sdpa", "local_files_only": True, "output_loading_info": True}
    try:
        model, report = library.AutoModelForCausalLM.from_pretrained(folder, **options)
    except (OSError, ValueError) as error:
        raise BadInputError(f"{folder}: model cannot be loaded: {error}") from None
    if report["missing_keys"]:
        raise BadInputError(f"{folder}: weights are missing: {sorted(report['missing_keys'])[:3]}")
    return model.eval()


def build_press(name: str, ratio: float, window: int) -> Any:
    """Make a press for a question of `window` places in the prefill; the docstring above says what is set and why."""
    import kvpress

    if name == "snapkv":
        return kvpress.SnapKVPress(compression_ratio=ratio, window_size=window)
    if name == "expected_attention":
        return kvpress.ExpectedAttentionPress(compression_ratio=ratio)
    press = kvpress.FinchPress(compression_ratio=ratio, rerotate_keys=name == "finch")
    press.window_size = window
    press.delimiter_token_id = ABSENT_TOKEN
    return press


def compress(model: Any, task: Task) -> tuple[Any, int]:
    """Prefill under the task's press; return the cache and the position at which new tokens go on."""
    import torch
    from transformers import DynamicCache

    item, length = task.item, len(task.item.prefill)
    kept = length if task.press == FULL else task.kept_context + len(item.question) - 1
    cache: Any = DynamicCache()
    press = None if task.press == FULL else build_press(task.press, 1 - (kept + 0.5) / length, len(item.question) - 1)
    guard = press and ScoreGuard(press, len(item.context), kept)
    with press(model) if press else nullcontext():
        model.model(input_ids=torch.tensor([item.prefill]), past_key_values=cache)
    check_counts(task, kept, {layer.keys.shape[-2] for layer in cache.layers}, guard)
    return cache, kept if task.press == "finch" else length


def check_counts(task: Task, kept: int, lengths: set[int], guard: ScoreGuard | None) -> None:
    """Stop unless each layer holds `kept` places and each head the right number of context places among them."""
    if lengths != {kept}:
        raise MeasureError(f"{task.key}: layers hold {sorted(lengths)} places, not {kept}")
    if guard and guard.context_counts != {task.kept_context}:
        counts = sorted(guard.context_counts)
        raise MeasureError(f"{task.key}: heads keep {counts} context places, not {task.kept_context}")


def predict(model: Any, cache: Any, tokens: Sequence[int], position: int) -> Tensor:
    """Feed tokens over a cache from `position` on; return the log probabilities that each of them predicts."""
    import torch

    steps = torch.arange(len(tokens))
    output = model(
        input_ids=torch.tensor([list(tokens)]),
        past_key_values=cache,
        position_ids=(position + steps)[None],
        cache_position=cache.get_seq_length() + steps,
    )
    logits: Tensor = output.logits[0]
    return logits.log_softmax(dim=-1)


def predict_plain(model: Any, item: Item) -> Tensor:
    """Return the answer places' log probabilities from one forward over the whole sequence, without a cache."""
    import torch

    ids = torch.tensor([item.prefill + item.fed])
    logits: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=len(item.answer)).logits[0]
    return logits.log_softmax(dim=-1)


def mean_nll(logs: Tensor, answer: Sequence[int]) -> float:
    """Return the mean negative log likelihood of the answer's tokens."""
    return -sum(float(logs[place, token]) for place, token in enumerate(answer)) / len(answer)


def measure(model: Any, task: Task, plain: Tensor) -> dict[str, Any]:
    """Compute one row."""
    start = time.perf_counter()
    cache, position = compress(model, task)
    logs = predict(model, cache, task.item.fed, position)
    seconds = time.perf_counter() - start
    nll = mean_nll(logs, task.item.answer)
    if task.press == FULL and abs(nll - mean_nll(plain, task.item.answer)) > TOLERANCE:
        raise MeasureError(f"{task.key}: nll {nll} is not the plain forward's {mean_nll(plain, task.item.answer)}")
    kl = float((plain.exp() * (plain - logs)).sum(dim=-1).mean())
    if not (math.isfinite(nll) and math.isfinite(kl)):
        raise MeasureError(f"{task.key}: nll {nll}, kl {kl}")
    return {
        "id": task.item.id,
        "press": task.press,
        "share": task.share,
        "kept_context": task.kept_context,
        "kept_question": len(task.item.question),
        "nll": round(nll, 6),
        "kl": round(kl, 6) + 0.0,
        "seconds": round(seconds, 3),
    }


def measure_all(model: Any, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """Compute the rows in order, with one plain forward for each item."""
    import torch

    item, plain = None, None
    with torch.no_grad():
        for task in tasks:
            if plain is None or task.item is not item:
                item, plain = task.item, predict_plain(model, task.item)
            yield measure(model, task, plain)


def run(arguments: argparse.Namespace) -> None:
    """Read the input, compute the rows that are missing and write each as soon as it is known."""
    vocabulary, longest = read_config(arguments.model)
    items = read_items(arguments.items, arguments.limit, vocabulary, longest)
    tasks = plan(items, arguments.presses, arguments.kept)
    done = read_done(arguments.out, tasks)
    missing = [task for task in tasks if task.key not in done]
    print(f"{len(items)} items, {len(tasks)} rows, {len(tasks) - len(missing)} of them there already", flush=True)
    if not missing:
        return
    try:
        print(", ".join(f"{name} {version(name)}" for name in ("kvpress", "torch", "transformers")), flush=True)
        model = load_model(arguments.model)
        out = arguments.out.open("a", encoding="utf-8")
    except ImportError as error:
        raise BadInputError(f"a package is missing ({error}); the docstring of this script has the pins") from None
    except OSError as error:
        raise BadInputError(f"{arguments.out}: cannot be written: {error}") from None
    with out:
        for number, row in enumerate(measure_all(model, missing), start=1):
            out.write(json.dumps(row) + "\n")
            out.flush()
            told = " ".join(f"{name}={value}" for name, value in row.items())
            print(f"{number}/{len(missing)} {told}", flush=True)


def press_names(text: str) -> list[str]:
    """Parse --presses."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PRESSES:
            raise argparse.ArgumentTypeError(f"unknown press {name!r}; there are {', '.join(PRESSES)}")
    return names


def shares(text: str) -> list[float]:
    """Parse --kept."""
    try:
        values = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None
    if not all(0 < value < 1 for value in values):
        raise argparse.ArgumentTypeError("each share must lie between 0 and 1")
    return values


def positive(text: str) -> int:
    """Parse --limit."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; argparse itself ends with exit code 2 on a bad one."""
    parser = argparse.ArgumentParser(description="Score answers over caches compacted by kvpress.")
    parser.add_argument("model", type=Path, help="folder of a transformers model, float32 safetensors")
    parser.add_argument("items", type=Path, help="input, JSON lines")
    parser.add_argument("out", type=Path, help="output, JSON lines; rows in it are kept and not computed again")
    parser.add_argument("--presses", type=press_names, default=list(PRESSES[:3]), help=f"of {', '.join(PRESSES)}")
    parser.add_argument("--kept", type=shares, default=[0.3, 0.2, 0.15], help="shares of the context to keep")
    parser.add_argument("--limit", type=positive, help="take only the first so many items")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except (BadInputError, MeasureError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
