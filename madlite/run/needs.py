"""What runs need from elsewhere, one thing each, and how it is had where it is not here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from madlite.assets.hub import Access, Listing
from madlite.assets.places import CACHES, DATA
from madlite.assets.records import repo_folder
from madlite.assets.room import Demand, find_shut, find_tight
from madlite.assets.web import Source
from madlite.errors import CheckFailed
from madlite.model import Asset, Value
from madlite.run.screen import Planned

State = Literal["here", "to fetch", "partly here", "to check", "to build", "to make", "by each run", "unknown"]


class HubJob(Value, frozen=True):
    """Files of a repository to be fetched into the hub's cache; `verify` reads also what is there."""

    asset: Asset
    listing: Listing
    cache: Path
    access: Access
    verify: bool = False


class UrlJob(Value, frozen=True):
    """A file of the web to be fetched."""

    asset: Asset
    source: Source


class MadeJob(Value, frozen=True):
    """A data set that a run's own preparation makes."""

    asset: Asset


class ImageJob(Value, frozen=True):
    """A run's image to be built or pulled."""


class Need(Value, frozen=True):
    """One thing that runs need; sizes in bytes, None where nobody knows, `missing` what is still to come.

    `one` is the first run that needs it, `place` where it lies or will lie, `job` how it is had where it is not here.
    """

    what: str
    source: str
    state: State
    place: str
    one: Planned
    size: int | None = None
    missing: int = 0
    job: HubJob | UrlJob | MadeJob | ImageJob | None = None
    note: str = ""


class Survey(Value, frozen=True):
    """Everything that runs need, in the order in which it is fetched, and what is refused of it."""

    needs: tuple[Need, ...]
    refused: tuple[tuple[str, str], ...]
    access: Access
    data: Path

    @property
    def by_runs(self) -> tuple[str, ...]:
        """Return what each run fetches for itself, whatever is prepared."""
        return tuple(need.what for need in self.needs if need.state == "by each run")

    def check(self) -> None:
        """Refuse to fetch anything where something of it cannot be had, or cannot be put where it belongs.

        Raises:
            CheckFailed: all that is wrong.
        """
        demands = tuple(self._demands())
        if wrong := self.refused or (*find_shut(demands), *find_tight(demands)):
            raise CheckFailed.of_all(wrong)

    def _demands(self) -> Iterator[Demand]:
        for need in self.needs:
            if isinstance(need.job, HubJob):
                folder, own = need.job.cache, repo_folder(need.job.asset, need.job.cache) / "blobs"
                way = f"another folder: HF_HOME=… or {CACHES[0]}=…"
                yield Demand(folder=folder, bytes=need.missing, way=way, within=own)
            elif isinstance(need.job, UrlJob):
                yield Demand(folder=self.data, bytes=need.missing, way=f"another folder for data: {DATA}=…")
            elif isinstance(need.job, MadeJob):  # nobody knows how much it will be
                yield Demand(folder=self.data, bytes=0, way=f"another folder for data: {DATA}=…", writes=True)
