"""Data files as JSON objects: JSON or JSON Lines, plain or gzip, told apart by content and not by name.

Accepted: a JSON list of objects; a JSON object that holds that list (`{"data": [...]}`) or keys each record
(`{"0": {...}, "1": {...}}`, the form of LongBench result files); JSON Lines. Nothing is written anywhere.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from agentflow.errors import DataError
from agentflow.tasks.records import Record

MAX_BYTES = 2 * 1024**3
_CHUNK = 1024**2
_GZIP_MAGIC = b"\x1f\x8b"
# A lone surrogate ("\ud800") is legal JSON but no text: tokenizers and writers choke on it later.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HOLDERS = ("data", "records", "items", "examples", "rows")


def read_records(path: Path, *, max_bytes: int = MAX_BYTES, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the file's records; each must have all of `keys`.

    `max_bytes` bounds the file after decompression, checked while it streams. Raises `DataError` with the
    file, and the line or record, for whatever is wrong.
    """
    found = load_records(path, max_bytes=max_bytes)
    for record in found:
        for key in keys:
            record.need(key)
    return [record.values for record in found]


def load_records(path: Path, *, max_bytes: int = MAX_BYTES) -> list[Record]:
    """Return the file's records with their places; see `read_records`."""
    text = _text(path, _content(path, max_bytes))
    start = text.lstrip()[:1]
    if not start:
        raise DataError("The file is empty.", where=str(path))
    placed = _json_lines(path, text) if start == "{" and _is_json_lines(text) else _json(path, text)
    if not placed:
        raise DataError("The file holds no records.", where=str(path))
    records = [_record(path, where, index, value) for index, (where, value) in enumerate(placed)]
    if _SURROGATE.search(text):
        for record in records:
            _check_characters(record)
    return records


def _content(path: Path, max_bytes: int) -> bytearray:
    try:
        if path.is_dir():
            raise DataError("This is a folder, not a data file.", where=str(path))
        if path.exists() and not path.is_file():
            raise DataError("This is not a regular file.", where=str(path))
        with path.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic != _GZIP_MAGIC:
                return _drain(raw, path, max_bytes)
            with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                return _drain(unpacked, path, max_bytes)
    except FileNotFoundError:
        raise DataError("There is no such file.", where=str(path)) from None
    except EOFError:
        raise DataError("The gzip file is cut short.", where=str(path), fix="Fetch it again.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        what = f"The gzip file is damaged ({error})."
        raise DataError(what, where=str(path), fix="Fetch it again.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"The file can't be read: {reason}.", where=str(path)) from None


def _drain(stream: BinaryIO | gzip.GzipFile, path: Path, max_bytes: int) -> bytearray:
    content = bytearray()
    while chunk := stream.read(_CHUNK):
        content += chunk
        if len(content) > max_bytes:
            what = f"The file is larger than {max_bytes:,} bytes once unpacked."
            raise DataError(what, where=str(path), fix="Split it into smaller files.")
    return content


def _text(path: Path, content: bytearray) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError("The file is not UTF-8 text.", where=f"{path}:{line}") from None


def _is_json_lines(text: str) -> bool:
    """Tell whether a text that starts with "{" is one object a line, rather than one object in all."""
    body = text.strip()
    first, newline, rest = body.partition("\n")
    if not newline:
        return False
    try:
        _parse(first)
    except (ValueError, RecursionError):
        # A broken first line: still JSON Lines if the next one opens an object of its own.
        return rest.lstrip()[:1] == "{"
    return True


def _json_lines(path: Path, text: str) -> list[tuple[str, Any]]:
    placed = []
    # Only "\n" ends a line: str.splitlines would also cut at the U+2028 that JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                placed.append((where, _parse(line)))
            except (ValueError, RecursionError) as error:
                _not_json(where, error)
    return placed


def _json(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        whole = _parse(text)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        _not_json(f"{path}{line}", error)
    if not isinstance(whole, (list, dict)):
        raise DataError("The file holds a single value, not records.", where=str(path))
    listed = whole if isinstance(whole, list) else _held(whole)
    return [(f"{path}, record {number}", value) for number, value in enumerate(listed, start=1)]


def _held(whole: dict[str, Any]) -> list[Any]:
    """Return the records of a JSON object: a list it holds, the objects it keys, or itself."""
    for key in _HOLDERS:
        if isinstance(whole.get(key), list):
            return list(whole[key])
    values = list(whole.values())
    if len(values) == 1 and isinstance(values[0], list):
        return values[0]
    if all(isinstance(value, dict) for value in values):
        return values
    return [whole]


def _parse(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _not_json(where: str, error: ValueError | RecursionError) -> NoReturn:
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg} at column {error.colno}"
    else:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    raise DataError(f"This is not JSON: {reason}.", where=where) from None


def _record(path: Path, where: str, index: int, value: Any) -> Record:
    if not isinstance(value, dict):
        names = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}
        kind = names.get(type(value), "a number")
        raise DataError(f"A record must be an object, not {kind}.", where=where)
    return Record(path=path, where=where, index=index, values=value)


def _check_characters(record: Record) -> None:
    try:
        json.dumps(record.values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise record.wrong("A text holds half a character (a lone surrogate).") from None
    except RecursionError:
        raise record.wrong("This is not JSON: nested too deeply.") from None
