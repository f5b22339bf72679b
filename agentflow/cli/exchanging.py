"""`agentflow payload send` and `receive`: payloads between programs, by folder, pipe or HTTP."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from agentflow.cli.common import access_token, signing_key
from agentflow.cli.console import amount, count, err, plain, print_json, visible
from agentflow.cli.options import FILE, Count
from agentflow.errors import PayloadError, UserError

if TYPE_CHECKING:
    from agentflow.kv.payload import Payload

token_option = click.option(
    "--token-file", type=FILE, metavar="FILE", help="Holds the receiver's token; by default AGENTFLOW_TOKEN does."
)
MAX_BYTES = 1 << 30


@click.command("send", short_help="Send payload files to a folder, a pipe or a receiver.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--to", "target", required=True, metavar="TARGET", help="A folder, `-` (standard output), or http://HOST:PORT."
)
@click.option("--key-file", type=FILE, metavar="FILE", help="Sign what is sent with this key.")
@token_option
def send(files: Sequence[str], target: str, key_file: Path | None, token_file: Path | None) -> None:
    """Verify each FILE and send it; `-` takes payloads from standard input, one behind the other.

    Into a folder, for a program that reads them there; to standard output, one behind the other; or to
    `agentflow payload receive --listen` (docs/exchange.md), again while that is busy, and stored there once.

    \b
    agentflow payload send read.safetensors --to inbox
    """
    key = signing_key(key_file)
    deliver = _delivery(target, key, token_file)
    sent = 0
    for payload in _payloads(files):
        digest = deliver(payload)
        sent += 1
        click.echo(f"{digest}  {visible(payload.header.channel)}  {amount(payload.nbytes)}", err=target == "-")
    if not sent:
        raise UserError("There was no payload on standard input.", where="-")


@click.command("receive", short_help="Take payloads from a pipe or over HTTP into a folder.")
@click.argument("folder", type=FILE)
@click.option("--listen", metavar="[HOST:]PORT", help="Listen for HTTP; the host is 127.0.0.1 unless it is given.")
@click.option("--key-file", type=FILE, metavar="FILE", help="Refuse what is not signed with this key.")
@token_option
@click.option(
    "--max-bytes", type=Count(), default=MAX_BYTES, show_default="1 GiB", help="Refuse payloads larger than this."
)
@click.option("--count", "most", type=Count(), help="End after so many payloads.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each payload.")
def receive(
    folder: Path,
    listen: str | None,
    key_file: Path | None,
    token_file: Path | None,
    max_bytes: int,
    most: int | None,
    as_json: bool,
) -> None:
    """Take payloads into FOLDER: from standard input, or over HTTP with --listen. A line is printed for each.

    What is damaged, too large or not signed as it should be is refused, and nothing of it stays. Python reads the
    folder with `agentflow.Inbox(folder).payloads()`.

    \b
    cat read.safetensors | agentflow payload receive inbox
    AGENTFLOW_TOKEN=... agentflow payload receive inbox --listen 8765
    """
    key = signing_key(key_file)
    tell = _teller(as_json)
    if listen is not None:
        _listen(folder, listen, access_token(token_file), key, max_bytes, most, tell)
        return
    if token_file is not None:
        raise UserError("A pipe needs no token.", where="--token-file", fix="Leave it out, or add --listen.")
    if sys.stdin.isatty():
        raise UserError("Standard input is a terminal.", fix="Pipe payload files in, or add --listen PORT.")
    from agentflow.exchange.inbox import Inbox
    from agentflow.exchange.streams import take_all

    taken = 0
    for path in take_all(sys.stdin.buffer, Inbox(folder, key=key), max_bytes=max_bytes):
        tell(path)
        taken += 1
        if taken == most:
            return
    if not taken or most:
        wanted = f"{most} were expected" if most else "there was none"
        raise PayloadError(f"Standard input ended after {count(taken, 'payload')}; {wanted}.")


def _listen(
    folder: Path,
    listen: str,
    token: str,
    key: bytes | None,
    max_bytes: int,
    most: int | None,
    tell: Callable[[Path], None],
) -> None:
    from agentflow.exchange.receiver import Limits, Receiver

    host, port = _address(listen)
    lock, done = threading.Lock(), threading.Event()
    left = most or 0

    def stored(path: Path) -> None:
        nonlocal left
        with lock:
            tell(path)
            left -= 1
            if not left:
                done.set()

    limits = Limits(max_bytes=max_bytes)
    with Receiver(folder, token=token, key=key, host=host, port=port, limits=limits, on_stored=stored) as receiver:
        err.print(f"listening on {plain(receiver.url)}", soft_wrap=True)
        while not done.wait(0.2):  # a short wait keeps the main thread open to Ctrl-C
            pass


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UserError("An address is [HOST:]PORT.", where=f"--listen {listen}", fix="Say 8765, or 127.0.0.1:8765.")
    return host.strip("[]") or "127.0.0.1", int(port)


def _delivery(target: str, key: bytes | None, token_file: Path | None) -> Callable[[Payload], str]:
    """What brings a payload to its target and gives its digest."""
    from agentflow.exchange.inbox import Inbox
    from agentflow.exchange.sender import send_payload
    from agentflow.kv.disk import write_blocks
    from agentflow.kv.wire import seal_payload

    def to_output(payload: Payload) -> str:
        digest, blocks = seal_payload(payload, key=key)
        write_blocks(sys.stdout.fileno(), blocks)
        return digest

    if target.startswith(("http://", "https://")):
        token = access_token(token_file)
        return lambda payload: send_payload(payload, target, token=token, key=key)
    if token_file is not None:
        raise UserError("Only a receiver needs a token.", where="--token-file", fix="Send to http://HOST:PORT.")
    if target != "-":
        return Inbox(Path(target), key=key).put
    if sys.stdout.isatty():
        raise UserError("Standard output is a terminal.", where="--to -", fix="Send it through a pipe, or to a file.")
    return to_output


def _payloads(files: Sequence[str]) -> Iterator[Payload]:
    from agentflow.kv.wire import read_payload

    for file in files:
        if file == "-":
            yield from _piped(sys.stdin.buffer)
        else:
            yield read_payload(Path(file))


def _piped(stream: BinaryIO) -> Iterator[Payload]:
    """Payloads of a stream, each by way of a file of its own, so that none has to fit into memory."""
    from agentflow.exchange.inbox import Inbox
    from agentflow.exchange.streams import take_all
    from agentflow.kv.wire import read_payload

    with tempfile.TemporaryDirectory(prefix="agentflow-") as folder:
        for path in take_all(stream, Inbox(Path(folder)), max_bytes=MAX_BYTES):
            yield read_payload(path)
            path.unlink()


def _teller(as_json: bool) -> Callable[[Path], None]:
    """What says that a payload has come: where it is, what and from whom; its words are not shown."""
    from agentflow.kv.wire import describe

    def tell(path: Path) -> None:
        try:
            found = describe(path)
        except PayloadError:  # its reader was quicker
            found = None
        if as_json:
            print_json({"file": str(path), **(found or {})}, indent=None)
        elif found is None:
            click.echo(path)
        else:
            header, size = found["header"], amount(found["file_bytes"])
            click.echo(f"{path}  {visible(header['channel'])} from {visible(header['sender'])}  {size}")

    return tell
