"""The agents, workflows and configs that ship with the package, found by name from anywhere."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

KINDS = ("workflows", "agents", "configs")
SUFFIXES = (".yaml", ".yml")
_PACKAGE = Path(__file__).resolve().parent.parent


def library_root() -> Path:
    """Return the folder that holds `agents/`, `workflows/` and `configs/`.

    In an installed wheel that is `agentflow/library`; in a source checkout the repository root.
    """
    installed = _PACKAGE / "library"
    checkout = _PACKAGE.parent
    is_checkout = (checkout / "pyproject.toml").is_file() and any((checkout / kind).is_dir() for kind in KINDS)
    return checkout if is_checkout and not installed.is_dir() else installed


def find(ref: str, kind: str = "workflows") -> Path | None:
    """Return the shipped file that `hotpotqa`, `hotpotqa.yaml` or `workflows/hotpotqa.yaml` means."""
    if not is_plain(ref):
        return None
    root = library_root()
    first = PurePosixPath(ref).parts[0]
    bases = [root] if first in KINDS else [root / kind]
    for base in bases:
        for candidate in with_suffixes(base / ref):
            if is_file(candidate):
                return candidate
    return None


def find_near(ref: str, folder: Path, kind: str) -> Path | None:
    """Return the file that a workflow in `folder` means by a plain reference.

    It is looked for in that folder, in its parent when it is called `workflows`, in the working folder, and in the
    shipped library, in this order.
    """
    above = [folder.parent] if folder.name == "workflows" else []
    for base in (folder, *above, Path()):
        for candidate in with_suffixes(base / ref):
            if is_file(candidate):
                return candidate
    return find(ref, kind)


def shipped(kind: str) -> list[str]:
    """Return the names (without suffix) of all shipped "workflows", "agents" or "configs", sorted."""
    folder = library_root() / kind
    if kind not in KINDS or not folder.is_dir():
        return []
    names = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return sorted(name.as_posix() for name in names)


def with_suffixes(path: Path) -> list[Path]:
    """Return the path itself if it names a YAML file, else the path with each suffix added."""
    if path.suffix in SUFFIXES:
        return [path]
    return [path.with_name(path.name + suffix) for suffix in SUFFIXES if path.name]


def is_plain(ref: str) -> bool:
    """Whether a reference stays below where it is looked for: relative, no `..`, no drive, no `~`."""
    parts = PurePosixPath(ref).parts
    unsafe = not parts or ref.startswith(("/", "~")) or ".." in parts
    return not unsafe and not any(character in ref for character in "\\:\0\n")


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name no file system can hold is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Whether anything stands at the path; a name no file system can hold does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
