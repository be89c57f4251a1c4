"""GPU libraries that can log their calls: what switches it on, and what a call looks like.

Variables and lines are those of the libraries' own pages on logging (rocBLAS, hipBLASLt, MIOpen, Tensile, NCCL).
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Form(NamedTuple):
    """How a library writes a call: a text that is in every such line, and the line, whose named groups count."""

    name: str
    sign: bytes
    line: re.Pattern[bytes]


class Library(NamedTuple):
    """What switches a library's logging on ({log} is a file's name), what it then writes, and what would hide that."""

    settings: dict[str, str]
    forms: tuple[Form, ...]
    hidden_by: tuple[str, ...] = ()

    @property
    def has_file(self) -> bool:
        """Whether it logs into a file; otherwise it prints among the command's output."""
        return "{log}" in self.settings.values()


# by the variable that asks for it
LIBRARIES = {
    "ROCBLAS_TRACE": Library(
        {"ROCBLAS_LAYER": "6", "ROCBLAS_LOG_BENCH_PATH": "{log}", "ROCBLAS_LOG_PROFILE_PATH": "{log}"},
        (
            Form("rocblas", b"rocblas-bench", re.compile(rb"(?P<config>\S*rocblas-bench .*)")),
            Form(
                "rocblas_function",
                b"rocblas_function:",
                re.compile(rb"(?P<config>rocblas_function: .*?)(?:, call_count: (?P<calls>\d+).*)?$"),
            ),
        ),
    ),
    "HIPBLASLT_TRACE": Library(
        {"HIPBLASLT_LOG_MASK": "32", "HIPBLASLT_LOG_FILE": "{log}"},
        (Form("hipblaslt", b"hipblaslt-bench", re.compile(rb"(?P<config>\S*hipblaslt-bench .*)")),),
        hidden_by=("HIPBLASLT_LOG_LEVEL",),
    ),
    "MIOPEN_TRACE": Library(
        {"MIOPEN_ENABLE_LOGGING_CMD": "1"},
        (Form("miopen", b"MIOpenDriver", re.compile(rb"Command \[[^\]]*\] (?P<config>\S*MIOpenDriver\S* .*)")),),
    ),
    "TENSILE_TRACE": Library(
        {"TENSILE_DB": "0x8000"}, (Form("tensile", b"Running kernel:", re.compile(rb"Running kernel: (?P<config>.*)")),)
    ),
    "RCCL_TRACE": Library(
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"},  # printed, as MAD's tooling looks for it in the log
        (
            Form(
                "rccl",
                b" opCount ",
                re.compile(  # without what differs from call to call: its number, addresses, the stream
                    rb"NCCL INFO (?P<what>\w+): opCount .*?(?P<size>count \d+ datatype \d+ op -?\d+ root -?\d+) "
                    rb".*\[(?P<ranks>nranks=\d+)\]"
                ),
            ),
        ),
    ),
}


def find_call(line: bytes, forms: list[Form]) -> tuple[str, str, int]:
    """Return library, configuration and number of the calls that a line tells of; 0 calls where it tells of none."""
    for form in forms:
        found = form.line.search(line) if form.sign in line else None
        if found:
            parts = found.groupdict()
            calls = int(parts.pop("calls", None) or 1)
            config = b" ".join(part for part in parts.values() if part)
            return form.name, config.decode("utf-8", "replace").strip(), calls
    return "", "", 0
