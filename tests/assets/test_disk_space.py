"""Room is asked for before anything is fetched, with what is left to fetch and a margin."""

from __future__ import annotations

import os

from madlite.assets.paths import Demand, find_full_disks
from madlite.text import size_text


def test_what_does_not_fit_is_told_with_folder_bytes_and_a_way_out(tmp_path):
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    ((message, hint),) = find_full_disks([Demand(folder=tmp_path / "not/there", bytes=2 * free, way="HF_HOME=…")])
    assert str(tmp_path / "not/there") in message and hint == "HF_HOME=…"
    assert "bytes) are needed" in message and "bytes) are free" in message


def test_folders_of_one_disk_share_its_room_and_a_margin_stays_free(tmp_path):
    disk = os.statvfs(tmp_path)
    half = disk.f_bavail * disk.f_frsize * 6 // 10
    one, other = (Demand(folder=tmp_path / name, bytes=half, way=name) for name in ("one", "other"))
    assert find_full_disks([one]) == []
    ((message, hint),) = find_full_disks([one, other])
    assert f"{tmp_path}/one and {tmp_path}/other" in message and hint == "one; other"
    # nothing to fetch needs no room
    assert find_full_disks([Demand(folder=tmp_path, bytes=0)]) == []
    disk = os.statvfs(tmp_path)
    assert find_full_disks([Demand(folder=tmp_path, bytes=disk.f_bavail * disk.f_frsize - 1000)]) != []


def test_sizes_are_said_as_people_say_them():
    assert [size_text(n) for n in (0, 1023, 1024, 99 << 10, 320 << 20, 15 << 30, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "99.0 KiB",
        "320 MiB",
        "15.0 GiB",
        "3.0 TiB",
    ]
