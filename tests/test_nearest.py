"""Which known word a slip of the hand was meant for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from madlite.errors import did_you_mean, likeness, nearest_words
from tests.rows import each_row

PRECISIONS = ["FP32", "BF16", "FP16", "FP8", "MXFP8", "MXFP4"]
TAGS = ["jax_maxtext_train_mixtral-8x7b", "pyt_train_llama-3.1-8b", "mixtral", "llama"]
MODES = ["finetune_lora", "posttrain", "HF_pretrain", "pretrain", "finetune_fw"]


@given(st.text(max_size=12), st.text(max_size=12))
def test_a_likeness_is_a_part_and_that_of_a_word_with_itself_is_whole(one, other):
    assert 0 <= likeness(one, other) <= 1 == likeness(one, one)


@each_row(
    ("word", "known", "meant"),
    [
        ("pretrai", MODES, "pretrain"),
        ("pretarin", MODES, "pretrain"),
        ("postrain", MODES, "posttrain"),
        ("lora", MODES, "finetune_lora"),
        ("F8", PRECISIONS, "FP8"),
        ("BF61", PRECISIONS, "BF16"),
        ("mxpf8", PRECISIONS, "MXFP8"),
        ("posttraining", MODES, "posttrain"),
        ("finetunelora", MODES, "finetune_lora"),
        ("fw finetune", MODES, "finetune_fw"),
        ("llama3.1-8b", TAGS, "pyt_train_llama-3.1-8b"),
        ("llama318b", TAGS, "pyt_train_llama-3.1-8b"),
        ("pyt_tarin_llama", TAGS, "pyt_train_llama-3.1-8b"),
        ("train_mixtral-8x7b_jax", TAGS, "jax_maxtext_train_mixtral-8x7b"),
        ("llamas", TAGS, "llama"),
    ],
)
def test_the_word_with_the_fewest_slips_comes_first(word, known, meant):
    assert nearest_words(word, known)[0] == nearest_words(word, list(reversed(known)))[0] == meant


@each_row("word", ["inference", "int4", "zzzz", "x", "", "-", "p", "pr", "preview_of_all", "f" * 10_000])
def test_what_is_far_from_all_is_near_to_none(word):
    assert nearest_words(word, MODES) == [] and did_you_mean(word, MODES) == ""
