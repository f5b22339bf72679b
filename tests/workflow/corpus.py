"""Broken workflow files: `broken/*.yaml`, each of which says at its head what must be told about it, and where.

A line `# 7:12 – words` stands for one problem: its place in this very file, and what its message holds. There is one
line for every problem, in the order of the text. Files in `broken/bind` have the right form, and name models,
channels, tasks or settings that don't exist or don't fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

BROKEN = Path(__file__).parent / "broken"
EXPECTED = re.compile(r"# (\d+:\d+) – (.+)")
FILES = sorted(path.relative_to(BROKEN).as_posix() for path in BROKEN.rglob("*.yaml"))

GOOD = b"workflow: demo\nagents: {a: {model: smollm2-135m}}\nnodes: {one: {agent: a, prompt: hi}}\n"


def expected(text: str) -> list[tuple[str, str]]:
    """What the head of a file promises: place and words of every problem."""
    found = []
    for line in text.splitlines():
        promise = EXPECTED.fullmatch(line)
        if promise is None:
            break
        found.append((promise[1], promise[2]))
    return found


def _many(count: int, line: str) -> bytes:
    return b"".join((line % {"n": n}).encode() + b"\n" for n in range(count))


def _laughs(levels: int) -> bytes:
    lines = ["workflow: demo", "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines).encode()


# What no file of the folder can be: large, not UTF-8, or with nothing but itself in it. Bytes, and what is told.
MADE: dict[str, tuple[Callable[[], bytes], list[tuple[str, str]]]] = {
    "empty": (lambda: b"", [("1:1", "the file is empty. A YAML mapping is expected.")]),
    "blanks": (lambda: b" \n\n   \n", [("1:1", "the file is empty")]),
    "mark_alone": (lambda: b"\xef\xbb\xbf", [("1:1", "the file is empty")]),
    "documents_without_content": (lambda: b"---\n---\n", [("2:1", "a second document starts here")]),
    "ten_megabytes": (lambda: GOOD + _many(700_000, "# comment %(n)d"), [("1:1", "the file is larger than 8 MiB")]),
    "one_long_line": (lambda: b"workflow: " + b"x" * 7_000_000, [("1:1", "the key 'agents' is missing")] * 1),
    "many_unknown_keys": (lambda: GOOD + _many(20_000, "k%(n)d: 1"), [("4:1", "unknown key 'k0'")]),
    "many_values": (
        lambda: GOOD.replace(b"hi}", b"hi, stop: [" + b"x, " * 600_000 + b"x]}"),
        [("3:1499999", "too large: more than 500,000 values")],
    ),
    "many_laughs": (lambda: _laughs(40), [("7:40", "too large: more than 500,000 values")]),
    "deep_lists": (lambda: b"workflow: " + b"[" * 200_000, [("1:1010", "nested more than 40 levels deep")]),
    "deep_mappings": (lambda: b"a: {" * 50_000, [("1:160", "nested more than 40 levels deep")]),
    "deep_indentation": (
        lambda: b"".join(b" " * n + b"k:\n" for n in range(3000)),
        [("41:41", "nested more than 40 levels deep")],
    ),
    "latin_1": (lambda: GOOD.replace(b"hi", "grün".encode("latin-1")), [("3:35", "the byte 0xfc is not UTF-8")]),
    "utf_16": (lambda: GOOD.decode().encode("utf-16"), [("1:1", "the byte 0xff is not UTF-8")]),
    "utf_16_without_mark": (lambda: GOOD.decode().encode("utf-16-be"), [("1:1", "U+0000 is not allowed in YAML")]),
    "cut_character": (lambda: GOOD + "# é".encode()[:-1], [("4:3", "the byte 0xc3 is not UTF-8")]),
    "surrogate": (lambda: GOOD.replace(b"hi", b"\xed\xa0\x80"), [("3:33", "the byte 0xed is not UTF-8")]),
    "nul": (lambda: GOOD.replace(b"hi", b"h\0i"), [("3:34", "the character U+0000 is not allowed in YAML")]),
    "escape_code": (lambda: GOOD.replace(b"hi", b"\x1b[2J"), [("3:33", "the character U+001B is not allowed")]),
    "mark_in_the_middle": (lambda: GOOD.replace(b"hi", b"\xef\xbb\xbfhi"), [("3:33", "U+FEFF is not allowed")]),
    "pickle": (lambda: b"\x80\x04\x95\x1a\x00\x00\x00", [("1:1", "the byte 0x80 is not UTF-8")]),
    "gzip": (lambda: b"\x1f\x8b\x08\x00\x00\x00", [("1:2", "the byte 0x8b is not UTF-8")]),
    "image": (lambda: b"\x89PNG\r\n\x1a\n", [("1:1", "the byte 0x89 is not UTF-8")]),
    "only_breaks": (lambda: b"\r\n" * 100_000, [("1:1", "the file is empty")]),
    "quotes_that_stay_open": (lambda: b"workflow: '" + b"a\n" * 100_000, [("1:11", "this quote is never closed")]),
    "long_template": (
        lambda: GOOD.replace(b"hi", b"'{{ " + b"1 + " * 20_000 + b"1 }}'"),
        [("3:33", "nested too deeply")],
    ),
}  # fmt: skip
