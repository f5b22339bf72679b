from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import PayloadError
from agentflow.kv.payload import SCHEMA_VERSION, Payload
from agentflow.kv.wire import read_payload, write_payload
from tests.kv.samples import opened, payloads, same_payload, seal

KINDS = sorted(payloads())
KEY = b"a shared key"
CHEAP = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@cache
def file_of(kind: str) -> bytes:
    """A signed file of a payload of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        write_payload(payloads()[kind], Path(folder) / "p", key=KEY)
        return (Path(folder) / "p").read_bytes()


@cache
def sample(kind: str) -> Payload:
    return payloads()[kind]


@CHEAP
@given(data=st.data())
def test_one_changed_byte_is_refused_when_the_file_is_signed(data: st.DataObject, tmp_path: Path) -> None:
    raw = bytearray(file_of(data.draw(st.sampled_from(KINDS))))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "p").write_bytes(raw)
    with pytest.raises(PayloadError) as caught:
        read_payload(tmp_path / "p", key=KEY)
    assert caught.value.where == str(tmp_path / "p")


@CHEAP
@given(data=st.data())
def test_one_changed_byte_is_refused_or_changes_nothing_without_a_key(data: st.DataObject, tmp_path: Path) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    raw = bytearray(file_of(kind))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "p").write_bytes(raw)
    try:
        read = read_payload(tmp_path / "p")
    except PayloadError:
        return
    assert same_payload(read, sample(kind))


@pytest.mark.parametrize("kind", ["text", "cache", "int4", "codes"])
def test_every_bit_of_the_head_counts(kind: str, tmp_path: Path) -> None:
    whole = file_of(kind)
    size = 8 + struct.unpack("<Q", whole[:8])[0]
    for at in range(min(size, 1500)):
        raw = bytearray(whole)
        raw[at] ^= 1
        (tmp_path / "p").write_bytes(raw)
        with pytest.raises(PayloadError):
            read_payload(tmp_path / "p", key=KEY)


@CHEAP
@given(data=st.data())
def test_a_file_cut_at_any_length_or_with_a_tail_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    raw = file_of(data.draw(st.sampled_from(KINDS)))
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    (tmp_path / "p").write_bytes(cut if data.draw(st.booleans()) else raw + data.draw(st.binary(min_size=1)))
    with pytest.raises(PayloadError):
        read_payload(tmp_path / "p")


@CHEAP
@given(junk=st.binary(max_size=300), sized=st.booleans())
def test_any_other_bytes_are_refused(junk: bytes, sized: bool, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(struct.pack("<Q", len(junk)) + junk if sized else junk)
    with pytest.raises(PayloadError):
        read_payload(tmp_path / "p")


@pytest.mark.parametrize(
    ("signed", "asked", "why"),
    [(None, KEY, "is not signed"), (b"other", KEY, "is signed with another key")],
)
def test_a_missing_or_wrong_signature_is_refused_where_a_key_is_configured(
    signed: bytes | None, asked: bytes, why: str, tmp_path: Path
) -> None:
    write_payload(sample("cache"), tmp_path / "p", key=signed)
    with pytest.raises(PayloadError, match=why):
        read_payload(tmp_path / "p", key=asked)
    assert same_payload(read_payload(tmp_path / "p"), sample("cache"))


def test_a_signature_is_worth_nothing_on_another_file(tmp_path: Path) -> None:
    def signature(raw: bytes) -> int:
        return raw.index(b'"signature":"') + 13

    a, b = file_of("cache"), bytearray(file_of("text"))
    b[signature(bytes(b)) : signature(bytes(b)) + 64] = a[signature(a) : signature(a) + 64]
    (tmp_path / "p").write_bytes(b)
    with pytest.raises(PayloadError, match="signed with another key"):
        read_payload(tmp_path / "p", key=KEY)


def test_what_is_no_payload_file_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear agent,\nplease find attached …\n")
    (tmp_path / "empty").touch()
    (tmp_path / "list").write_bytes(struct.pack("<Q", 2) + b"[]")
    (tmp_path / "deep").write_bytes(struct.pack("<Q", 200_000) + b"[" * 200_000)
    (tmp_path / "plain").write_bytes(struct.pack("<Q", 2) + b"{}")
    (tmp_path / "file").touch()
    for name, why in (
        ("text", "cut short, or no safetensors"),
        ("empty", "empty or cut short"),
        ("list", "not a payload"),
        ("deep", "not a payload"),
        ("plain", "not a payload"),
        ("missing", "no such payload file"),
        ("", "can't be read"),
        ("file/below", "can't be read"),
        ("nul\0", "can't be read"),
    ):
        with pytest.raises(PayloadError, match=why) as caught:
            read_payload(tmp_path / name)
        assert str(tmp_path) in str(caught.value)


def floats(shape: list[int], start: int, end: int, kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


HEADER = {
    "channel": "lcf",
    "sender": "s",
    "fingerprint": None,
    "tokens": 0,
    "kept": 0,
    "losses": [],
    "schema": SCHEMA_VERSION,
}
CODES = {"header": HEADER, "body": {"kind": "codes", "settings": {}}}


@pytest.mark.parametrize(
    "table",
    [
        {"codes.a": floats([1 << 40], 0, 16)},
        {"codes.a": floats([1 << 62, 1 << 62], 0, 16)},
        {"codes.a": floats([1 << 40], 0, 0), "codes.b": floats([4], 0, 16)},
        {"codes.a": floats([1 << 40], 0, 1 << 42)},
        {"codes.a": floats([3], 0, 12), "codes.b": floats([3], 4, 16)},
        {"codes.a": floats([4], 0, 16), "codes.b": floats([4], 0, 16)},
        {"codes.a": floats([1], 0, 4), "codes.b": floats([1], 12, 16)},
        {"codes.a": floats([3], 4, 16)},
        {"codes.a": floats([3], 0, 12)},
        {"codes.a": floats([-4], 0, 16)},
        {"codes.a": floats([-1, -4], 0, 16)},
        {"codes.a": floats([2], -8, 0), "codes.b": floats([4], 0, 16)},
        {"codes.a": floats([4], 16, 0)},
        {"codes.a": floats([True, 4], 0, 16)},
        {"codes.a": {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}},
        {"codes.a": {"dtype": "F32", "shape": [4], "data_offsets": [0.0, 16.0]}},
        {"codes.a": {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}},
        {"codes.a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}},
        {"codes.a": {"dtype": "C128", "shape": [1], "data_offsets": [0, 16]}},
        {"codes.a": {"dtype": "F32", "shape": [4], "data_offsets": [0, float("inf")]}},
        {"codes.a": [0, 16]},
        {},
    ],
)
def test_a_table_that_does_not_describe_the_file_is_refused_however_well_sealed(
    table: dict[str, Any], tmp_path: Path
) -> None:
    seal(tmp_path / "p", table, bytes(16), CODES)
    with pytest.raises(PayloadError):
        read_payload(tmp_path / "p")


def test_the_forger_of_these_tests_can_make_a_good_file(tmp_path: Path) -> None:
    read_payload(seal(tmp_path / "p", {"codes.a": floats([4], 0, 16)}, bytes(16), CODES))


def change(path: str, value: Any) -> Callable[[Any], None]:
    def apply(content: Any) -> None:
        *way, last = path.split(".")
        for name in way:
            content = content[name]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return apply


@pytest.mark.parametrize("kind", ["cache", "int4", "codes", "text"])
def test_a_later_schema_is_refused_with_advice(kind: str, tmp_path: Path) -> None:
    write_payload(sample(kind), tmp_path / "p")
    table, data, content = opened(tmp_path / "p")
    change("header.schema", SCHEMA_VERSION + 1)(content)
    seal(tmp_path / "p", table, data, content)
    with pytest.raises(PayloadError, match=r"schema 3; this version reads 2\. Update") as caught:
        read_payload(tmp_path / "p")
    assert caught.value.where == str(tmp_path / "p")


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("cache", change("body.next_position", 6)),
        ("cache", change("body.next_position", 1 << 70)),
        ("cache", change("body.next_position", float("inf"))),
        ("cache", change("body.layers", float("inf"))),
        ("cache", change("body.layers", 4)),
        ("cache", change("body.layers", 0)),
        ("cache", change("body.biased", True)),
        ("cache", change("body.kind", "pickle")),
        ("cache", change("body.kind", "quantized")),
        ("cache", change("body.head", 8)),
        ("cache", change("body.head", -1)),
        ("cache", change("body.turns", [{"role": "root", "content": ""}])),
        ("cache", change("body.turns", 3)),
        ("cache", change("header.tokens", "many")),
        ("cache", change("header.kept", -1)),
        ("cache", change("header.sender", None)),
        ("cache", change("header.losses", [1])),
        ("cache", change("header.extra", 1)),
        ("cache", change("header.channel", ...)),
        ("cache", change("header.fingerprint.geometry", {"layers": "xyz"})),
        ("cache", change("header.fingerprint.geometry", {"layers": [[float("inf")]]})),
        ("cache", change("header.fingerprint.more", 1)),
        ("cache", change("header", None)),
        ("int4", change("body.bits", 8)),
        ("int4", change("body.bits", 3)),
        ("int4", change("body.group", 8)),
        ("int4", change("body.group", 0)),
        ("int4", change("body.sinks", 3)),
        ("int4", change("body.sinks", -1)),
        ("int4", change("body.sinks", 1000)),
        ("int4", change("body.dtype", "int8")),
        ("int8", change("body.dtype", "Tensor")),
        ("codes", change("body.settings", 3)),
        ("text", change("body.turns", ["x"])),
    ],
)
def test_content_that_contradicts_its_tensors_is_refused_however_well_sealed(
    kind: str, spoil: Callable[[Any], None], tmp_path: Path
) -> None:
    write_payload(sample(kind), tmp_path / "p")
    table, data, content = opened(tmp_path / "p")
    seal(tmp_path / "p", table, data, content)
    read_payload(tmp_path / "p")
    spoil(content)
    seal(tmp_path / "p", table, data, content)
    with pytest.raises(PayloadError):
        read_payload(tmp_path / "p")


@pytest.mark.parametrize("name", ["positions", "token_ids", "layers.0.key", "layers.2.value"])
def test_tensors_of_another_number_format_are_refused(name: str, tmp_path: Path) -> None:
    write_payload(sample("cache"), tmp_path / "p")
    table, data, content = opened(tmp_path / "p")
    table[name]["dtype"] = {"I64": "F64", "F32": "I32"}[table[name]["dtype"]]
    seal(tmp_path / "p", table, data, content)
    with pytest.raises(PayloadError):
        read_payload(tmp_path / "p")


def test_content_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    for text in ("", "null", "[]", '"x"', "[" * 100_000, json.dumps({"header": []})):
        seal(tmp_path / "p", {}, raw_content=text)
        with pytest.raises(PayloadError, match="not a payload"):
            read_payload(tmp_path / "p")
