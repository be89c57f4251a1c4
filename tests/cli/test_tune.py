"""`madlite tune --dry-run`: what the built-in backends declare, on machines that are not here."""

from __future__ import annotations

from madlite.cli.main import call
from madlite.cli.setup import make_options
from tests.rows import each_row

LATER = "; later, where the budget leaves room"
TITAN = ("pyt_train_llama-3.1-8b", "--mode", "pretrain", "--precision", "BF16")


@each_row(
    ("words", "lines"),
    [
        (
            (*TITAN, "--machine", "8xH200"),
            [
                "micro_batch  2 by default; any that fits",
                "activation_checkpoint  selective by default; none, 16, 8, 4, 2, memory_budget, selective, full",
                f"reshard  default by default; default, never{LATER}",
                f"dp_replicate  1 by default; 1, 2{LATER}",
            ],
        ),
        # with as many replicas as GPUs nothing is sharded, and torchtitan computes in another mixed precision
        ((*TITAN, "--machine", "2xH200"), ["dp_replicate  left alone: only with 4 GPUs or more"]),
        ((*TITAN, "--machine", "1xH200"), ["reshard  left alone: only with 2 GPUs or more"]),
        (
            ("primus_pyt_megatron_lm_train_llama-3.1-70b", "--precision", "BF16", "--machine", "8xMI300X"),
            ["recompute_layers  80 by default; 0, 20, 40, 60, 80"],
        ),
        (
            ("pyt_megatron_lm_train_qwen2.5-7b", "--precision", "BF16", "--machine", "8xMI300X"),
            [
                "recompute_activations  unset by default; unset, none, sel, full",
                f"use_flash_attn  unset by default; unset, 0{LATER}",
                "nvte_fused_attn_ck  left alone: this run has no such setting",
            ],
        ),
        (
            ("pyt_megatron_lm_train_mixtral-8x7b", "--machine", "8xMI300X"),
            ["ac  none by default; none, sel", f"nvte_fused_attn_ck  unset by default; unset, 0{LATER}"],
        ),
        (("pyt_train_flux", "--machine", "8xMI300X"), [f"flash_attention  unset by default; unset, false{LATER}"]),
        (
            ("demo_hf_lora_tiny", "--machine", "2xH200"),
            [
                f"attention  sdpa by default; sdpa, flash_attention_2, flex_attention{LATER}",
                f"compile  false by default; false, true{LATER}",  # it takes minutes
            ],
        ),
    ],
)
def test_what_may_be_changed_of_a_tag(words, lines, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["tune", *words, "--dry-run"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert set(lines) <= set(out), out[:12]
    assert not [*tmp_path.iterdir()]


def test_a_run_that_would_not_start_is_told_with_its_reason(capsys):
    assert call(["tune", "pyt_train_flux", "--machine", "8xH100", "--dry-run"]) == 4
    said = capsys.readouterr().err
    assert "pyt_train_flux would not start: no recipe is known for pyt_train_flux on H100" in said
    assert "nearest known: posttrain BF16 on MI300X" in said


@each_row("words", [("--profile",), ("--set", "profile=true")])
def test_the_first_run_is_previewed_as_it_is_made_profiled_and_not_ended_early(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["tune", "demo_hf_lora_tiny", "--machine", "1xH200", *words, "--dry-run"]
    assert call(command) == 0
    assert "profile/sitecustomize.py" in capsys.readouterr().out
    assert call([*command, "--set", "until=1%"]) == 4
    told = capsys.readouterr().err
    assert "cannot be profiled: a run that ends early (--until)" in told and "--set profile=false" in told


def test_a_tuning_that_keeps_the_global_batch_is_another_one(tmp_path, monkeypatch):
    """Also where the plan of its default is the same, of which the batch is set."""
    requests = []

    def keep_request(plugins, params, plan):
        search = plan(plugins, make_options(params, True)).search
        requests.append(search.request)
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("madlite.cli.run.run_study", keep_request)
    for words in ((), ("--keep-global-batch",)):
        assert call(["tune", *TITAN, "--machine", "8xH200", "--dry-run", "--set", "global_batch=16", *words]) == 0
    assert requests[0] != requests[1]
