"""How a run can end."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """perf.csv's status."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"


class Cause(str, Enum):
    """Why a run is no SUCCESS."""

    NONE = ""
    BUILD = "build_failed"
    IMAGE = "image_missing"
    ENGINE = "engine_unreachable"
    DISK = "disk_full"
    PREPARE = "prepare_failed"
    EXIT_CODE = "exit_code"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    NO_METRIC = "no_metric"
    BAD_NUMBER = "bad_number"
    ERROR_PATTERN = "error_pattern"
    NAN_LOSS = "nan_loss"
    INCOMPLETE = "incomplete"
    GPUS = "too_few_gpus"
    SKIPPED_ARCH = "skip_gpu_arch"
    DEPRECATED = "deprecated"
    INTERNAL = "internal_error"
    HANG = "hang"
    CONFIG = "config_mismatch"
    GPU_MEMORY = "gpu_out_of_memory"
    HOST_MEMORY = "host_out_of_memory"
    COLLECTIVE = "collective_timeout"
    NETWORK = "network"
    GATED = "gated_repository"
    MISSING_REPOSITORY = "missing_repository"
    INODES = "inodes_full"
    BAD_OPTION = "bad_option"
    MISSING_FILE = "missing_file"
    MISSING_PACKAGE = "missing_package"
    PACKAGE_CONFLICT = "package_conflict"
    GPU_FAULT = "gpu_fault"
    PYTHON = "python_error"
    KILLED = "killed"
    CRASH = "crash"
