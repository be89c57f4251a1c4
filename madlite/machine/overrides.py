"""What a context or an option says about the machine instead of what is found on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from madlite.errors import UsageProblem
from madlite.machine.facts import gfx_name, whole
from madlite.machine.products import find_product
from madlite.model import Scalar, Value, Vendor

KEYS = {
    "vendor": ("gpu_vendor",),
    "arch": ("gpu_arch", "MAD_SYSTEM_GPU_ARCHITECTURE"),
    "product": ("gpu_product", "MAD_SYSTEM_GPU_PRODUCT_NAME"),
    "device": ("device",),
    "n_gpus": ("n_gpus",),
    "renders": ("gpu_renderDs",),
    "rocm_version": ("rocm_version",),
    "cuda_version": ("cuda_version",),
    "rocm_path": ("MAD_ROCM_PATH",),
    "numa_balancing": ("numa_balancing",),
}
VENDORS: tuple[Vendor, ...] = ("AMD", "NVIDIA", "CPU")
Override = Scalar | Sequence[int]


class Asked(Value, frozen=True):
    """The overrides, checked; `keys` names for each field the key that set it.

    `vendor` is also set where the architecture or the product can only be one vendor's.
    """

    vendor: Vendor | None = None
    arch: str = ""
    product: str = ""
    device: str = ""
    n_gpus: int | None = None
    renders: tuple[int, ...] = ()
    rocm_version: str = ""
    cuda_version: str = ""
    rocm_path: str = ""
    numa_balancing: str = ""
    keys: dict[str, str] = {}

    @property
    def describes_a_machine(self) -> bool:
        """Whether this is enough to plan for a machine that is not here."""
        return bool(self.vendor and (self.arch or self.product or self.device) and self.n_gpus)

    def origin(self, field: str) -> str:
        """Return where a field came from, for Machine.sources."""
        return f"override {self.keys[field]}"


def read_overrides(overrides: Mapping[str, Override]) -> Asked:
    """Return the overrides that detection knows; other keys are someone else's.

    Raises:
        UsageProblem: a value that cannot be meant.
    """
    given = {
        field: key for field, keys in KEYS.items() for key in reversed(keys) if overrides.get(key) not in (None, "")
    }
    values = {field: overrides[key] for field, key in given.items()}
    texts = {
        field: str(values.get(field, "")).strip() for field in KEYS if field not in ("vendor", "n_gpus", "renders")
    }
    texts["arch"] = gfx_name(texts["arch"].lower()) or texts["arch"]
    return Asked(
        vendor=_vendor(values["vendor"]) if "vendor" in values else _implied(texts),
        n_gpus=_count(values.get("n_gpus", -1), given.get("n_gpus", "")),
        renders=_renders(values.get("renders", ())),
        keys=given,
        **texts,
    )


def _vendor(value: Override) -> Vendor:
    for vendor in VENDORS:
        if str(value).strip().upper() == vendor:
            return vendor
    raise UsageProblem(f"gpu_vendor {value!r} is none of AMD, NVIDIA, CPU")


def _implied(texts: Mapping[str, str]) -> Vendor | None:
    if texts["arch"].startswith("gfx"):
        return "AMD"
    named = next(filter(None, (find_product(texts[field]) for field in ("device", "product", "arch"))), None)
    return named.vendor if named else None


def _count(value: Override, key: str) -> int | None:
    """Return the GPU count; -1 is MAD's word for all that are there."""
    number = whole(value)
    if number is None or number < -1 or number == 0:
        raise UsageProblem(
            f"{key} {value!r} is no count of GPUs", 'a run without GPU: --additional-context \'{"gpu_vendor": "CPU"}\''
        )
    return None if number == -1 else number


def _renders(value: Override) -> tuple[int, ...]:
    listed = [value] if isinstance(value, str | int | float) else list(value)
    numbers = tuple(number for one in listed if (number := whole(one)) is not None and number >= 0)
    if len(numbers) != len(listed):
        raise UsageProblem(f"gpu_renderDs {value!r} is no list of render node numbers", "for example [128, 129]")
    return numbers
