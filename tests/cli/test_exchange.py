"""`agentflow payload send` and `receive` as people use them: processes, pipes, sockets; and others' senders."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentflow.cli.main import WRONG
from agentflow.exchange.inbox import Inbox
from agentflow.exchange.receiver import Receiver
from agentflow.kv.bodies import TextBody, Turn
from agentflow.kv.payload import Header, Payload
from agentflow.kv.wire import read_payload, write_payload
from tests.cli.conftest import ROOT, command_line

TOKEN = "a-token-of-the-tests"
KEY = "a shared key"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "AGENTFLOW_TOKEN": TOKEN}


@pytest.fixture
def files(place: Path) -> list[str]:
    for name in "ab":
        write_payload(
            Payload(Header("text", f"\x1b[31m{name}"), TextBody((Turn("user", name),))), place / f"{name}.safetensors"
        )
    return ["a.safetensors", "b.safetensors"]


def words(folder: Path, key: bytes | None = None) -> list[str]:
    return [payload.body.turns[0].content for payload in Inbox(folder, key=key).payloads(timeout=0)]


def piped(arguments: list[str], data: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command_line(*arguments), input=data, capture_output=True, check=False, env={**ENVIRONMENT, **more}, timeout=120
    )


@contextmanager
def listening(*arguments: str, **more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        command_line("payload", "receive", "inbox", "--listen", "0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **more},
    )
    try:
        line = process.stderr.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line + process.stderr.read()
        yield line.split()[-1], process
    finally:
        process.kill()
        process.communicate()


def test_files_are_put_into_a_folder(cli, files, place):
    ended = cli("payload", "send", *files, "--to", "inbox")
    assert (ended.code, ended.out.count("\n")) == (0, 2)
    assert words(place / "inbox") == ["a", "b"]


def test_files_go_through_a_pipe_and_are_signed_on_the_way(files, place):
    sent = piped(["payload", "send", *files, "--to", "-"], AGENTFLOW_SIGNING_KEY=KEY)
    assert sent.returncode == 0
    assert sent.stderr.count(b"\n") == 2
    received = piped(["payload", "receive", "inbox", "--json"], sent.stdout, AGENTFLOW_SIGNING_KEY=KEY)
    assert received.returncode == 0, received.stderr
    lines = [json.loads(line) for line in received.stdout.splitlines()]
    assert [line["signed"] for line in lines] == [True, True]
    assert words(place / "inbox", KEY.encode()) == ["a", "b"]
    again = piped(["payload", "send", "-", "--to", "other"], sent.stdout)
    assert again.returncode == 0, again.stderr
    assert words(place / "other") == ["a", "b"]
    refused = piped(["payload", "receive", "third"], sent.stdout, AGENTFLOW_SIGNING_KEY="another key")
    assert (refused.returncode, b"another key" in refused.stderr) == (WRONG, True)
    assert words(place / "third") == []


def test_files_are_sent_to_a_listening_receiver_that_ends_after_so_many(cli, files, place, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_TOKEN", TOKEN)
    (place / "key").write_text(KEY)
    with listening("--count", "2", "--key-file", "key") as (url, process):
        ended = cli("payload", "send", *files, "--to", url, "--key-file", "key")
        assert ended.code == 0, ended.err
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    assert out.count("\n") == 2
    assert "\x1b" not in out + ended.out  # foreign names don't reach the terminal raw
    assert words(place / "inbox", KEY.encode()) == ["a", "b"]


def test_a_receiver_in_the_shell_ends_with_ctrl_c_and_keeps_what_came(cli, files, place, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_TOKEN", TOKEN)
    with listening("--json") as (url, process):
        assert cli("payload", "send", "a.safetensors", "--to", url).code == 0
        assert json.loads(process.stdout.readline())["header"]["channel"] == "text"
        process.send_signal(signal.SIGINT)
        process.wait(10)
        assert process.returncode == 130
    assert words(place / "inbox") == ["a"]


def test_a_receiver_refuses_what_is_larger_than_it_was_told(cli, files, place, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_TOKEN", TOKEN)
    with listening("--max-bytes", "100") as (url, _):
        ended = cli("payload", "send", "a.safetensors", "--to", url)
        assert (ended.code, "(413)" in ended.err, "100 are allowed" in ended.err) == (WRONG, True, True)
        (place / "token").write_text("another" * 5)
        ended = cli("payload", "send", "a.safetensors", "--to", url, "--token-file", "token")
        assert (ended.code, "(401)" in ended.err) == (WRONG, True)
    assert words(place / "inbox") == []


WRONG_INPUT = {
    "no token": ("payload receive inbox --listen 0", "AGENTFLOW_TOKEN"),
    "no token to send with": ("payload send a.safetensors --to http://127.0.0.1:1", "AGENTFLOW_TOKEN"),
    "no such token file": ("payload receive inbox --listen 0 --token-file gone", "No such file"),
    "an empty token file": ("payload receive inbox --listen 0 --token-file nothing", "empty"),
    "a token of bytes": ("payload receive inbox --listen 0 --token-file bytes", "ASCII"),
    "a weak token": ("payload receive inbox --listen 0 --token-file weak", "16"),
    "beyond loopback without a key": ("payload receive inbox --listen 0.0.0.0:0 --token-file strong", "signed"),
    "no port": ("payload receive inbox --listen host: --token-file strong", "[HOST:]PORT"),
    "a token for a pipe": ("payload receive inbox --token-file weak", "needs no token"),
    "a token for a folder": ("payload send a.safetensors --to inbox --token-file weak", "needs a token"),
    "no address": ("payload send a.safetensors --to http:// --token-file strong", "no address"),
    "no such file": ("payload send gone.safetensors --to inbox", "no such payload"),
    "a file as folder": ("payload send a.safetensors --to nothing", "no inbox"),
}


@pytest.mark.parametrize("how", WRONG_INPUT)
def test_wrong_input_is_told_in_one_line(how, cli, files, place):
    for name, text in {"nothing": b"", "bytes": b"\xff" * 20, "weak": b"secret", "strong": b"x" * 40}.items():
        (place / name).write_bytes(text)
    line, part = WRONG_INPUT[how]
    ended = cli(*line.split())
    assert ended.code == WRONG
    assert part in ended.err
    assert ended.err.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["receive", "inbox"], b"there was none"), (["send", "-", "--to", "inbox"], b"no payload on standard input")],
)
def test_an_empty_pipe_is_told(arguments, part, place):
    ended = piped(["payload", *arguments])
    assert (ended.returncode, part in ended.stderr) == (WRONG, True)


def test_fewer_payloads_than_expected_are_told_and_more_are_left(files, place):
    raw = b"".join((place / name).read_bytes() for name in files)
    ended = piped(["payload", "receive", "inbox", "--count", "3"], raw)
    assert (ended.returncode, b"ended after 2 payloads" in ended.stderr) == (WRONG, True)
    assert piped(["payload", "receive", "other", "--count", "1"], raw).returncode == 0
    assert words(place / "other") == ["a"]


# -- what docs/exchange.md tells others ---------------------------------------------------------------------

PAGE = (ROOT / "docs" / "exchange.md").read_text()


@pytest.mark.parametrize("key", [None, KEY.encode()], ids=["unsigned", "signed"])
def test_the_plain_sender_of_the_documents_is_understood(key, place):
    source = re.search(r"```python\n# plain_sender.py\n(.*?)```", PAGE, re.DOTALL).group(1)
    assert sum(bool(line) for line in source.splitlines()) <= 35
    assert "import agentflow" not in source
    (place / "plain_sender.py").write_text(source)
    with Receiver(place / "inbox", token=TOKEN, key=key) as receiver:
        environment = {"AGENTFLOW_TOKEN": TOKEN, "AGENTFLOW_SIGNING_KEY": (key or b"").decode(), "PATH": ""}
        done = subprocess.run(
            [sys.executable, "plain_sender.py", receiver.url, 'He said "ü" \n'],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        [payload] = receiver.payloads(timeout=0)
    assert payload.body.turns == (Turn("user", 'He said "ü" \n'),)


@pytest.mark.skipif(not all(map(shutil.which, ("curl", "openssl"))), reason="needs curl and openssl")
def test_the_curl_example_of_the_documents_works(files, place):
    example = re.search(r"```sh\n(digest=.*?)```", PAGE, re.DOTALL).group(1)
    with Receiver(place / "inbox", token=TOKEN) as receiver:
        digest = re.search(r'"digest":"([0-9a-f]{64})"', (place / "a.safetensors").read_bytes().decode("latin-1"))
        script = f"digest={digest.group(1)}\n" + example.split("\n", 1)[1]
        script = script.replace("http://127.0.0.1:8765/payloads", receiver.url).replace("read.safetensors", files[0])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert json.loads(done.stdout)["digest"] == digest.group(1), done.stderr
    assert words(place / "inbox") == ["a"]
    assert read_payload(place / files[0]).header.channel == "text"


def test_every_status_a_receiver_may_give_is_in_the_documents():
    source = "".join(p.read_text() for p in (ROOT / "agentflow" / "exchange").glob("*.py"))
    used = set(re.findall(r"(?:Refused|_say)\((\d{3})", source)) | {"503"}
    told = {code for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE) for code in row.split(", ")}
    assert used <= told
    assert told <= used | {"201", "404", "405"}
