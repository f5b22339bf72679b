"""What ALFWorld calls things: "desk 1" for the PDDL id `desk_bar__minus_00_dot_57_bar__…`.

The same numbers as `alfworld.agents.utils.misc.Demangler` gives (ALFWorld 0.4, Shridhar et al. 2021,
arXiv 2010.03768), which is all that its package adds to TextWorld for playing games of text. Written again because
that package comes with torchvision, OpenCV and a 3-D simulator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the name of every id; ids without coordinates are their own names.

    Things of one kind are numbered from the last id in alphabetical order, which gets 1.
    """
    ordered = sorted(set(ids))
    left = Counter(kind for kind in map(_kind, ordered) if kind)
    names = {}
    for key in ordered:
        kind = _kind(key)
        if kind:
            names[key] = f"{kind} {left[kind]}"
            left[kind] -= 1
        else:
            names[key] = key
    return names


def _kind(key: str) -> str:
    """Return "desk" of `desk_bar__…`, or "" for an id without coordinates; a basin differs from its sink."""
    kind, bar, _ = key.partition("_bar_")
    if not bar:
        return ""
    return f"{kind}basin" if "basin" in key else kind
