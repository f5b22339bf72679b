"""The command line as its own process: pipes, signals, start-up time, and bugs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from agentflow.cli.main import BUG, STOPPED, UNREAD, VERBS
from tests.cli.conftest import ROOT, command_line, files_below

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


@pytest.mark.parametrize("module", [*VERBS, "main", "common", "options", "inputs", "tables", "live"])
def test_importing_a_verb_imports_neither_torch_nor_transformers(module):
    heavy = "{'torch', 'transformers', 'networkx', 'pydantic', 'jinja2'}"
    assert python(f"import sys, agentflow.cli.{module}; print(sorted({heavy} & set(sys.modules)))") == "[]"


@pytest.mark.parametrize(("arguments", "limit"), [((), 0.2), *(((verb,), 0.5) for verb in VERBS)])
def test_help_is_quick(arguments, limit):
    """Best of five: the machine may be busy, but it must be possible."""
    code = (
        "import sys, time; start = time.perf_counter(); from agentflow.cli.main import cli; "
        f"sys.stdout = open('/dev/null', 'w'); cli.main({[*arguments, '--help']!r}, standalone_mode=False); "
        "print(time.perf_counter() - start, file=sys.stderr)"
    )
    times = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        times.append(float(done.stderr))
        if times[-1] < limit:
            return
    pytest.fail(f"--help took {min(times):.2f} s")


def test_without_a_terminal_progress_goes_to_stderr_without_colours(process):
    ended = process("run", "facts.yaml", "-n", "1")
    assert ended.code == 0, ended.err
    assert "\x1b" not in ended.out + ended.err
    assert "facts over cache: read: " in ended.err
    assert "\ncache " in ended.out


def test_a_terminal_that_knows_only_ascii_gets_question_marks(process):
    ended = process("run", "question.yaml", "--input", "question=ä", "--json", PYTHONIOENCODING="ascii")
    assert ended.code == 0, ended.err
    assert ended.json


def unread(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose standard output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command_line(*arguments),
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, **ENVIRONMENT},
            timeout=120,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("line", ["channels", "graph facts.yaml", "channels --json"])
def test_a_reader_that_went_away_ends_the_command_without_a_word(place, line):
    done = unread(*line.split())
    assert done.returncode == UNREAD
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


def test_a_run_whose_progress_nobody_reads_is_finished_all_the_same(place):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command_line("run", "facts.yaml", "-n", "1", "--json"),
        stdout=subprocess.PIPE,
        stderr=writer,
        check=False,
        env={**os.environ, **ENVIRONMENT},
        timeout=120,
    )
    os.close(writer)
    assert done.returncode == 0
    assert b'"scores"' in done.stdout


def test_ctrl_c_in_a_run_says_what_is_stored_and_leaves_no_half_files(place):
    command = command_line("run", "slow.yaml", "--input", "question=who")
    # Tests that run in the background ignore Ctrl-C, and a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT}
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        wait_until(lambda: any('"node_started"' in log.read_text() for log in place.glob("runs/*/events.jsonl")))
        time.sleep(0.3)  # into the decoding loop
        run.send_signal(signal.SIGINT)
        out, told = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == STOPPED
    assert "stopped: 0 of 1 item finished" in told
    (folder,) = place.glob("runs/*")
    assert f"go on with: agentflow runs resume runs/{folder.name}" in told
    assert "Traceback" not in told
    assert out == ""
    assert not [name for name in files_below(place) if name.endswith(".part")]
    (log,) = place.glob("runs/*/events.jsonl")
    assert '"run_finished"' in log.read_text().splitlines()[-1]


def wait_until(true, limit: float = 60) -> None:
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_a_bug_keeps_its_traceback_and_asks_for_a_report(place):
    code = (
        "import agentflow.workflow.loader as loader\n"
        "def broken(ref): raise ZeroDivisionError('inside')\n"
        "loader.load_workflow = broken\n"
        "from agentflow.cli.main import main\n"
        "main(['graph', 'facts.yaml'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.returncode == BUG
    assert "ZeroDivisionError: inside" in done.stderr
    assert "Please report it" in done.stderr


def on_a_terminal(columns: int, *arguments: str) -> str:
    """What a command writes to a terminal of that width, escape sequences included."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    command = subprocess.Popen(
        command_line(*arguments),
        stdin=side,
        stdout=side,
        stderr=side,
        env={**environment, **ENVIRONMENT, "TERM": "xterm-256color"},
    )
    os.close(side)
    written = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([main], [], [], 0.2)[0]:
            try:
                block = os.read(main, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not block:
                break
            written += block
    command.wait(timeout=30)
    os.close(main)
    assert command.returncode == 0, written.decode()
    return written.decode()


def test_the_live_view_draws_itself_on_a_narrow_terminal(place):
    screen = on_a_terminal(60, "run", "facts.yaml", "-n", "2")
    assert "\x1b[" in screen
    assert "2/2" in screen
    assert "…" not in screen.split("facts: 2 items")[1], "the table of results is never cut"
