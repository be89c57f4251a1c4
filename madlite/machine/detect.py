"""From overrides and the GPUs that are found to one Machine, each fact with its origin.

Whether a GPU is here at all is read from files, so that a broken tool never turns a GPU machine into a CPU one. PCI
classes: 0x03 display (0x0300 VGA, 0x0302 3D, 0x0380 other), 0x12 processing accelerator.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.errors import CheckFailed, UsageProblem
from madlite.machine.host import Host, find_tool, is_balancing, list_folder, read_file, rocm_roots, run_tool
from madlite.machine.products import INSTINCT_IDS, complete, find_product, is_instinct, is_vendor, short_name
from madlite.machine.sources.amd_smi import read_amd_smi
from madlite.machine.sources.amdgpu import Topology, read_topology
from madlite.machine.sources.base import DetectedGpus, GpuFacts, SourceReport, gfx_name, parse_int
from madlite.machine.sources.nvidia_smi import read_nvidia_smi
from madlite.machine.sources.nvml import read_nvml
from madlite.machine.sources.rocm_smi import read_rocm_smi
from madlite.model import Gpu, Machine, Problem, Scalar, Value, Vendor

# What a context or an option says about the machine, instead of what is found on it or to correct that.
#
# A machine that is not here is described by the overrides and the table of products; what they leave open is as on most
# such machines, so that a dry run shows every variable and device.

OVERRIDE_KEYS = {
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
OVERRIDE_VENDORS: tuple[Vendor, ...] = ("AMD", "NVIDIA", "CPU")
VERSIONS = ("rocm_version", "cuda_version")
WHAT = ("device", "product", "arch")  # the fields that state which GPU, the surest first

DEFAULT_ROCM, CUDA = "7.0.0", "12.8"  # the first that know every product of the table
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
    set_by = {
        field: key
        for field, keys in OVERRIDE_KEYS.items()
        for key in reversed(keys)
        if given.get(key) not in (None, "")
    }
    values = {field: given[key] for field, key in set_by.items()}
    texts = {
        field: str(values.get(field, "")).strip()
        for field in OVERRIDE_KEYS
        if field not in ("vendor", "n_gpus", "renders")
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
    for vendor in OVERRIDE_VENDORS:
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
    numbers = tuple(number for item in listed if (number := parse_int(item)) is not None and number >= 0)
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
    gpu, vendor = _describe_one(overrides), overrides.vendor
    if vendor is None or not (gpu.arch or is_vendor(overrides.device)):
        raise UsageProblem(
            f"no architecture is known for {overrides.device or overrides.product}",
            'name it: --additional-context \'{"gpu_arch": "gfx942"}\'',
        )
    by = {field: overrides.origin(field) for field in WHAT if field in overrides.keys}
    usual = f"usual for {overrides.device or overrides.product or overrides.arch}"
    origins = {**dict.fromkeys(("memory_bytes", "arch", "product"), next(iter(by.values()))), **by}
    apart = RESERVED.get(gpu.arch, 1)
    return DetectedGpus(
        vendor=vendor,
        gpus=tuple(
            replace(gpu, index=n, render_minor=FIRST_RENDER + n * apart if vendor == "AMD" else None)
            for n in range(overrides.n_gpus or 0)
        ),
        rocm_version=DEFAULT_ROCM if vendor == "AMD" else "",
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
        reports=(*found.reports, *_override_warnings(len(found.gpus), overrides)),
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


def _override_warnings(here: int, overrides: Overrides) -> list[SourceReport]:
    counts = {"n_gpus": overrides.n_gpus or 0, "renders": len(overrides.renders)}
    return [
        SourceReport(name=overrides.keys[field], problem=f"{wanted} asked for, {here} are here")
        for field, wanted in counts.items()
        if wanted > here
    ]


# Detect AMD GPUs: KFD for count, architecture and render nodes, the tools for names, versions and their order.

AMD_FACTS = tuple(name for name in GpuFacts.__struct_fields__ if name != "index")

KEYS = ("node_id", "bus", "unique_id")  # what names a GPU, surest first; partitions share a unique id
FILLED_IN = {"arch": "table of products", "product": "table of products", "render_minor": "/sys/bus/pci/devices"}

# `.info/version` below a ROCm root holds one line, X.Y.Z-BUILD, and so do its siblings `.info/version-*`
VERSION = re.compile(r"^\d+(?:\.\d+)+")
ROCM = re.compile(r"ROCm version:\s*(\d+(?:\.\d+)+)", re.IGNORECASE)
HIP = re.compile(r"^(\d+\.\d+)", re.MULTILINE)
DRIVER = "sys/module/amdgpu/version"  # of a driver that was installed apart from the kernel
RENDER = re.compile(r"renderD(\d{1,6})")


def detect_amd(host: Host, topology: Topology) -> DetectedGpus:
    """Return what KFD and the tools report together; without GPUs where none of them lists one."""
    tools = [read_amd_smi(host)]
    if not any(gpu.product for gpu in tools[0].gpus):
        tools.append(read_rocm_smi(host))
    kfd = SourceReport(name="KFD", gpus=topology.gpus, problem=_problem(topology), absent=not topology.closed)
    merged, origins = _merge(kfd, tools)
    known = tuple(_with_render_minor(host.root, complete(gpu)) for gpu in merged)
    gpus = _without_displays(known)
    origins |= {
        fact: origin
        for fact, origin in FILLED_IN.items()
        if any(getattr(item, fact) != getattr(other, fact) for item, other in zip(merged, known, strict=True))
    }
    drivers = [(read_file(host.root / DRIVER), f"/{DRIVER}"), *((tool.driver_version, tool.name) for tool in tools)]
    driver, origins["driver_version"] = next((both for both in drivers if both[0]), ("", ""))
    rocm, origins["rocm_version"] = _rocm_version(host, amd_smi=bool(tools[0].gpus))
    left_out = [f"{gpu.index} ({gpu.product or gpu.arch})" for gpu in known if gpu not in gpus]
    note = SourceReport(name="gpus", problem=f"left out as no Instinct: GPU {', '.join(left_out)}" if left_out else "")
    return DetectedGpus(
        vendor="AMD", gpus=gpus, driver_version=driver, rocm_version=rocm, origins=origins, reports=(kfd, *tools, note)
    )


def render_node_warnings(root: Path, gpus: Sequence[GpuFacts]) -> list[SourceReport]:
    """Return a warning of render nodes without a file, which no container can be given."""
    there = {path.name for path in list_folder(root / "dev/dri")}
    nodes = [f"renderD{gpu.render_minor}" for gpu in gpus if gpu.render_minor is not None]
    missing = [node for node in nodes if node not in there]
    return [SourceReport(name="/dev/dri", problem=f"has no {', '.join(missing)}")] if missing else []


def _problem(topology: Topology) -> str:
    if topology.gpus:
        return ""
    if topology.closed:
        return f"{topology.closed} nodes may not be read by this user"
    return "lists no GPU" if topology.found else "no topology below /sys"


def _with_render_minor(root: Path, gpu: GpuFacts) -> GpuFacts:
    """Return a GPU with the render node that sysfs lists below its PCI address, where KFD does not report it."""
    if gpu.render_minor is not None or not gpu.bus:
        return gpu
    entries = list_folder(root / "sys/bus/pci/devices" / gpu.bus / "drm")
    minor = next((int(found[1]) for path in entries if (found := RENDER.fullmatch(path.name))), None)
    return msgspec.structs.replace(gpu, render_minor=minor)


def _without_displays(gpus: tuple[GpuFacts, ...]) -> tuple[GpuFacts, ...]:
    """Return the GPUs less those known to be no Instinct, where there is one: nobody benchmarks both together."""
    kept = tuple(gpu for gpu in gpus if is_instinct(gpu) or not gpu.arch)
    return kept if any(map(is_instinct, kept)) else gpus


def _merge(kfd: SourceReport, tools: Sequence[SourceReport]) -> tuple[list[GpuFacts], dict[str, str]]:
    """Return the GPUs of the first source that lists any, completed from the others; and each fact's source.

    KFD is queried first as the driver itself. GPUs are numbered as the first tool numbers them that can be matched to
    it one by one, which is how GPU ids are given on a command line.
    """
    listing = [source for source in (kfd, *tools) if source.gpus]
    if not listing:
        return [], {}
    base = _in_tool_order(kfd.gpus, tools) if kfd.gpus else listing[0].gpus
    views = {source.name: _views(base, source.gpus) for source in listing}
    origins = {"gpus": listing[0].name}
    gpus = []
    for place, gpu in enumerate(base):
        facts: dict[str, object] = {}
        for name, (source, view) in ((name, both) for name in AMD_FACTS for both in views.items()):
            value = getattr(view[place], name)
            if name not in facts and value not in (None, ""):
                facts[name] = value
                origins.setdefault(name, source)
        gpus.append(msgspec.structs.replace(GpuFacts(index=gpu.index), **facts))
    return gpus, origins


def _pair(gpus: Sequence[GpuFacts], others: Sequence[GpuFacts]) -> list[GpuFacts] | None:
    """Return for each GPU the other source's view of it, by the first key that names all of them; None without."""
    for key in KEYS:
        table = {getattr(other, key): other for other in others if getattr(other, key) not in (None, "")}
        if len(table) == len(others) and all(getattr(gpu, key) in table for gpu in gpus):
            return [table[getattr(gpu, key)] for gpu in gpus]
    return None


def _in_tool_order(gpus: Sequence[GpuFacts], tools: Sequence[SourceReport]) -> Sequence[GpuFacts]:
    for tool in tools:
        paired = _pair(gpus, tool.gpus)
        if paired and len({view.index for view in paired}) == len(gpus):
            numbered = zip(gpus, paired, strict=True)
            renamed = [msgspec.structs.replace(gpu, index=view.index) for gpu, view in numbered]
            return sorted(renamed, key=lambda gpu: gpu.index)
    return gpus


def _views(base: Sequence[GpuFacts], gpus: Sequence[GpuFacts]) -> Sequence[GpuFacts]:
    """Return one view per GPU; by position where nothing names them, empty where not even the counts agree."""
    paired = _pair(base, gpus)
    if paired is not None:
        return paired
    return gpus if len(gpus) == len(base) else [GpuFacts(index=gpu.index) for gpu in base]


def _rocm_version(host: Host, *, amd_smi: bool) -> tuple[str, str]:
    """Return the version (6.4.1) and what it came from, both empty where nothing tells it.

    `amd_smi` allows to run amd-smi: one that hung before would hang again. HIP's version shares ROCm's first two
    numbers only.
    """
    for folder in (root / ".info" for root in rocm_roots(host)):
        siblings = [path for path in list_folder(folder) if path.name.startswith("version-")]
        for file in (folder / "version", *siblings):
            if found := VERSION.match(read_file(file)):
                return found[0], str(file)
    tools = [(HIP, ("hipconfig", "--version"))]
    for pattern, command in [(ROCM, ("amd-smi", "version")), *tools] if amd_smi else tools:
        if found := pattern.search(run_tool(host, *command).text):
            return found[1], " ".join(command)
    return "", ""


THIS = Host()
RENAMED = {"arch": "architecture"}  # where Machine's word for a fact differs from a GPU's
FACTS = ("gpus", "arch", "product", "memory_bytes", "render_minor", "driver_version", "rocm_version", "cuda_version")
PACKAGE_TOOLS = {"apt": "HOST_UBUNTU", "yum": "HOST_CENTOS", "zypper": "HOST_SLES", "tdnf": "HOST_AZURE"}

VENDORS: tuple[Vendor, ...] = ("NVIDIA", "AMD")  # where both answer NVIDIA wins, as in madengine
TOOLS: dict[Vendor, tuple[str, ...]] = {"NVIDIA": ("nvidia-smi",), "AMD": ("amd-smi", "rocm-smi")}
WITHOUT_GPU = 'for a run without GPU: --additional-context \'{"gpu_vendor": "CPU"}\''
DRY_RUN_HINTS = {
    "AMD": "to plan for a machine that is elsewhere: --dry-run --machine 8xMI300X",
    "NVIDIA": "to plan for a machine that is elsewhere: --dry-run --machine 8xH100",
}
HINTS = {
    "AMD": "see what `amd-smi static` and `ls -l /dev/kfd /dev/dri` say (is this user in the groups video and render?)",
    "NVIDIA": "see what `nvidia-smi` says",
}

Traces = Mapping[Vendor, tuple[str, ...]]  # what shows that GPUs of a vendor are here, one phrase each


def detect_machine(given: Mapping[str, Override], *, host: Host = THIS) -> Machine:
    """Return what is on this machine, or the machine that the overrides describe.

    Overrides: gpu_vendor (AMD, NVIDIA, CPU), gpu_arch or MAD_SYSTEM_GPU_ARCHITECTURE, gpu_product or
    MAD_SYSTEM_GPU_PRODUCT_NAME, device (MI300X), n_gpus (count of the machine), gpu_renderDs (render node numbers by
    GPU id), rocm_version, cuda_version, MAD_ROCM_PATH, numa_balancing (0 or 1, as in /proc); other keys are ignored.
    A GPU and a count are a whole machine, for which no tool runs unless it is this one; fewer correct what is found.
    A machine with GPUs that are not here is marked as pretended.

    Raises:
        UsageProblem: an override that cannot be meant.
        CheckFailed: a GPU is here but cannot be read, or none is here of the vendor requested.
    """
    overrides = read_overrides(given)
    found = overlay(_find(overrides, host), overrides)
    return _gpu_machine(found, overrides, host) if found.gpus else _cpu_machine(found, overrides, host)


def _find(overrides: Overrides, host: Host) -> DetectedGpus:
    if overrides.vendor == "CPU":
        return DetectedGpus(vendor="CPU")
    topology = read_topology(host.root)
    if overrides.rocm_path:
        host = msgspec.structs.replace(host, rocm_path=overrides.rocm_path)
    if overrides.describes_a_machine and not is_this_machine(overrides, topology):
        return describe_gpus(overrides)
    return _search(overrides, host, topology)


def _cpu_machine(found: DetectedGpus, overrides: Overrides, host: Host) -> Machine:
    problems = _problems(found.reports)
    if (overrides.n_gpus or overrides.renders) and overrides.vendor is None:
        key = overrides.keys.get("n_gpus", "gpu_renderDs")
        problems += [Problem(where=key, what="without effect: no GPU is here, and no gpu_arch or device says which")]
    origin = overrides.origin("vendor") if overrides.vendor else "no trace of a GPU under /sys, /dev and /proc"
    return Machine(
        hostname=socket.gethostname(), host_os=_host_os(host), sources={"vendor": origin}, problems=tuple(problems)
    )


def _gpu_machine(found: DetectedGpus, overrides: Overrides, host: Host) -> Machine:
    first = found.gpus[0]
    device = find_product(overrides.device)
    return Machine(
        vendor=found.vendor,
        gpus=msgspec.convert(found.gpus, tuple[Gpu, ...], from_attributes=True),
        architecture=first.arch,
        product=first.product or first.arch,
        device=device.device if device else overrides.device or short_name(first, found.vendor),
        driver_version=found.driver_version,
        rocm_version=found.rocm_version,
        cuda_version=found.cuda_version,
        hostname=socket.gethostname(),
        host_os=_host_os(host),
        sources=_origins(found, overrides),
        problems=tuple(_problems([*found.reports, *_mixture(found), *_warnings(found, overrides, host)])),
        pretended=found.pretended,
    )


def _origins(found: DetectedGpus, overrides: Overrides) -> dict[str, str]:
    origins = {RENAMED.get(fact, fact): found.origins[fact] for fact in FACTS if found.origins.get(fact)}
    vendor = overrides.origin("vendor") if "vendor" in overrides.keys else origins.get("gpus", "")
    device = overrides.origin("device") if overrides.device else origins.get("product", origins.get("architecture", ""))
    return {"vendor": vendor, "device": device, **origins}


def _problems(reports: Iterable[SourceReport]) -> list[Problem]:
    return [
        Problem(where=report.name, what=report.problem) for report in reports if report.problem and not report.absent
    ]


def _mixture(found: DetectedGpus) -> list[SourceReport]:
    kinds = list(dict.fromkeys(short_name(gpu, found.vendor) for gpu in found.gpus))
    what = f"not all alike: {', '.join(kinds)}; the machine is taken for the first"
    return [SourceReport(name="gpus", problem=what)] if len(kinds) > 1 else []


def _warnings(found: DetectedGpus, overrides: Overrides, host: Host) -> list[SourceReport]:
    """Return what of the host hinders AMD GPUs; of a machine that is not here what the context reports about it."""
    if found.vendor != "AMD":
        return []
    warnings = [] if found.pretended else render_node_warnings(host.root, found.gpus)
    here = "" if found.pretended else read_file(host.root / "proc/sys/kernel/numa_balancing")
    if is_balancing(overrides.numa_balancing or here):
        what = "it is on, which can slow AMD GPUs: sudo sysctl kernel.numa_balancing=0"
        warnings.append(SourceReport(name="numa_balancing", problem=what))
    return warnings


def _host_os(host: Host) -> str:
    """Return MAD's word for the distribution, by the first package tool that is installed."""
    return next((name for tool, name in PACKAGE_TOOLS.items() if find_tool(host, tool)), "")


def _search(overrides: Overrides, host: Host, topology: Topology) -> DetectedGpus:
    """Return the GPUs that are here; vendor CPU where there is none.

    A vendor whose GPUs can be seen in the files is queried before one of which only a tool is installed. Where NVIDIA's
    are seen and cannot be read, an AMD display adapter does not stand in for them.

    Raises:
        CheckFailed: a GPU is here but nothing can read it, or none is here of the vendor requested.
    """
    traces = _find_traces(host.root, topology)
    candidates = [vendor for vendor in VENDORS if overrides.vendor in (None, vendor)]
    tried: list[DetectedGpus] = []
    for vendor in sorted(candidates, key=lambda vendor: not traces[vendor]):
        if not (traces[vendor] or any(find_tool(host, tool) for tool in TOOLS[vendor])):
            continue
        nvidia = vendor == "NVIDIA"
        found = detect_nvidia(host, present=bool(traces[vendor])) if nvidia else detect_amd(host, topology)
        readable = bool(found.gpus) and bool(found.gpus[0].arch or overrides.arch)
        if readable and (overrides.vendor or not _stands_in(found, traces)):
            others = [] if overrides.vendor else _hidden_instincts(found, topology)
            return msgspec.structs.replace(found, reports=(*_reports([*tried, found]), *others))
        tried.append(found)
    _raise_unreadable(overrides, traces, tried)
    return DetectedGpus(vendor="CPU", reports=_reports(tried))


def detect_nvidia(host: Host, *, present: bool) -> DetectedGpus:
    """Return what the library or the tool reports; the library only where `present`, and of the real machine."""
    reports = [read_nvml(host)] if present and host.root == Path("/") else []
    if not any(report.gpus for report in reports):
        reports.append(read_nvidia_smi(host))
    report = next((item for item in reports if item.gpus), SourceReport(name=""))
    facts = ("gpus", "arch", "product", "memory_bytes", "driver_version", "cuda_version")
    return DetectedGpus(
        vendor="NVIDIA",
        gpus=report.gpus,
        driver_version=report.driver_version,
        cuda_version=report.runtime_version,
        origins=dict.fromkeys(facts, report.name),
        reports=tuple(reports),
    )


def _stands_in(found: DetectedGpus, traces: Traces) -> bool:
    return found.vendor == "AMD" and bool(traces["NVIDIA"]) and not any(map(is_instinct, found.gpus))


def _hidden_instincts(found: DetectedGpus, topology: Topology) -> list[SourceReport]:
    """Return a note where NVIDIA's answer hides Instincts."""
    hidden = sum(map(is_instinct, topology.gpus)) if found.vendor == "NVIDIA" else 0
    note = f"{hidden} AMD GPUs are here too; the context's gpu_vendor AMD asks for them"
    return [SourceReport(name="gpu_vendor", problem=note)] if hidden else []


def _raise_unreadable(overrides: Overrides, traces: Traces, tried: list[DetectedGpus]) -> None:
    """Nothing answered: that is a machine without GPU only where nothing shows one."""
    reported = "; ".join(f"{report.name}: {report.problem}" for report in _reports(tried) if report.problem)
    reported = f" ({reported})" if reported else ""
    for vendor in VENDORS:
        shown = (*traces[vendor], *_unnamed_gpus(vendor, tried))
        if shown and overrides.vendor in (None, vendor):
            some = ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
            message = f"{vendor} GPUs are in this machine but cannot be read: {some}{reported}"
            # GPUs that can be read, but did not stand in for others
            readable = [found.vendor for found in tried if found.gpus and found.gpus[0].arch]
            use = [f"to use the {other} GPU: --gpu-vendor {other}" for other in readable]
            raise CheckFailed(message, "; ".join([HINTS[vendor], *use, WITHOUT_GPU]))
    if overrides.vendor:
        by = next(key for field, key in overrides.keys.items() if field in ("vendor", "arch", "product", "device"))
        none = f"{by} asks for {overrides.vendor}, but no {overrides.vendor} GPU is in this machine"
        raise CheckFailed(f"{none}{reported}", DRY_RUN_HINTS[overrides.vendor])


def _unnamed_gpus(vendor: Vendor, tried: Iterable[DetectedGpus]) -> list[str]:
    """Return the tools that counted GPUs without being able to state what they are; KFD is among the traces."""
    reports = _reports(found for found in tried if found.vendor == vendor)
    tools = [report for report in reports if report.gpus and report.name != "KFD"]
    return [f"{tool.name} lists {len(tool.gpus)} without naming them" for tool in tools]


def _reports(tried: Iterable[DetectedGpus]) -> tuple[SourceReport, ...]:
    return tuple(report for found in tried for report in found.reports)


def _find_traces(root: Path, topology: Topology) -> Traces:
    """Return the traces of GPUs under /sys, /dev and /proc."""
    amd = [f"{len(topology.gpus)} GPUs in the KFD topology"] if topology.gpus else []
    if topology.closed:
        amd.append(f"{topology.closed} KFD nodes that may not be read")
    if not topology.found and (root / "dev/kfd").exists():  # amdgpu makes it without a GPU too
        amd.append("/dev/kfd")
    files = [path for path in list_folder(root / "dev") if path.name[:6] == "nvidia" and path.name[6:].isdecimal()]
    boards = list_folder(root / "proc/driver/nvidia/gpus")
    nvidia = [f"/dev/{path.name}" for path in files] + [f"/proc/driver/nvidia/gpus/{path.name}" for path in boards]
    boards_on_bus = pci_gpus(root)
    amd += [board.text for board in boards_on_bus if board.vendor == "AMD"]
    nvidia += [board.text for board in boards_on_bus if board.vendor == "NVIDIA"]
    return {"AMD": tuple(amd), "NVIDIA": tuple(nvidia)}


class PciGpu(Value, frozen=True):
    """A GPU as the PCI bus lists it."""

    vendor: Vendor
    device_id: int
    text: str


def pci_gpus(root: Path) -> list[PciGpu]:
    """Return the GPUs on the PCI bus; an AMD display adapter is none, for its driver need not compute."""
    found: list[PciGpu] = []
    for folder in list_folder(root / "sys/bus/pci/devices"):
        kind, owner, device = (read_file(folder / name).lower() for name in ("class", "vendor", "device"))
        device_id, text = parse_int(device) or 0, f"PCI device {folder.name} [{owner[2:]}:{device[2:]}]"
        is_display, is_accelerator = kind.startswith("0x03"), kind.startswith("0x12")
        if owner == "0x1002" and (is_accelerator or (is_display and device_id in INSTINCT_IDS)):
            found.append(PciGpu(vendor="AMD", device_id=device_id, text=text))
        elif owner == "0x10de" and kind[:6] in ("0x0300", "0x0302"):
            found.append(PciGpu(vendor="NVIDIA", device_id=device_id, text=text))
    return found
