"""Lines by which the benchmark, and what it is built on, says why it failed."""

from __future__ import annotations

from madlite import FailureRule

RULES = (
    FailureRule(
        pattern=r"madlite: neither \S+ nor \S+ has a launcher\.py",
        cause="missing_file",
        hint="run in the release's image (docker), or name a copy: --set env.FLUX_BENCHMARK_ROOT=FOLDER",
    ),
    FailureRule(
        pattern=r"madlite: \S+ has no --[\w-]+, so \w+ cannot be set here",
        cause="bad_option",
        hint="this release's benchmark takes no such value: leave the setting out, or a later --image-release",
    ),
    FailureRule(
        pattern=r"Neither NVIDIA nor AMD GPU tools are available|madlite: neither rocm-smi nor nvidia-smi works",
        cause="missing_tool",
        hint="the benchmark asks rocm-smi or nvidia-smi whose GPUs these are: run it in its image, on a GPU",
    ),
    FailureRule(
        pattern=r"No module named '?distutils\b|madlite: \S+ has no distutils",
        cause="missing_package",
        hint="Python 3.12 has no distutils: use Python 3.10 or 3.11, or install setuptools beside it",
    ),
    FailureRule(
        pattern=r"No module named '?(?:deepspeed|diffusers|hydra|omegaconf|flatten_dict|dotenv|zarr|xarray)\b",
        cause="missing_package",
        hint="the benchmark's requirements are not all here: run in its image, or --set install_requirements=true",
    ),
    FailureRule(
        pattern=r"Could not override '|Key '[^']*' is not in struct|Could not find '?(?:train_args|config)/",
        cause="bad_option",
        hint="this launcher knows no such key: --set extra='name=value' adds one to train.py's arguments",
    ),
    FailureRule(
        pattern=r"Activation/Gradient checkpointing is only available for FSDP",
        cause="bad_option",
        hint="leave gradient_checkpointing out, or let accelerate's configuration be FSDP's",
    ),
    FailureRule(
        pattern=r"num_frames=\d+ is longer than input video length",
        cause="bad_option",
        hint="a smaller --set num_frames=, or --set env.PAD_VIDEOS_TO_NUM_FRAMES=true",
    ),
)
