"""Archives of runs as somebody else may have made or changed them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

Files = dict[str, bytes]


def read(archive: Path) -> Files:
    """Return the files of an archive by name, the manifest first."""
    with tarfile.open(archive, "r:gz") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def write(archive: Path, files: Files, *more: tarfile.TarInfo) -> Path:
    """Write an archive of these files, and of members without content."""
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in files.items():
            one = tarfile.TarInfo(name)
            one.size = len(data)
            tar.addfile(one, io.BytesIO(data))
        for one in more:
            tar.addfile(one)
    return archive


def with_hashes(files: Files) -> Files:
    """Return the files with the sizes and hashes of a manifest that agree with them."""
    manifest = json.loads(files["manifest.json"])
    for run in manifest["runs"]:
        for file in run["files"]:
            data = files[f"{run['id']}/{file['path']}"]
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {**files, "manifest.json": json.dumps(manifest).encode()}


def changed(archive: Path, to: Path, name: str, change: Callable[[bytes], bytes], *, hashes: bool = False) -> Path:
    """Write an archive again with one file changed: the one whose name ends so; with `hashes` its manifest agrees."""
    files = read(archive)
    (whole,) = [one for one in files if one.endswith(name)]
    new = change(files[whole])
    assert new != files[whole], "nothing was changed"
    files[whole] = new
    return write(to, with_hashes(files) if hashes else files)


def small(run: str = "20260102T030405-a-000001", first_id: str = "", **more: object) -> Files:
    """Return the files of an archive of one run, its manifest with other fields on request."""
    record = json.dumps({"id": run, "status": "SUCCESS", "version": 2, "card": "a"}).encode()
    one = {"path": "record.json", "bytes": len(record), "sha256": hashlib.sha256(record).hexdigest()}
    packed = {"id": run, "first_id": first_id, "card": "a", "status": "SUCCESS", "files": [one]}
    manifest = {"format": 1, "madlite": "0.1.0", "runs": [packed], **more}
    return {"manifest.json": json.dumps(manifest).encode(), f"{run}/record.json": record}


def zeros(archive: Path, name: str, size: int) -> Path:
    """Write an archive whose only member claims and has that many bytes, all 0."""
    one = tarfile.TarInfo(name)
    one.size = size
    with gzip.open(archive, "wb") as file:
        file.write(one.tobuf())
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return archive
