"""FLOPs per token: against published counts, and against what trainings print."""

from __future__ import annotations

import re
import statistics

import pytest

from madlite.backends.recipe_book import read_book
from madlite.measure.compute import active_weights, flops_per_token, visible_keys
from madlite.model import Architecture
from madlite.plan.place import load_architectures
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import LOGS
from tests.rows import each_row

# GFLOP per token, full and causal, as torchtitan's and Megatron's own formulas have them
GFLOP = {
    ("Llama-2-7B", 4096): (46.08, 42.86),
    ("Llama-2-70B", 4096): (444.49, 428.39),
    ("Llama-3.1-8B", 4096): (51.47, 48.25),
    ("Llama-3.1-8B", 8192): (57.91, 51.47),
    ("Llama-3.1-70B", 8192): (481.43, 449.22),
    ("Llama-3.1-405B", 8192): (2625.42, 2523.96),
    ("Qwen2.5-7B", 2048): (44.89, 43.65),
    ("Qwen2.5-72B", 2048): (444.86, 436.80),
    ("Mixtral-8x7B", 4096): (82.93, 79.71),
    ("DeepSeek-V2-lite", 4096): (18.11, 16.41),
    ("DeepSeek-V3-16B", 4096): (18.11, 16.41),
}
# billions of weights that a token meets, as the models' publishers say; they count the embedding, ours does not
ACTIVE = {
    "Llama-3.1-8B": (8.03, 128256 * 4096),
    "Llama-3.1-405B": (405.85, 128256 * 16384),
    "Qwen3-30B-A3B": (3.35, 151936 * 2048),
    "Qwen3-235B-A22B": (22.2, 151936 * 4096),
    "Mixtral-8x7B": (12.88, 32000 * 4096),
    "DeepSeek-V3": (37.55, 129280 * 7168),
    "GPT-OSS-120B": (5.71, 201088 * 2880),
    "Phi-4": (14.66, 100352 * 5120),
}
TINY = Architecture(name="tiny", layers=2, hidden=8, heads=2, ffn=16, vocab=10)


@each_row(("model", "seq_len"), GFLOP)
def test_a_token_takes_what_the_frameworks_count(model, seq_len):
    shape = load_architectures()[model]
    full, causal = GFLOP[model, seq_len]
    assert flops_per_token(shape, seq_len, "full") / 1e9 == pytest.approx(full, rel=5e-3)
    assert flops_per_token(shape, seq_len, "causal") / 1e9 == pytest.approx(causal, rel=5e-3)


@each_row("model", ACTIVE)
def test_the_active_weights_are_those_that_are_published(model):
    billions, embedding = ACTIVE[model]
    assert (active_weights(load_architectures()[model]) + embedding) / 1e9 == pytest.approx(billions, rel=5e-3)


def test_models_with_numbers_of_their_own_take_what_their_logs_say():
    # 38.56 MFLOP per token; a line has two decimals of TFLOP/s, so one line alone says little
    text = re.sub(r"\x1b\[[0-9;]*m", "", (LOGS / "torchtitan-0.2.2-debugmodel-1xH200.log").read_text())
    lines = re.findall(r"tps: ([\d,]+) +tflops: ([\d.]+)", text)
    told = statistics.median(float(tflops) * 1e12 / float(tps.replace(",", "")) for tps, tflops in lines)
    shape = read_book(Torchtitan.book).architectures["llama3-debugmodel"]
    assert flops_per_token(shape, 256, "full") / 1e6 == pytest.approx(38.56, rel=5e-3)
    assert flops_per_token(shape, 2048, "full") == pytest.approx(told, rel=5e-3)
    # the benchmark's mistral has a window of its own
    shape = read_book(PytorchFsdp.book).architectures["Mistral-7B"]
    assert flops_per_token(shape, 8192, "full") / 1e9 == pytest.approx(44.27, rel=5e-3)

    # some layers see all in spite of a window
    def scores(**more: int) -> float:
        shape = Architecture(name="w", layers=7, hidden=8, heads=2, ffn=16, vocab=10, window=4, **more)
        return flops_per_token(shape, 32, "full") - 6 * active_weights(shape)

    assert scores() == 12 * 8 * 7 * 4
    assert scores(full_every=3) == 12 * 8 * (2 * 32 + 5 * 4)  # the third and the sixth


def test_by_hand():
    layer = 2 * 8 * 4 * (2 + 2) + 3 * 8 * 16
    assert active_weights(TINY) == 2 * layer + 10 * 8
    assert flops_per_token(TINY, 16, "full") == 6 * (2 * layer + 80) + 12 * 2 * 8 * 16
    assert flops_per_token(TINY, 16, "causal") == 6 * (2 * layer + 80) + 6 * 2 * 8 * 16
    # frozen weights need no gradient of their own
    all_of_it, frozen = flops_per_token(TINY, 16, "full"), flops_per_token(TINY, 16, "full", frozen=True)
    assert all_of_it - frozen == 2 * active_weights(TINY)
    # a feed forward without gate has two matrices
    plain = Architecture(name="plain", layers=2, hidden=8, heads=2, ffn=16, vocab=10, gated=False)
    assert active_weights(TINY) - active_weights(plain) == 2 * 8 * 16
    # an expert that is not active costs nothing but its router
    few, many = (
        Architecture(
            name="moe", layers=3, hidden=8, heads=2, ffn=32, vocab=10, experts=experts, active_experts=2, expert_ffn=4,
            shared_ffn=6, dense_layers=1,
        )
        for experts in (4, 64)
    )  # fmt: skip
    assert active_weights(many) - active_weights(few) == 2 * 8 * 60
    attention, mixture = 4 * 8 * 8, 8 * 4 + 3 * 8 * (2 * 4 + 6)
    assert active_weights(few) == 3 * attention + 3 * 8 * 32 + 2 * mixture + 80
    # latent attention goes through its ranks
    shape = Architecture(
        name="mla", layers=1, hidden=8, heads=2, ffn=16, vocab=10, q_lora_rank=5, kv_lora_rank=3, qk_nope_head_dim=4,
        qk_rope_head_dim=2, v_head_dim=7,
    )  # fmt: skip
    query, key_value = 8 * 5 + 5 * 2 * 6, 8 * (3 + 2) + 3 * 2 * (4 + 7)
    assert active_weights(shape) == query + key_value + 2 * 7 * 8 + 3 * 8 * 16 + 80
    assert flops_per_token(shape, 100, "full") - 6 * active_weights(shape) == 6 * 2 * (6 + 7) * 100


@each_row(
    ("seq_len", "window", "attention", "keys"),
    [(100, 0, "full", 100), (100, 0, "causal", 50), (100, 10, "full", 10), (100, 10, "causal", 9.5)]
    + [(100, 100, "causal", 50), (100, 1000, "causal", 50), (100, 1000, "full", 100)],
)
def test_a_window_bounds_the_keys(seq_len, window, attention, keys):
    assert visible_keys(seq_len, window, attention) == keys
