"""What programs say as they are printed today, by the cause that it tells; and what must not be taken for one."""

from __future__ import annotations

from madlite.measure.lines import is_warning
from tests.measure.test_diagnosis import follow, timeout, trace, why
from tests.rows import each_row


@each_row(
    ("line", "cause"),
    [
        ("MemoryError", "host_out_of_memory"),
        ("│ Error parsing --training.steps: invalid literal for int() with base 10: 'abc'  │", "bad_option"),
        ("SyntaxError: invalid syntax", "python_error"),
        ("fatal: early EOF", "network"),
        ("wget: unable to resolve host address ‘example.com’", "network"),
    ],
)
def test_a_line_of_no_traceback_has_its_cause(line, cause):
    """Others are in tests/data/causes.tsv."""
    assert why("begin", timeout(1), line, timeout(2)).cause == cause


def test_an_assertion_of_a_kernel_names_what_it_forbids():
    line = "/a/Indexing.cu:9: f: block: [1,0,0], thread: [9,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
    found = why(line, *trace(None, "torch.AcceleratorError: CUDA error: device-side assert triggered"))
    assert (found.cause, found.line) == ("gpu_fault", line) and "srcIndex < srcSelectDimSize" in found.hint


DEVICE_SIDE = (
    "/pytorch/aten/src/ATen/native/hip/IndexKernel.hip:94: operator(): Device-side assertion `-sizes[i] <= index && "
    'index < sizes[i] && "index out of bounds"\' failed.'
)
TEMPLATE = (
    f"/a/ScatterGatherKernel.cu:144: operator()<{'x' * 1500}>: "
    "block: [0,0,0], thread: [1,0,0] Assertion `n < 9` failed."
)


@each_row(
    ("line", "what"), [(DEVICE_SIDE, '-sizes[i] <= index && index < sizes[i] && "index out of bounds" forbids'),
                       (TEMPLATE, "what n < 9 forbids")],
)  # fmt: skip
def test_an_assertion_of_any_vendors_kernel_names_what_it_forbids(line, what):
    found = why(line, *trace(0, "torch.AcceleratorError: HIP error: unspecified launch failure"))
    assert (found.cause, found.line) == ("gpu_fault", line) and what in found.hint


def test_memory_that_a_library_lacked_is_the_cause_and_not_what_it_raised_of_that():
    miopen = [
        "MIOpen(HIP): Error [AllocateMemory] Out of memory",
        *trace(None, "RuntimeError: miopenStatusInternalError"),
    ]
    assert why(*miopen).cause == "gpu_out_of_memory"
    nccl = trace(3, "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, unhandled cuda error (run with x)")
    assert why("[rank3]: n1:5:5 [0] NCCL WARN Cuda failure 2 'out of memory'", *nccl).cause == "gpu_out_of_memory"
    caught = "[rank3]: left out a shape: CUDA out of memory. Tried to allocate 2.00 GiB"
    fault = trace(3, "RuntimeError: CUDA error: an illegal memory access was encountered")
    assert why(caught, *fault).cause == "gpu_fault", "no library says that of memory"


def test_an_exception_whose_message_begins_on_its_next_line_is_read_on():
    head = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:"
    found = why(*trace(2, head), "[rank2]: RuntimeError: Failed to find C compiler. Please specify via CC.")
    assert (found.cause, found.rank, found.where) == ("missing_package", 2, "/w/train.py:12 in main")
    head = "RuntimeError: Error(s) in loading state_dict for Llama:"
    found = why(*trace(2, head), "[rank2]:     size mismatch for a.weight: copying a param with shape torch.Size([8])")
    assert found.cause == "bad_option" and found.line.startswith("size mismatch for a.weight")
    assert why(*trace(2, "ValueError: odd:"), timeout(1)).line == "ValueError: odd:"
    head = (
        "RuntimeError: Failed to import transformers.a because of the following error (look up to see its traceback):"
    )
    missing = "No module named 'flash_attn_2_cuda'"
    first = [*trace(2, f"ModuleNotFoundError: {missing}"), "[rank2]: The above exception was the direct cause of x"]
    found = why(*first, *trace(2, head), "[rank0]: loading", "loading", f"[rank2]: {missing}")
    assert (found.cause, found.rank, found.line) == ("missing_package", 2, missing)


@each_row(
    "after",
    [
        ["wandb: ERROR Max retries exceeded with url: /graphql"],
        ["bash: line 9: foo: command not found"],
        ["run.sh: 9: foo: not found"],
        ["[rank0]: OSError: [Errno 116] Stale file handle"],
        ["2026-03-05 09:10:11,123 - a.b - ERROR - Max retries exceeded with url: /x"],
        ["E0305 09:10:11.123 77 x.py:1] certificate verify failed"],
        ["shapes 1 and 2", "No module named 'apex'"],
    ],
)
def test_what_others_say_after_an_exception_is_not_the_next_line_of_its_message(after):
    found = why(*trace(None, "AssertionError: shapes differ, got:"), *after)
    assert (found.cause, found.line) == ("python_error", "AssertionError: shapes differ, got:")


def test_a_warning_of_another_rank_is_not_the_line_that_decides():
    # month and day as c10 writes them: the month without a zero
    warning = "[rank1]:[W305 09:12:11.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=64): Broken pipe"
    gone = "RuntimeError: [/gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:4567"
    assert why(warning, *trace(4, gone)).rank == 4
    assert why(warning).cause == "network", "where nothing else is said"
    refused = trace(4, "ConnectionRefusedError: [Errno 111] Connection refused")
    assert "no process listens" in why(warning, *refused).hint and why(*refused, *trace(1, "KeyError: 1")).rank == 1


@each_row(
    "line",
    [
        "'(MaxRetryError(\"HTTPSConnectionPool(host='hub.co', port=443): Max retries exceeded with url: /x\"), '')' "
        "thrown while requesting HEAD https://huggingface.co/a/b/resolve/main/c.json",
        "NCCL INFO Call to connect returned Connection refused, retrying",
        "wandb: 429 encountered (Filestream rate limit exceeded), retrying request",
        "W0305 09:10:11.123 77 torch/x.py:1] httpx.ReadTimeout: once",
        "bash: line 1: rocm-smi: command not found",
        "size mismatch for lm_head.weight ignored (ignore_mismatched_sizes=True)",
        'INFO:     127.0.0.1:41 - "POST /v1/x HTTP/1.1" 500 Internal Server Error',
        'INFO:     127.0.0.1:41 - "POST /v1/x HTTP/1.1" 429 Too Many Requests',
        f"Loss is nan, {'x' * 500} skipping",
    ],
)
def test_what_was_tried_again_or_done_without_explains_nothing(line):
    assert why(line, "train: bad value -1, stop").cause == "exit_code"
    assert follow(line).failures.late_candidate is None or why(line, timeout(1)).cause == "collective_timeout"


RESOLVE = 'Error response from daemon: failed to resolve reference "docker.io/a/b:c": '
ASKED = f'{RESOLVE}failed to do request: Head "https://registry-1.docker.io/v2/a/b/manifests/c": '
READING = "Error: initializing source docker://r.io/a/b:c: reading manifest c in r.io:5000/a/b: "
LIMITS = "docker login, whose limit is higher"
NODES = f"n[{','.join(map(str, range(100, 400)))}]"
CANCELLED = f"slurmstepd: error: *** STEP 9.0 ON {NODES} CANCELLED AT 2026-01-01T00:00:00 DUE TO"


@each_row(
    ("line", "cause", "hint"),
    [
        (f"{ASKED}dial tcp: lookup registry-1.docker.io: no such host", "network", "DNS"),
        (f"{ASKED}dial tcp 1.2.3.4:443: i/o timeout", "network", "firewall"),
        (f"{ASKED}tls: failed to verify certificate: x509: certificate signed by x", "network", "certificate"),
        (f"{RESOLVE}unexpected status from HEAD request to https://x: 503 Service Unavailable", "network", "try again"),
        (f"{RESOLVE}unexpected status from HEAD request to https://x: 429 Too Many Requests", "image_missing", "login"),
        (f'{READING}Get "https://r.io/v2/": dial tcp: lookup r.io: no such host', "network", "DNS"),
        (f"{READING}manifest unknown", "image_missing", "name"),
        ("Error response from daemon: error from registry: 429 Too Many Requests", "image_missing", LIMITS),
        ("Error: No such image: a/b:c", "image_missing", "docker pull a/b:c"),
        ("Unable to open /dev/kfd read-write: No such file or directory", "too_few_gpus", "--device=/dev/kfd"),
        ("Unable to open /dev/kfd read-write: Permission denied", "too_few_gpus", "groups render"),
        ("RuntimeError: CAS service error : Reqwest Error: HTTP status client error (403 Forbidden), domain: https://x",
         "gated_repository", "accept"),
        ("RuntimeError: CAS service error : Reqwest Error: error sending request", "network", "try again"),
        ("n1:7:8 [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
         "host_out_of_memory", "/dev/shm is too small"),
        ("n1:7:8 [3] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
         "host_out_of_memory", "ulimit -l"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x_1'", "host_out_of_memory", "/dev/shm is too small"),
        (f"torch.distributed.DistNetworkError: {'a' * 3000} Broken pipe", "network", "went away"),
        (f"{CANCELLED} TIME LIMIT ***", "timeout", "--time"),
        (f"{CANCELLED} NODE FAILURE ***", "node_failed", "sacct"),
    ],
)  # fmt: skip
def test_what_one_says_of_registries_devices_and_shared_memory_has_its_own_hint(line, cause, hint):
    found = why("begin", line, "end")
    assert found.cause == cause and hint in found.hint
    assert cause == "gated_repository" or "HF_TOKEN" not in found.hint


def test_an_image_that_a_script_asked_for_before_it_fetched_it_is_not_why_it_ended():
    asked = "Error response from daemon: No such image: rocm/primus:v1"
    assert why(asked, "pulling", *trace(None, "KeyError: 'lr'")).line == "KeyError: 'lr'"
    assert why(f"docker: {asked}.", *trace(None, "KeyError: 'lr'")).cause == "image_missing"


@each_row(
    ("line", "warns"),
    [
        ("loss: stage W1234 12:05 failed", False),
        ("W0305 09:10:11.1 77 x.py:1] x", True),
        ("[rank0]: W0305 09:10:11.1 x", True),
        ("[1,0]<stderr>:W0305 09:10:11.1 x", True),
        ("[rank1]:[W305 09:12:11.1 TCPStore.cpp:106] x", True),
    ],
)
def test_a_warning_begins_with_its_letter(line, warns):
    assert is_warning(line) is warns


@each_row("rank", [None, 0])
@each_row(
    "code",
    [
        'check(False, "HIP error: an illegal memory access was encountered")',
        'warn("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 100")',
        'raise OSError("No space left on device")',
    ],
)
def test_the_program_s_text_in_a_traceback_is_nothing_that_happened(rank, code):
    lines = [line.replace("step()", code) for line in trace(rank, "ValueError: batch 7 has a negative label")]
    found = why(*lines)
    assert (found.cause, found.line) == ("python_error", "ValueError: batch 7 has a negative label")
    fault = lines[-1].replace(
        "ValueError: batch", "RuntimeError: HIP error: an illegal memory access was encountered: 7"
    )
    assert why(*lines[:-1], fault).cause == "gpu_fault"
