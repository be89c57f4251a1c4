"""Fetch a repository's files into the hub's cache.

huggingface_hub lays the cache out, and so every tool finds the files there; the bytes are streamed here, because since
1.20 it begins a file anew that was cut off, and a model's files are gigabytes.  A partial file has the name that older
versions go on from.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError

from madlite.assets.client import hub_client, named
from madlite.assets.digest import Digest, is_sound
from madlite.assets.download import Tell, download
from madlite.assets.hub import Access, Head, Listing, file_url, head
from madlite.assets.hub_words import Refused, get_refusal, is_lost, refusal
from madlite.assets.locks import Stopped, held
from madlite.assets.parts import Part, check_folder, check_way, open_own
from madlite.assets.presence import are_complete, find_snapshot, known_commit, size_of
from madlite.assets.records import MAIN, Record, is_dataset, repo_folder, save_hub_record
from madlite.assets.tries import patiently, status_of
from madlite.assets.web import Source
from madlite.cancellation import check
from madlite.errors import MadliteError, RuntimeProblem
from madlite.model import Asset, Cause, Say
from madlite.safe_files import Folder

WORKERS = 8  # files at a time, as huggingface_hub has it
LARGEST = 50 * 10**9  # bytes: what is larger the hub gives to its own client alone
_NAME = re.compile(r"[A-Za-z0-9._-]{8,128}")
_POLL_S = 0.1
_LEAVE_S = 1.0  # for the workers, once the command is being ended


def missing_bytes(asset: Asset, listing: Listing, cache: Path) -> int:
    """Return how much of a repository is still to be fetched; what an earlier try brought is not."""
    folder = repo_folder(asset, cache)
    total = 0
    for name, size in listing.files.items():
        blob = listing.blobs.get(name, "")
        places = [
            folder / "snapshots" / listing.commit / name,
            *([folder / "blobs" / blob] if _NAME.fullmatch(blob) else []),
        ]
        if not any(size_of(place) == size for place in places):
            part = size_of(folder / "blobs" / f"{blob}.incomplete") if _NAME.fullmatch(blob) else 0
            total += size - (part if 0 < part < size else 0)
    return total


class HubFetch:
    """One repository on its way; `say` hears what is worth a line, `tell` of bytes.

    With `verify` what is here is read again, and fetched again where its bytes are not those that the hub names.
    """

    def __init__(
        self,
        asset: Asset,
        cache: Path,
        data: Path,
        access: Access,
        environ: Mapping[str, str],
        say: Say,
        tell: Tell,
        verify: bool = False,
    ) -> None:
        self._asset, self._cache, self._data, self._access, self._environ = asset, cache, data, access, environ
        self._say, self._tell = say, tell
        self._folder, self._verify, self._links = repo_folder(asset, cache), verify, True
        self._stop = threading.Event()

    def run(self, listing: Listing) -> Path:
        """Have all of a listing's files in the cache, note that they are, and return their folder.

        Raises:
            RuntimeProblem: one of them cannot be had; what came stays.
        """
        snapshot = self._folder / "snapshots" / listing.commit
        if (
            self._verify
            or not are_complete(snapshot, listing.files)
            or known_commit(self._asset, self._folder) != listing.commit
        ):
            self._home = self._open()
            self._links = self._can_link()
            self._each(listing)
        record = Record(
            ref=self._asset.ref,
            files=listing.files,
            patterns=tuple(sorted(self._asset.files)),
            revision=self._asset.revision or MAIN,
            commit=listing.commit,
        )
        self._note(record)
        found = find_snapshot(self._asset, self._cache, self._data)
        if found is None:
            raise RuntimeProblem(
                f"{self._asset.ref} changed on the hub while it was fetched", "try again", cause=Cause.PREPARE
            )
        return found

    def _open(self) -> Folder:
        """Open the repository's folder of the cache; for as long as a thread may write in it."""
        try:
            return open_own(self._cache, self._folder.name)
        except OSError as error:
            what = f"{self._asset.ref} cannot be written: {error.filename or self._cache}: {error.strerror}"
            raise RuntimeProblem(what, cause=Cause.DISK) from error

    def _can_link(self) -> bool:
        """Say whether the cache's disk has symbolic links; where it has none a file lies under its name alone."""
        from huggingface_hub.file_download import are_symlinks_supported

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return are_symlinks_supported(self._cache)
        except OSError as error:
            what = f"{self._asset.ref} cannot be written: {error.filename or self._cache}: {error.strerror}"
            raise RuntimeProblem(what, cause=Cause.DISK) from error

    def _note(self, record: Record) -> None:
        try:
            save_hub_record(self._asset, self._cache, self._data, record)
        except OSError as error:
            what = f"what was fetched cannot be noted: {error.filename}: {error.strerror}"
            raise RuntimeProblem(what, cause=Cause.DISK) from error

    def _each(self, listing: Listing) -> None:
        """Work on files side by side; the first problem ends it, and so does a stop."""
        waiting: deque[str] = deque(listing.files)
        problems: list[Exception] = []
        threads = [
            threading.Thread(target=self._pull, args=(waiting, listing, problems), daemon=True)
            for _ in range(min(WORKERS, len(waiting)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_S)
                    check()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(_LEAVE_S)
        if problems:
            raise problems[0]

    def _pull(self, waiting: deque[str], listing: Listing, problems: list[Exception]) -> None:
        while not self._stop.is_set():
            try:
                self._one(waiting.popleft(), listing)
            except (IndexError, Stopped):
                return
            except Exception as error:  # noqa: BLE001 - raised again by who waits
                problems.append(error)
                self._stop.set()

    def _one(self, name: str, listing: Listing) -> None:
        """Have one file: its bytes first, then the cache's names for it."""
        try:
            found = head(self._asset, name, listing.commit, self._access, self._stop, is_lost)
            self._bring(name, self._source(name, found), found)
            self._check_layout(name, found)
            patiently(lambda: self._lay_out(name), self._stop, is_lost)
        except Stopped:
            raise
        except MadliteError as problem:
            if why := self._refused(problem):
                raise why from problem
            raise
        except OSError as error:
            if status_of(error) is None and error.filename:
                what = f"{name} of {self._asset.ref} cannot be written: {error.filename}: {error.strerror}"
                raise RuntimeProblem(what, cause=Cause.DISK) from error
            raise self._failed(error) from error
        except Exception as error:  # each version of huggingface_hub has its own HTTP library's errors
            raise self._failed(error) from error

    def _refused(self, problem: MadliteError) -> RuntimeProblem | None:
        """Return what the hub itself refused of a download in the words of a question; None for what else ended it."""
        answer = problem.__cause__
        if not isinstance(answer, HTTPError):
            return None
        why = get_refusal(self._asset, self._access.endpoint, self._access.token, answer)
        return self._kept(why) if why else None

    def _failed(self, error: Exception) -> RuntimeProblem:
        return self._kept(refusal(self._asset, self._access.endpoint, self._access.token, error))

    def _kept(self, why: Refused) -> RuntimeProblem:
        hint = "; ".join(filter(None, (why.hint, "what came so far is kept")))
        return RuntimeProblem(why.message, hint, cause=Cause.PREPARE)

    def _source(self, name: str, found: Head) -> Source:
        token = self._access.token
        return Source(
            url=file_url(self._asset, name, found.commit, self._access),
            size=found.size if found.size >= 0 else None,
            headers={"Authorization": f"Bearer {token.value.reveal()}"} if token else {},
        )

    def _bring(self, name: str, source: Source, found: Head) -> None:
        """Stream a file's bytes to where the cache keeps them."""
        etag, size = found.etag, source.size
        if not _NAME.fullmatch(etag) or size is None or size > LARGEST:
            return
        blob, under = f"blobs/{etag}", f"snapshots/{found.commit}/{name}"
        lock = f".locks/{self._folder.name}/{etag}.lock"
        waiting = f"waiting for another command that fetches {name}"
        with held(self._cache, lock, self._stop, lambda: self._say(waiting)):
            if self._has(name, etag, size, (blob, under)):
                return
            part, digest = Part(self._home, f"{blob}.incomplete"), Digest(etag, size)
            part.settle()
            resumed = part.size() > 0
            download(source, part, self._environ, self._tell, self._stop, digest)
            digest.follow(part, size, self._stop)
            if not digest.fits():
                part.remove()
                raise self._wrong(name, resumed)
            part.become(blob if self._links else under)

    def _has(self, name: str, etag: str, size: int, places: tuple[str, str]) -> bool:
        """Say whether a file is here as a blob or under its name; what is damaged of it is taken away."""
        for below in places:
            place = self._folder / below
            if size_of(place) == size:
                if not self._verify or is_sound(place, etag, size, self._stop):
                    return True
                self._say(f"{name} of {self._asset.ref} is damaged: it is fetched again")
                Part(self._home, below).remove()
            elif place.exists() and not place.is_symlink():
                Part(self._home, below).remove()
        return False

    def _check_layout(self, name: str, found: Head) -> None:
        """Check that huggingface_hub, which writes by paths, writes in the cache alone.

        Raises:
            OSError: a link is in its way.
        """
        pointer = PurePosixPath("snapshots", found.commit, name)
        for folder in ("blobs", "refs", *(str(place) for place in (*pointer.parents,) if place.name)):
            check_folder(self._home, folder)
        check_way(self._home, f"refs/{self._asset.revision or MAIN}")
        check_way(self._home, f"trees/{found.commit}.json")
        if _NAME.fullmatch(found.etag):
            check_way(self._home, f"blobs/{found.etag}.incomplete")
        with Folder.open(self._cache) as cache:
            check_folder(cache, f".locks/{self._folder.name}")
            check_way(cache, "CACHEDIR.TAG")

    def _wrong(self, name: str, resumed: bool) -> RuntimeProblem:
        if resumed:
            what = f"{name} of {self._asset.ref} is not what the hub has: an earlier try left a bad beginning"
            return RuntimeProblem(what, "try again: it is fetched anew", cause=Cause.PREPARE)
        what = f"{name} of {self._asset.ref} came damaged: its bytes are not those that {self._access.endpoint} names"
        hint = "try again; if it stays so, the mirror or a proxy on the way changes what it passes on"
        return RuntimeProblem(what, hint, cause=Cause.PREPARE)

    def _lay_out(self, name: str) -> None:
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        hub_client().hf_hub_download(
            self._asset.ref,
            name,
            repo_type="dataset" if is_dataset(self._asset) else "model",
            revision=self._asset.revision or None,
            cache_dir=os.fspath(self._cache),
            token=self._access.word,
            endpoint=self._access.endpoint,
            **named(),
        )
