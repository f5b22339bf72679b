from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.errors import DataError
from agentflow.tasks.alfworld import archive
from agentflow.tasks.alfworld.archive import Limits, games_folder
from agentflow.tasks.alfworld.games import list_games
from tests.fake_world import write_game

GAME = "json_2.1.1/valid_seen/task-1/trial_1/game.tw-pddl"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "alfworld"


def tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:xz") -> Path:
    with tarfile.open(path, mode) as out:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                out.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                out.addfile(info, io.BytesIO(member[1]))
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w:xz", "w:gz", "w:bz2", "w"])
def test_an_archive_becomes_a_folder_of_games(tmp_path: Path, mode: str) -> None:
    source = tmp_path / "source"
    write_game(source, "valid_seen/task-1/trial_1")
    write_game(source, "valid_train/task-2/trial_1")
    (source / "notes.txt").write_text("not a game")
    packed = tmp_path / "games.tar"
    with tarfile.open(packed, mode) as out:
        out.add(source, arcname=".")
    folder = games_folder(packed)
    assert [game.id for game in list_games(folder)] == ["valid_seen/task-1/trial_1", "valid_train/task-2/trial_1"]
    assert not (folder / "notes.txt").exists()


def test_a_folder_is_used_where_it_is(tmp_path: Path, cache: Path) -> None:
    assert games_folder(tmp_path) == tmp_path
    assert not cache.exists()


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tar(tmp_path / "a.tar.xz", (GAME, b"{}"))
    first = games_folder(packed)
    monkeypatch.setattr(archive, "_unpack", lambda *_: pytest.fail("unpacked again"))
    assert games_folder(packed) == first
    moved = packed.rename(tmp_path / "another name")
    assert games_folder(moved) == first


def test_threads_that_want_the_same_archive_share_one_unpacking(tmp_path: Path, cache: Path) -> None:
    packed = tar(tmp_path / "a.tar.xz", *((f"valid_seen/t/trial_{n}/game.tw-pddl", b"{}") for n in range(50)))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(games_folder(packed))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(list(found[0].glob("valid_seen/t/*/game.tw-pddl"))) == 50
    assert [path for path in cache.iterdir() if path.is_dir()] == [found[0]]


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", b"x"),
        ("json_2.1.1/../../outside", b"x"),
        ("/tmp/outside", b"x"),
        ("C:\\outside", b"x"),
        ("a\\..\\b", b"x"),
        link("json_2.1.1/valid_seen", "/tmp"),
        link(GAME, "../../../../../etc/passwd"),
        link(GAME, "json_2.1.1/other", tarfile.LNKTYPE),
        link("device", "", tarfile.CHRTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name if isinstance(member, tarfile.TarInfo) else member[0],
)
def test_an_archive_that_reaches_elsewhere_is_refused_whole(
    tmp_path: Path, cache: Path, member: tuple[str, bytes] | tarfile.TarInfo
) -> None:
    packed = tar(tmp_path / "bad.tar.xz", ("valid_seen/a/b/game.tw-pddl", b"{}"), member)
    with pytest.raises(DataError, match=r"leaves its folder|neither a plain file nor a folder"):
        games_folder(packed)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(file_bytes=1000), "larger than 1,000 bytes"),
        (Limits(total_bytes=5000), "more than 5,000 bytes once unpacked"),
        (Limits(entries=1), "more than 1 entries"),
    ],
)
def test_what_is_too_large_is_refused(tmp_path: Path, cache: Path, limits: Limits, message: str) -> None:
    packed = tar(tmp_path / "big.tar.xz", *((f"valid_seen/t{n}/r/game.tw-pddl", b"x" * 4000) for n in range(3)))
    with pytest.raises(DataError, match=message):
        games_folder(packed, limits=limits)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_header_that_claims_gigabytes_allocates_none(tmp_path: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 8 * 1024**3
    packed = tmp_path / "claim.tar.gz"
    with gzip.open(packed, "wb") as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096)
    with pytest.raises(DataError, match=r"too large|unexpected end"):
        games_folder(packed)


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle : middle + 8]) + content[middle + 8 :]


@pytest.mark.parametrize(
    "damage", [_cut, _flipped, lambda _: b"", lambda _: b"hello", lambda _: lzma.compress(b"hi" * 600)]
)
def test_a_damaged_archive_is_named(tmp_path: Path, cache: Path, damage: Callable[[bytes], bytes]) -> None:
    packed = tar(tmp_path / "games.tar.xz", (GAME, bytes(range(256)) * 40))
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(DataError, match=r"games\.tar\.xz: The archive") as caught:
        games_folder(packed)
    assert caught.value.fix
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_an_archive_without_games_and_a_missing_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no games"):
        games_folder(tar(tmp_path / "other.tar", ("readme.txt", b"x"), mode="w"))
    with pytest.raises(DataError, match="no such file or folder"):
        games_folder(tmp_path / "nowhere.tar.xz")
