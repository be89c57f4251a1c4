"""A stand-in for torch for ROCm, which has AMD's GPUs as `cuda`: says what it is asked for, and computes nothing.

It shows that the program asks for what torch for ROCm has.  It is no AMD GPU.
"""

import sys
from types import SimpleNamespace

bfloat16, version = "bfloat16", SimpleNamespace(hip="6.4.0", cuda=None)


def _said(*words):
    print(*words, file=sys.stderr)


def _tensor(size, dtype, device):
    assert dtype is bfloat16 and device.startswith("cuda:")
    return SimpleNamespace(size=size, copy_=lambda other: None)


randn = ones = _tensor
empty_like = matmul = lambda *tensors: tensors[0]
cuda = SimpleNamespace(set_device=lambda gpu: _said("set_device", gpu), synchronize=lambda: None)
distributed = SimpleNamespace(
    init_process_group=lambda backend, init_method, world_size, rank: _said(backend, world_size, rank),
    all_reduce=lambda tensor: _said("elements", tensor.size),
    destroy_process_group=lambda: None,
)
multiprocessing = SimpleNamespace(spawn=lambda work, args, nprocs: [work(rank, *args) for rank in range(nprocs)])
sys.modules |= {"torch.distributed": distributed, "torch.multiprocessing": multiprocessing}
