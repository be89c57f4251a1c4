"""For which GPUs images are built."""

from __future__ import annotations

import pytest

from madlite.errors import UsageProblem
from madlite.model import Gpu, Machine
from madlite.plan.context import read_context
from madlite.plan.images import find_target
from tests.rows import each_row

NVIDIA = Machine(vendor="NVIDIA", gpus=(Gpu(index=0, arch="H100"),), architecture="H100")


def target(context: str = "", machine: Machine = NVIDIA, archs=()):
    return find_target(read_context(None, context), machine, archs)


def test_the_context_then_the_machine_then_amd():
    assert target('{"gpu_vendor": "amd"}').gpu_vendor == "AMD"
    assert target().gpu_vendor == "NVIDIA" and not target().notes
    made = target(machine=Machine())
    assert made.gpu_vendor == "AMD" and "--gpu-vendor" in made.notes[0]
    assert made.context.values == {"gpu_vendor": "AMD", "guest_os": "UBUNTU"}
    assert target('{"gpu_vendor": "CPU", "guest_os": "centos"}').context.typed.guest_os == "CENTOS"
    assert target(archs=("gfx942, gfx90a", "gfx942")).architectures == ("gfx942", "gfx90a")
    made = target('{"docker_build_arg": {"MAD_SYSTEM_GPU_ARCHITECTURE": "gfx950"}}', archs=("gfx942",))
    assert made.architectures == () and "gfx950" in made.notes[0]


@each_row(("context", "told"), [('{"gpu_vendor": "INTEL"}', "INTEL"), ('{"guest_os": "SLES"}', "SLES")])
def test_others_are_refused(context, told):
    with pytest.raises(UsageProblem, match=told):
        target(context)
