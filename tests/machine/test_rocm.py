"""Which ROCm is on the host: the order of the places, and what tells its version."""

from __future__ import annotations

from tests.rows import each_row

from .stand_in import Bench, amd_list, amd_static

ROOTS = ("context", "opt/rocm", "opt/rocm-6.10.0", "opt/rocm-6.4.1", "environment")
VERSIONS = dict(zip(ROOTS, ("7.1.0", "7.2.0", "6.10.0", "6.4.1", "7.3.0"), strict=True))


@each_row(
    ("installed", "auto", "version"),
    [
        (ROOTS, "1", "7.1.0"),
        (ROOTS, "0", "7.1.0"),
        (ROOTS[1:], "1", "7.2.0"),
        (ROOTS[1:], "0", "7.3.0"),
        (ROOTS[1:], "", "7.2.0"),
        (ROOTS[2:], "1", "6.10.0"),
        (ROOTS[2:], "0", "7.3.0"),
        (ROOTS[1:4], "0", "7.2.0"),  # nothing below ROCM_PATH: the usual place
        (ROOTS[2:4], "0", ""),
        (ROOTS[4:], "1", "7.3.0"),
        ((), "1", ""),
    ],
)
def test_the_order_of_places(bench: Bench, installed: tuple[str, ...], auto: str, version: str) -> None:
    bench.mi300x(1)
    for root in installed:
        bench.file(f"{root}/.info/version", f"{VERSIONS[root]}-38\n")
    bench.env = {"ROCM_PATH": str(bench.root / "environment"), "MAD_AUTO_ROCM_PATH": auto}
    machine = bench.detect(MAD_ROCM_PATH=str(bench.root / "context"))
    assert machine.rocm_version == version


@each_row(
    ("files", "version"),
    [
        ({"version": "7.0.2-56\n"}, "7.0.2"),
        ({"version": "7.13.0-123-gfx942;gfx950\n"}, "7.13.0"),
        ({"version-lrt": "6.3.3-74\n", "version-rocm": "6.3.3-74\n"}, "6.3.3"),
        ({"version": "unknown\n", "version-utils": "6.3.2-66\n"}, "6.3.2"),
        ({"version": "\n"}, ""),
    ],
)
def test_what_the_files_hold(bench: Bench, files: dict[str, str], version: str) -> None:
    bench.mi300x(1)
    for name, text in files.items():
        bench.file(f"opt/rocm/.info/{name}", text)
    assert bench.detect().rocm_version == version


def test_the_file_is_named(bench: Bench) -> None:
    bench.mi300x(1)
    bench.file("opt/rocm-7.0.2/.info/version", "7.0.2-56\n")
    assert bench.detect().sources["rocm_version"].endswith("opt/rocm-7.0.2/.info/version")


BANNER = "Linuxversion6.8.0-45-generic(builder@host)(gcc-13)#45-UbuntuSMP"


@each_row(
    ("said", "hip", "version", "origin"),
    [
        (f"Tool: 25.9 | ROCm version: 6.4.3 | amdgpu version: {BANNER} | hsmp: N/A", "", "6.4.3", "amd-smi version"),
        ("| AMD-SMI   27.1.0 |\n| ROCm Version:      7.9.1  |", "", "7.9.1", "amd-smi version"),
        ("Tool: 24.7 | ROCm version: N/A | amdgpu version: 6.10.10", "6.3.42131-ab12", "6.3", "hipconfig --version"),
        ("", "7.2.26015-cd34", "7.2", "hipconfig --version"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_without_files_the_tools_are_asked(bench: Bench, said: str, hip: str, version: str, origin: str) -> None:
    bench.tool("amd-smi", ("*static*", amd_static([0])), ("*list*", amd_list([1])), ("version", said))
    if hip:
        bench.tool("hipconfig", ("--version", hip))
    machine = bench.detect()
    assert (machine.rocm_version, machine.sources.get("rocm_version", "")) == (version, origin)


def test_the_tools_of_the_root_that_a_context_names_come_first(bench: Bench) -> None:
    bench.tool("amd-smi", ("*static*", amd_static([0, 1])), ("*list*", amd_list([1, 2])))
    other = Bench(bench.folder / "other")
    other.tool("amd-smi", ("*static*", amd_static([0])), ("*list*", amd_list([1])))
    assert len(bench.detect().gpus) == 2
    assert len(bench.detect(MAD_ROCM_PATH=str(other.folder)).gpus) == 1
