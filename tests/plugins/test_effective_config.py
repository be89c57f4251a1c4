"""What a trainer's own log says of its configuration, by names that plans can be compared by."""

from __future__ import annotations

from madlite.model import EffectiveConfig
from madlite_plugins.flux.reader import FluxReader
from madlite_plugins.primus.reader import PrimusReader
from madlite_plugins.torchtitan.reader import TorchtitanReader
from madlite_plugins.torchtune.reader import TorchtuneReader
from tests.plugins.logs import read
from tests.rows import each_row

TITAN = "[rank0]:[titan] 2026-11-21 00:58:05,649 - root - INFO - "
PRIMUS = "[20261121 00:19:08][rank-0/8][INFO]     [---module_utils.py:256] :   "
TUNE = "Running FullFinetuneRecipeDistributed with resolved config:"


def told(reader, *texts: str) -> dict[str, str]:
    found = [event.values for event in read(reader, *texts) if isinstance(event, EffectiveConfig)]
    return {key: text for values in found for key, text in values.items()}


@each_row(
    ("line", "world", "degrees"),
    [
        (
            "pp=2, dp_replicate=1, dp_shard=8, cp=2, tp=4, ep=8, etp=1",
            "128",
            {"pp": "2", "cp": "2", "tp": "4", "ep": "8"},
        ),
        ("pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=1, ep=1", "8", {"dp_replicate": "2", "dp_shard": "4"}),
    ],
)
def test_torchtitan_s_mesh_has_its_ranks_and_degrees(line, world, degrees):
    found = told(TorchtitanReader(), f"{TITAN}Building device mesh with parallelism: {line}")
    assert found["world_size"] == world and degrees.items() <= found.items()


@each_row(
    ("line", "expected"),
    [
        ("Building 0-D device mesh with [], []", {"world_size": "1"}),
        ("Building 1-D device mesh with ['dp_shard'], [8]", {"world_size": "8", "dp_shard": "8"}),
        ("Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]", {"world_size": "8", "dp_shard": "4", "tp": "2"}),
        (
            "Building 3-D device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep', 'tp'], [2, 4, 2]",
            {"world_size": "16", "tp": "2"},
        ),
    ],
)
def test_the_mesh_of_an_early_torchtitan_names_what_is_above_1(line, expected):
    assert told(TorchtitanReader(), TITAN + line) == expected


@each_row(
    "line",
    [
        "Float8 tensorwise scaled training active",
        "Float8 training active with recipe rowwise",
        "Swapped to Float8Linear layers",
        "Swapped to FP8Linear layers",
        "Converted MoE layers matching FQNS ['experts'] to use dynamic float8 rowwise quantization with scaled",
    ],
)
def test_torchtitan_says_where_it_trains_in_fp8(line):
    assert told(TorchtitanReader(), TITAN + line) == {"precision": "FP8"}


def test_torchtitan_names_its_model_and_a_gpu_without_fp8_that_trains_in_bf16():
    found = told(TorchtitanReader(), TITAN + "Model llama3 8B size: 8,030,261,248 total parameters")
    assert found == {"family": "llama3", "flavor": "8B"}
    line = "Failed to swap to Float8Linear because float8 is only supported on SM89 or later"
    assert told(TorchtitanReader(), TITAN + line) == {"precision": "BF16"}


def test_torchtune_s_precision_is_its_dtype_s_unless_linear_layers_are_fp8():
    assert told(TorchtuneReader(), TUNE, "dtype: bf16")["precision"] == "BF16"
    assert told(TorchtuneReader(), TUNE, "dtype: bf16", "enable_fp8_training: false")["precision"] == "BF16"
    assert told(TorchtuneReader(), TUNE, "dtype: bf16", "enable_fp8_training: true")["precision"] == "FP8"


@each_row(("word", "precision"), [("bf16", "BF16"), ("'fp16'", "FP16"), ("no", "FP32")])
def test_flux_s_launcher_says_the_precision(word, precision):
    assert told(FluxReader(), f"  mixed_precision: {word}") == {"precision": precision}
    assert told(FluxReader(), f"loaded with mixed_precision: {word}", "  mixed_precision: int8") == {}


def test_primus_says_degrees_and_precision():
    lines = (
        "bf16 : True (bool)",
        "fp16 : False (bool)",
        "fp8 : hybrid (str)",
        "parallelism.tensor_parallel_degree : 8 (int)",
    )
    found = told(PrimusReader(), *(PRIMUS + line for line in lines))
    assert (found["precision"], found["tp"]) == ("FP8", "8")
    again = told(
        PrimusReader(),
        *(PRIMUS + line for line in ("bf16 : True (bool)", "fp16 : False (bool)", "fp8 : None (NoneType)")),
    )
    assert again == {"precision": "BF16"}
    assert told(PrimusReader(), PRIMUS + "disable_bf16 : True (bool)", PRIMUS + "no_fp8 : x (str)") == {}
