"""What detection of one vendor came to."""

from __future__ import annotations

from madlite.machine.facts import Seen, Source
from madlite.model import Value, Vendor


class Found(Value, frozen=True):
    """GPUs of one vendor, in the order of their ids; `asked` are the sources with what each said.

    `origins` names where a fact of the GPUs (`arch`, `product`, …) or of the machine came from.
    """

    vendor: Vendor
    gpus: tuple[Seen, ...] = ()
    driver_version: str = ""
    rocm_version: str = ""
    cuda_version: str = ""
    origins: dict[str, str] = {}
    asked: tuple[Source, ...] = ()
    pretended: bool = False  # more, or others, than are here
