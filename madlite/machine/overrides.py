"""What a context or an option says about the machine, instead of what is found on it or to correct that.

A machine that is not here is described by the overrides and the table of products; what they leave open is as on most
such machines, so that a dry run shows every variable and device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, islice

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.machine.products import find_product, short_name
from madlite.machine.sources.base import DetectedGpus, GpuFacts, SourceReport, gfx_name, parse_int
from madlite.machine.sources.kfd import Topology
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
VERSIONS = ("rocm_version", "cuda_version")
WHAT = ("device", "product", "arch")  # the fields that state which GPU, the surest first

ROCM, CUDA = "7.0.0", "12.8"  # the first that know every product of the table
OF_VENDOR = {"AMD": ("render_minor", "rocm_version"), "NVIDIA": ("cuda_version",)}
FIRST_RENDER = 128  # Linux, drivers/gpu/drm/drm_drv.c
RESERVED = {"gfx942": 8, "gfx950": 8}  # render nodes a GPU takes: one for each partition it can be divided into

Override = Scalar | Sequence[int]


class Overrides(Value, frozen=True):
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


def read_overrides(given: Mapping[str, Override]) -> Overrides:
    """Return the overrides that detection knows; other keys are someone else's.

    Raises:
        UsageProblem: a value that cannot be meant.
    """
    set_by = {field: key for field, keys in KEYS.items() for key in reversed(keys) if given.get(key) not in (None, "")}
    values = {field: given[key] for field, key in set_by.items()}
    texts = {
        field: str(values.get(field, "")).strip() for field in KEYS if field not in ("vendor", "n_gpus", "renders")
    }
    texts["arch"] = gfx_name(texts["arch"].lower()) or texts["arch"]
    return Overrides(
        vendor=_vendor(values["vendor"]) if "vendor" in values else _implied(texts),
        n_gpus=_count(values.get("n_gpus", -1), set_by.get("n_gpus", "")),
        renders=_renders(values.get("renders", ())),
        keys=set_by,
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
    named = next(filter(None, (find_product(texts[field]) for field in WHAT)), None)
    return named.vendor if named else None


def _count(value: Override, key: str) -> int | None:
    """Return the GPU count; -1 is MAD's word for all that are there."""
    number = parse_int(value)
    if number is None or number < -1 or number == 0:
        raise UsageProblem(
            f"{key} {value!r} is no count of GPUs", 'a run without GPU: --additional-context \'{"gpu_vendor": "CPU"}\''
        )
    return None if number == -1 else number


def _renders(value: Override) -> tuple[int, ...]:
    listed = [value] if isinstance(value, str | int | float) else list(value)
    numbers = tuple(number for one in listed if (number := parse_int(one)) is not None and number >= 0)
    if len(numbers) != len(listed):
        raise UsageProblem(f"gpu_renderDs {value!r} is no list of render node numbers", "for example [128, 129]")
    return numbers


def is_this_machine(overrides: Overrides, topology: Topology) -> bool:
    """Return whether the AMD machine described is this one; then its own render nodes and order of GPUs matter."""
    wanted = _describe_one(overrides)
    device = short_name(wanted, "AMD")
    here = [short_name(gpu, "AMD") for gpu in topology.gpus if gpu.arch == wanted.arch]
    alike = [name for name in here if wanted.arch in (name, device) or name == device]
    return overrides.vendor == "AMD" and len(alike) >= (overrides.n_gpus or 1)


def describe_gpus(overrides: Overrides) -> DetectedGpus:
    """Return the GPUs that the overrides describe.

    Raises:
        UsageProblem: no architecture is known for the product requested.
    """
    one, vendor = _describe_one(overrides), overrides.vendor
    if vendor is None or not one.arch:
        raise UsageProblem(
            f"no architecture is known for {overrides.device or overrides.product}",
            'name it: --additional-context \'{"gpu_arch": "gfx942"}\'',
        )
    by = {field: overrides.origin(field) for field in WHAT if field in overrides.keys}
    usual = f"usual for {overrides.device or overrides.product or overrides.arch}"
    origins = {**dict.fromkeys(("memory_bytes", "arch", "product"), next(iter(by.values()))), **by}
    apart = RESERVED.get(one.arch, 1)
    return DetectedGpus(
        vendor=vendor,
        gpus=tuple(
            replace(one, index=n, render_minor=FIRST_RENDER + n * apart if vendor == "AMD" else None)
            for n in range(overrides.n_gpus or 0)
        ),
        rocm_version=ROCM if vendor == "AMD" else "",
        cuda_version=CUDA if vendor == "NVIDIA" else "",
        origins={**dict.fromkeys(OF_VENDOR[vendor], usual), **origins, "gpus": overrides.origin("n_gpus")},
        pretended=True,
    )


def _describe_one(overrides: Overrides) -> GpuFacts:
    """Return one GPU as requested; NVIDIA's architecture is its product name."""
    known = next(filter(None, (find_product(getattr(overrides, field)) for field in WHAT)), None)
    name = overrides.product or (known.name if known else "")
    if overrides.vendor == "NVIDIA":
        name = name or overrides.arch or overrides.device
    arch = overrides.arch or (known.arch if known else "")
    return GpuFacts(
        index=0,
        arch=name if overrides.vendor == "NVIDIA" else arch,
        product=name,
        memory_bytes=known.memory_mib << 20 if known else None,
    )


def overlay(found: DetectedGpus, overrides: Overrides) -> DetectedGpus:
    """Return the GPUs as the overrides have them; versions and render nodes apply to a described machine too.

    Raises:
        UsageProblem: fewer render nodes are named than there are GPUs.
    """
    if not found.gpus:
        return found
    # render nodes can choose among the GPUs that are here, not add to them
    wanted = overrides.n_gpus or min(len(overrides.renders), len(found.gpus)) or len(found.gpus)
    gpus = _with_renders(_counted(found.gpus, wanted), overrides.renders)
    # NVIDIA's architecture follows the product
    arch = overrides.arch or (overrides.product if found.vendor == "NVIDIA" else "")
    kind = {field: text for field, text in (("arch", arch), ("product", overrides.product)) if text}
    versions = {field: getattr(overrides, field) for field in VERSIONS if getattr(overrides, field)}
    given = {field: field if field in overrides.keys else "product" for field in (*versions, *kind)}
    given |= {"gpus": "n_gpus"} if overrides.n_gpus else {}
    given |= {"render_minor": "renders"} if overrides.renders else {}
    return replace(
        found,
        gpus=tuple(replace(gpu, **kind) for gpu in gpus),
        origins=found.origins | {fact: overrides.origin(field) for fact, field in given.items()},
        reports=(*found.reports, *_warnings(len(found.gpus), overrides)),
        pretended=found.pretended or len(gpus) > len(found.gpus) or _differs(found, overrides),
        **versions,
    )


def _differs(found: DetectedGpus, overrides: Overrides) -> bool:
    """Return whether the overrides name another GPU than the one found: what no source reported may be filled in."""
    here, wanted = found.gpus[0], _describe_one(replace(overrides, vendor=found.vendor))
    if found.vendor == "AMD" and wanted.arch and here.arch and wanted.arch != here.arch:
        return True
    name = short_name(wanted, found.vendor) if wanted.product else overrides.device
    unnamed = found.vendor == "AMD" and name == wanted.arch  # a text that holds no product's name
    return bool(name and here.product and not unnamed) and name.lower() != short_name(here, found.vendor).lower()


def _counted(gpus: tuple[GpuFacts, ...], wanted: int) -> tuple[GpuFacts, ...]:
    """Return as many GPUs as wanted; those that are not here are like the first, without its address."""
    like = replace(gpus[0], node_id=None, render_minor=None, unique_id="", bus="")
    free = (number for number in count() if number not in {gpu.index for gpu in gpus})
    return (*gpus[:wanted], *(replace(like, index=n) for n in islice(free, max(0, wanted - len(gpus)))))


def _with_renders(gpus: tuple[GpuFacts, ...], renders: tuple[int, ...]) -> tuple[GpuFacts, ...]:
    if not renders:
        return gpus
    if len(renders) < len(gpus):
        raise UsageProblem(f"gpu_renderDs names {len(renders)} render nodes for {len(gpus)} GPUs", "name one per GPU")
    return tuple(replace(gpu, render_minor=minor) for gpu, minor in zip(gpus, renders, strict=False))


def _warnings(here: int, overrides: Overrides) -> list[SourceReport]:
    counts = {"n_gpus": overrides.n_gpus or 0, "renders": len(overrides.renders)}
    return [
        SourceReport(name=overrides.keys[field], problem=f"{wanted} asked for, {here} are here")
        for field, wanted in counts.items()
        if wanted > here
    ]
