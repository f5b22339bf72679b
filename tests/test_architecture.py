"""The house as docs/architecture.md draws it: who may import whom, how long a file is, what the package never does."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "agentflow"
FLOORS = (
    ("errors", "folders", "plugins", "settings"),
    ("kv", "workflow", "tasks", "tools"),
    ("models", "exchange"),
    ("adapters",),
    ("channels",),
    ("runtime",),
    ("evaluation", "integrations"),
    ("cli",),
)
GROUND = FLOORS[0]
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}
LONGEST = 400
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec"}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if "library" not in path.relative_to(PACKAGE).parts)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def room_of(module: str) -> str:
    """`agentflow.kv.cache` -> `kv`; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that a file imports, wherever in the file, and the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.startswith("agentflow"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            if (node.module or "").partition(".")[0] == "agentflow":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield (inner if inner in MODULES else str(node.module)), node.lineno


@each_file
def test_a_room_uses_only_floors_below_its_own(path):
    room = room_of(module_of(path))
    if not room:
        return  # the front door: agentflow/__init__.py names the whole house
    assert room in FLOOR_OF, f"'{room}' has no floor: draw it in docs/architecture.md and here"
    for module, line in imports(path):
        other = room_of(module)
        if other in ("", room):
            continue
        fits = FLOOR_OF[other] < FLOOR_OF[room] or (room in GROUND and other in GROUND)
        assert fits, f"{path}:{line}: '{room}' must not use '{other}'"


def test_no_imports_go_in_circles():
    graph = {name: {m for m, _ in imports(path) if m != name} for name, path in MODULES.items() if room_of(name)}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name in done or name not in graph:
            return
        for other in sorted(graph[name]):
            visit(other, (*way, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@each_file
def test_no_file_is_longer_than_can_be_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= LONGEST


@each_file
def test_only_the_command_line_prints(path):
    if room_of(module_of(path)) != "cli":
        assert "print" not in called_names(path)


@each_file
def test_nothing_is_unpickled_or_evaluated_as_python(path):
    assert not called_names(path) & UNSAFE_CALLS
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & UNSAFE_MODULES, f"{path}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_torch_load = node.func.attr == "load" and getattr(node.func.value, "id", "") == "torch"
            only_tensors = any(k.arg == "weights_only" and getattr(k.value, "value", 0) is True for k in node.keywords)
            assert only_tensors or not is_torch_load, f"{path}:{node.lineno}: torch.load unpickles"


def called_names(path: Path) -> set[str]:
    """Names of plain functions that a file calls: `print(...)`, not `console.print(...)`."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


@pytest.mark.parametrize("module", ["agentflow", "agentflow.workflow", "agentflow.tasks", "agentflow.models.spec"])
def test_reading_yaml_and_data_needs_no_torch(module):
    code = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "False"


def test_checking_a_workflow_file_needs_no_torch():
    code = "import sys; from agentflow.workflow import load_workflow; load_workflow('private_facts'); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "False"
