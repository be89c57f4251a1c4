"""What programs say as they are printed today, by the cause that it tells; and what must not be taken for one."""

from __future__ import annotations

import re
from time import process_time

import pytest

from madlite.measure.needed import needed_texts
from tests.measure.test_diagnosis import RULES, follow, footer, timeout, trace, why

LINES = [
    ("RuntimeError: Triton Error [HIP]:  Code: 2, Message: out of memory", "gpu_out_of_memory", "batch"),
    (
        "RuntimeError: /te/common/util/cuda_runtime.cpp:77 in function x: CUDA Error: out of memory",
        "gpu_out_of_memory",
        "",
    ),
    (
        "RuntimeError: unable to write to file </torch_77_1_0>: No space left on device (28)",
        "host_out_of_memory",
        "/dev/shm",
    ),
    (
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "host_out_of_memory",
        "/dev/shm",
    ),
    (
        "n1:7:8 [3] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        "host_out_of_memory",
        "ulimit -l",
    ),
    ("OSError: [Errno 28] No space left on device: '/out/optimizer.pt'", "disk_full", "/out/optimizer.pt"),
    ("OSError: [Errno 28] inotify watch limit reached", "python_error", "max_user_watches"),
    ("RuntimeError: received 0 items of ancdata", "python_error", "ulimit -n"),
    (
        "HfHubHTTPError: Client error '429 Too Many Requests' for url 'https://huggingface.co/api/models/a/b'",
        "network",
        "HF_TOKEN",
    ),
    (
        "HTTPStatusError: Client error '401 Unauthorized' for url 'https://huggingface.co/a/b/resolve/main/c.json'",
        "gated_repository",
        "https://huggingface.co/a/b,",
    ),
    (
        "HTTPStatusError: Client error '404 Not Found' for url 'https://huggingface.co/api/models/a/b/revision/main'",
        "missing_repository",
        "has no a/b,",
    ),
    (
        "HTTPStatusError: Client error '401 Unauthorized' for url 'https://huggingface.co/api/whoami-v2'",
        "gated_repository",
        "settings/tokens",
    ),
    (
        "HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://huggingface.co/api/models/a/b",
        "network",
        "try again",
    ),
    (
        "httpx.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1)",
        "network",
        "certificate",
    ),
    (
        "requests.exceptions.ProxyError: (MaxRetryError(\"x (Caused by ProxyError('Unable to connect to proxy', "
        "OSError('Tunnel connection failed: 407 Proxy Authentication Required')))\"), 'x')",
        "network",
        "HTTPS_PROXY",
    ),
    ("httpx.ReadTimeout: The read operation timed out", "network", "firewall"),
    (
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "missing_file",
        "fetch it again",
    ),
    (
        "RuntimeError: CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmul`",
        "package_conflict",
        "format",
    ),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "gpu_fault", "memory may be full"),
    (
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "package_conflict",
        "driver",
    ),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "too_few_gpus", "another process"),
    ("AssertionError: Torch not compiled with CUDA enabled", "package_conflict", "no GPU"),
    (
        "ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /x.so)",
        "package_conflict",
        "built for",
    ),
    ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", "missing_package", "gcc"),
    ("AssertionError: world size (8) is not divisible by 16", "bad_option", "data × tensor"),
    (
        "AssertionError: Invalid parallel dims: dp_shard(8) * tp(4) != WORLD_SIZE(8)",
        "bad_option",
        "data ×",
    ),
    ("omegaconf.errors.ConfigAttributeError: Missing key optimizer", "bad_option", "lacks a key"),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ZeroConfig", "bad_option", "ZeroConfig"),
    ("yaml.scanner.ScannerError: while scanning a simple key", "bad_option", "YAML"),
    ("TypeError: Args.__init__() got an unexpected keyword argument 'evaluation_strategy'", "python_error", "versions"),
    ("IndexError: index out of range in self", "python_error", "vocabulary"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", "network", "did not find each other"),
    ("OSError: [Errno 116] Stale file handle: '/nfs/a.bin'", "missing_file", "mounted"),
]


@pytest.mark.parametrize(("line", "cause", "hint"), LINES)
def test_an_exception_has_its_cause_and_what_to_do_and_its_followers_have_not(line, cause, hint):
    others = [timeout(rank) for rank in range(8) if rank != 5]
    found = why(*others[:4], *trace(5, line), *others[4:], *footer(0, -6, {5: 1}))
    assert (found.cause, found.rank, found.line) == (cause, 5, line)
    assert hint in found.hint


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("train.py: error: argument --bf16: not allowed with argument --fp16", "bad_option"),
        ("train.py: error: one of the arguments --a --b is required", "bad_option"),
        ("│ Error parsing --training.steps: invalid literal for int() with base 10: 'abc'  │", "bad_option"),
        ("Error: Missing option '--config'.", "bad_option"),
        ("SyntaxError: invalid syntax", "python_error"),
        ("Cannot connect to the Docker daemon at unix:///a.sock. Is the docker daemon running?", "engine_unreachable"),
        ("docker: Error response from daemon: No such image: rocm/primus:v99.", "image_missing"),
        (
            'Error response from daemon: failed to resolve reference "docker.io/a/b:c": a/b:c: not found',
            "image_missing",
        ),
        ("fatal: early EOF", "network"),
        ("wget: unable to resolve host address ‘example.com’", "network"),
        (
            "rocBLAS error: Cannot read /opt/rocm/TensileLibrary.dat: Illegal seek for GPU arch : gfx1036",
            "package_conflict",
        ),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", "nan_loss"),
    ],
)
def test_a_line_of_no_traceback_has_its_cause(line, cause):
    assert why("begin", timeout(1), line, timeout(2)).cause == cause


def test_an_assertion_of_a_kernel_names_what_it_forbids():
    line = "/a/Indexing.cu:9: f: block: [1,0,0], thread: [9,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
    found = why(line, *trace(None, "torch.AcceleratorError: CUDA error: device-side assert triggered"))
    assert (found.cause, found.line) == ("gpu_fault", line) and "srcIndex < srcSelectDimSize" in found.hint


def test_memory_that_a_library_lacked_is_the_cause_and_not_what_it_raised_of_that():
    miopen = [
        "MIOpen(HIP): Error [AllocateMemory] Out of memory",
        *trace(None, "RuntimeError: miopenStatusInternalError"),
    ]
    assert why(*miopen).cause == "gpu_out_of_memory"
    nccl = trace(3, "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, unhandled cuda error (run with x)")
    assert why("[rank3]: n1:5:5 [0] NCCL WARN Cuda failure 2 'out of memory'", *nccl).cause == "gpu_out_of_memory"


def test_an_exception_whose_message_begins_on_its_next_line_is_read_on():
    head = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:"
    found = why(*trace(2, head), "[rank2]: RuntimeError: Failed to find C compiler. Please specify via CC.")
    assert (found.cause, found.rank, found.where) == ("missing_package", 2, "/w/train.py:12 in main")
    head = "RuntimeError: Error(s) in loading state_dict for Llama:"
    found = why(*trace(2, head), "[rank2]:     size mismatch for a.weight: copying a param with shape torch.Size([8])")
    assert found.cause == "bad_option" and found.line.startswith("size mismatch for a.weight")
    assert why(*trace(2, "ValueError: odd:"), timeout(1)).line == "ValueError: odd:"


def test_a_warning_of_another_rank_is_not_the_line_that_decides():
    # month and day as c10 writes them: the month without a zero
    warning = "[rank1]:[W305 09:12:11.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=64): Broken pipe"
    gone = "RuntimeError: [/gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:4567"
    assert why(warning, *trace(4, gone)).rank == 4
    assert why(warning).cause == "network", "where nothing else is said"
    refused = trace(4, "ConnectionRefusedError: [Errno 111] Connection refused")
    assert "nobody listens" in why(warning, *refused).hint and why(*refused, *trace(1, "KeyError: 1")).rank == 1


def test_a_package_that_a_program_went_on_without_for_long_explains_nothing():
    missing = trace(None, "ModuleNotFoundError: No module named 'apex'")
    words = [f"building layer {n} of the model" for n in range(1000)]
    assert why(*missing, *words, timeout(1)).cause == "collective_timeout"
    assert why(*missing, *words).cause == "exit_code"
    assert why(*words, *missing, timeout(1)).cause == "missing_package"
    assert why(*words, *missing, *words, *footer(0, 1, {})).cause == "missing_package", "it ended by an exception"
    many = [line for rank in range(200) for line in trace(rank, "ModuleNotFoundError: No module named 'apex'")]
    assert why(*many).cause == "missing_package", "each rank says it, and all of them say much"


@pytest.mark.parametrize(
    "line",
    [
        "'(MaxRetryError(\"HTTPSConnectionPool(host='hub.co', port=443): Max retries exceeded with url: /x\"), '')' "
        "thrown while requesting HEAD https://huggingface.co/a/b/resolve/main/c.json",
        "NCCL INFO Call to connect returned Connection refused, retrying",
        "wandb: 429 encountered (Filestream rate limit exceeded), retrying request",
        "W0305 09:10:11.123 77 torch/x.py:1] httpx.ReadTimeout: once",
        "bash: line 1: rocm-smi: command not found",
        "size mismatch for lm_head.weight ignored (ignore_mismatched_sizes=True)",
    ],
)
def test_what_was_tried_again_or_done_without_explains_nothing(line):
    assert why(line, "train: bad value -1, stop").cause == "exit_code"
    assert follow(line).late_clue is None or why(line, timeout(1)).cause == "collective_timeout"


def test_no_rule_takes_long_for_a_line_of_noise():
    size, slow = 20_000, []
    for rule in RULES:
        pattern = re.compile(rule.pattern)
        for text in {*needed_texts(pattern), rule.example, rule.example[: len(rule.example) // 2]} - {""}:
            for line in ((text * size)[:size], (text + " ") * (size // (len(text) + 1)), "a" * size + text):
                begin = process_time()
                pattern.search(line)
                if process_time() - begin > 1:
                    slow.append((rule.pattern, line[:40]))
    assert not slow
