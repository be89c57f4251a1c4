"""Every backend that comes with madlite, with its cards, its logs and its pages, as subjects of the kit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from madlite.backends.loader import Plugins, load_plugins
from madlite.catalog.cards import read_cards
from madlite.model import Card
from madlite.testing import Subject
from tests.kit.extended import ExtendedSubject

ROOT = Path(__file__).parents[2]
LOGS, DATA = ROOT / "tests/data/logs", Path(__file__).with_name("data")
NO_BACKENDS = ("exports", "mlflow", "published", "trackio")  # plugins that bring exporters or references alone
OF_FORMATS = ("formats",)  # that bring readers of logs, tested in tests/plugins/test_formats.py
NAMES = sorted(
    entry.name
    for entry in entry_points(group="madlite")
    if entry.value.startswith("madlite_plugins.") and entry.name not in (*NO_BACKENDS, *OF_FORMATS)
)
IN_FULL = "torchtitan"  # in `make test` too, which takes a sample of the others
SMALL = 70_000  # bytes of a log that is quick to be read many times
FEW = 8  # plans of a sample

# how the names of a framework's logs begin; the real ones of GPUs are Primus's
_OWNERS = {
    "torchtitan-": "torchtitan",
    "megatron-lm-": "megatron_lm",
    "megatron-gpu-lines": "primus",
    "primus-": "primus",
    "pytorch-training-benchmark-": "pytorch_fsdp",
    "hf-": "hf",
    "torchtune-": "torchtune",
    "fluxbenchmark-": "flux",
    "dlrm-": "dlrm",
    "torchrun-": "torchrun",
    "mlperf-gpt3-": "mlperf_gpt3",
    "composer-tokens": "composer_tokens",
    **{
        f"{name.replace('_', '-')}-": name
        for name in ("maxtext", "nemo", "nanotron", "deepspeed", "composer", "mlperf")
    },
    **{
        f"{name.replace('_', '-')}-": name
        for name in ("nanogpt", "nanochat", "modded_nanogpt", "gpt_neox", "lightning")
    },
    **{f"{name.replace('_', '-')}-": name for name in ("sd_scripts", "diffusers", "llama_factory")},
    "llm.c-": "llm_c",
}
# steps of the training, counted with grep: numbers after `step:`, `iteration`, `Step N |`, dictionaries with a loss;
# of pytorch-training-benchmark windows of eight micro-steps
STEPS = {
    "megatron-gpu-lines.txt": 3,
    "hf-madlite-llama3.1_8B_lora-1xH200.log": 20,
    "hf-peft0.21-torchao0.14-conflict-FAIL.log": 0,
    "hf-trainer-peft-transformers4.50-cpu-notqdm.log": 10,
    "hf-trainer-peft-transformers5.17-8b-lora-1xH200-tqdm.log": 15,
    "hf-trainer-peft-transformers5.17-cpu-notqdm.log": 10,
    "hf-trainer-peft-transformers5.17-cpu-tqdm.log": 10,
    "megatron-lm-core0.16.1-gpt-cpu-1rank.log": 20,
    "megatron-lm-core0.16.1-gpt-cpu-loginterval5.log": 5,
    "megatron-lm-core0.16.1-gpt-cpu-nan-abort-FAIL.log": 1,
    "megatron-lm-rocm_dev-2b855baf-gpt-cpu-1rank.log": 20,
    "megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log": 12,
    "megatron-lm-rocm_dev-gpt-cpu-loginterval5.log": 4,
    "megatron-lm-rocm_dev-gpt-cpu-nan-abort-FAIL.log": 1,
    "megatron-lm-rocm_dev-gpt-cpu-nan-continue.log": 20,
    "fluxbenchmark-4eae48a-tinyflux-cpu.log": 12,
    "primus-main-megatron-small-cpu-1rank-tflops.log": 7,
    "primus-main-megatron-tiny-cpu-1rank.filesink-debug.log": 12,
    "primus-main-megatron-tiny-cpu-1rank.log": 12,
    "primus-main-megatron-tiny-cpu-2ranks.log": 8,
    "primus-main-primus-cli-container-dryrun.log": 0,
    "primus-main-primus-cli-direct-dryrun.log": 0,
    "primus-main-torchtitan0.2.2-debug-cpu-1rank.filesink-info.log": 20,
    "primus-main-torchtitan0.2.2-debug-cpu-1rank.log": 20,
    "primus-main-torchtitan0.2.2-debug-cpu-2ranks.log": 10,
    "primus-v26.4.0-megatron-tiny-cpu-1rank.log": 8,
    "primus-v26.5.1-megatron-tiny-cpu-1rank.log": 8,
    "pytorch-training-benchmark-927d18f-llama-tiny-cpu.log": 4,
    "torchtitan-0.1.0-bad-cli-option-FAIL.log": 0,
    "torchtitan-0.1.0-debugmodel-cpu-1rank.log": 20,
    "torchtitan-0.2.2-bad-option-2xH200-FAIL.log": 0,
    "torchtitan-0.2.2-cpu-2ranks-fsdp-gloo-premulsum-FAIL.log": 0,
    "torchtitan-0.2.2-cpu-crash-after-step1-FAIL.log": 1,
    "torchtitan-0.2.2-cpu-unpatched-FAIL.log": 0,
    "torchtitan-0.2.2-debugmodel-1xH200.log": 20,
    "torchtitan-0.2.2-debugmodel-cpu-1rank.log": 20,
    "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log": 12,
    "torchtitan-0.2.2-debugmodel-cpu-nanloss.log": 12,
    "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log": 25,
    "torchtitan-0.3.0-cpu-flexattention-FAIL.log": 0,
    "torchtitan-0.3.0-debugmodel-cpu-1rank.log": 20,
    "torchtitan-0.3.0-debugmodel-cpu-nanabort-FAIL.log": 2,
    "torchtitan-0.3.0-torch2.13-no-set_timeout-FAIL.log": 1,
    "torchtune-0.6.1-full-distributed-2rank-cpu.disklogger.txt": 12,
    "torchtune-0.6.1-full-singledevice-cpu-stdoutlogger.log": 8,
    "torchtune-0.6.1-full-singledevice-cpu.disklogger.txt": 20,
    "torchtune-0.6.1-full-singledevice-cpu.log": 20,
    "torchtune-0.6.1-lora-singledevice-cpu.disklogger.txt": 20,
}
# lines of a script's end, which no log of a CPU has; of a script that --set names
_MORE = {"megatron_lm": (DATA / "megatron-script-ends.txt",), "torchrun": (DATA / "own-script.jsonl",)}
_STEPS_OF_MORE = {"megatron-script-ends.txt": 0, "own-script.jsonl": 6}
_ASKS = {"torchrun": ({"script": "train.py", "step": r"at (?P<n>\d+) took (?P<step_time_ms>\S+)"},)}
_OUTPUTS = {"flux": (DATA / "flux",)}
_PAGES = {"script": ("docs/cards.md",)}


FORMATS = sorted(
    name for name, (_, plugin) in load_plugins(only_built_in=True).backends().items() if plugin.name == "formats"
)
"""Backends that read logs and run nothing."""
SURER = ("maxtext", "mlperf_gpt3", "composer_tokens")  # of these, whose logs another one knows, too


@cache
def plugins() -> Plugins:
    """Return madlite's own plugins."""
    return load_plugins(only_built_in=True)


@cache
def subject(name: str, *, whole: bool) -> Subject:
    """Return a backend as it is tested: `whole` with everything that it has, else with a sample."""
    backend, _ = plugins().backends()[name]
    cards = tuple(card for card in _cards(name) if card.backend == name or backend.claim(card, card.root))
    logs = {path: STEPS.get(path.name) for path in logs_of_frameworks(whole=whole) if owner(path) == name}
    logs |= {path: _STEPS_OF_MORE[path.name] for path in _MORE.get(name, ())}
    pages = _PAGES.get(name, (f"docs/backends/{name}.md", "docs/training-tags.md"))
    return ExtendedSubject(
        backend,
        cards,
        logs,
        outputs=_OUTPUTS.get(name, ()),
        docs=[ROOT / page for page in pages],
        asks=_ASKS.get(name, ()),
        most=None if whole else FEW,
    )


def _cards(name: str) -> Iterator[Card]:
    """Yield every card that madlite brings, of the backend `script` those of a small checkout."""
    folder = ROOT / "tests/data/minimad" if name == "script" else ROOT
    yield from read_cards((folder / "models.json").read_bytes(), "models.json", folder)
    for _, item in plugins().collect("madlite_cards", trees=()):
        if isinstance(item, Path) and name != "script":
            yield from read_cards(item.read_bytes(), str(item), item.parent)


def logs_of_frameworks(*, whole: bool) -> list[Path]:
    """Return real logs of frameworks, those that are quick to read unless all are wanted."""
    found = sorted(path for path in LOGS.iterdir() if path.suffix in (".log", ".txt"))
    return [path for path in found if whole or path.stat().st_size < SMALL]


def owner(path: Path) -> str:
    """Return the backend whose log a file of LOGS is, "" where it is nobody's."""
    return next((owner for begin, owner in _OWNERS.items() if path.name.startswith(begin)), "")
