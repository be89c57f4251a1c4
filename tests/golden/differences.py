"""Every difference from madengine that the scenarios show and that is meant, under its row of docs/differences.md.

Each line: version and scenario where it shows, the fact, madlite's side of it, the start of the row.
"""

from __future__ import annotations

from tests.golden.compare import Declared

RUNS_LEFT = "folder `madlite_runs`"
MARKS = "a container's environment"
NAMES = "names of containers and logs"
VERSION_2 = "variables of the container"
SIDE_FILES = "files beside perf.csv"
NOT_STARTED = "SKIPPED, failed build, no Dockerfile, too few GPUs"
TAGS = {"two2": "`--tags a --tags b`", "comma": "`--tags a,b`"}
MULTI = "results file that is missing, or lies in the model's folder"
NO_METRIC = "results file without `metric` column, all results blank"

DECLARED: tuple[Declared, ...] = (
    # every run
    Declared("*", "*", "files.madlite_runs", "there", RUNS_LEFT),
    Declared("*", "*", "containers.*.init", "True", "container's main process"),
    Declared("*", "*", "containers.*.env.MADLITE_RUN_ID", r"\d{8}T\d{6}-[-a-z0-9]+", MARKS),
    Declared("*", "*", "containers.*.env.GIT_CONFIG_*", r"1|safe\.directory|\*", MARKS),
    Declared("*", "*", "files.*_env|files.*_env.csv", "", "snapshot of the environment"),
    Declared("v2", "*", "columns.configs", "", "column `configs`"),
    Declared("v2", "runner", "containers.1.env.MAD_MULTI_NODE_RUNNER", "torchrun .*=2", "MAD_MULTI_NODE_RUNNER"),
    # version 1 as a whole
    Declared("v1", "*", "containers.*.name", "container_ci-.*", NAMES),
    Declared("v1", "*", "files.*.build.live.log|files.*.run.live.log", "there", NAMES),
    Declared("v1", "*", "builds.*.args.MAD_SYSTEM_GPU_PRODUCT_NAME", "", "build argument MAD_SYSTEM_GPU_PRODUCT_NAME"),
    Declared("v1", "*", "containers.*.env.MAD_MULTI_NODE_RUNNER", "torchrun --standalone .*", VERSION_2),
    Declared("v1", "*", "containers.*.env.MAD_GUEST_OS", "UBUNTU", VERSION_2),
    Declared("v1", "*", "containers.*.env.ROCM_PATH", "/opt/rocm", VERSION_2),
    Declared("v1", "*", "containers.*.env.MAD_OUTPUT_CSV", r".*\.csv", VERSION_2),
    Declared("v1", "*", "files.perf_super.*|files.perf_entry_super.*|files.perf_entry.*", "there", SIDE_FILES),
    Declared("v1", "*", "files.build_manifest.json", "there", SIDE_FILES),
    Declared("v1", "*", "files.*.html", "", "`perf.html`"),
    Declared("v1", "noargs|skiprun", "rows|files.perf.csv", "", "perf.csv without a row"),
    Declared("v1", "*", "rows.*.test_duration", "0", "cells of a failed run"),
    Declared("v1", "dummy_gpubind|buildfail|nodocker", "rows.0.build_number", "0", "cells of a failed run"),
    Declared("v1", "dummy_gpubind|buildfail|nodocker", "rows.0.machine_name", ".+", "cells of a failed run"),
    Declared("v1", "x_dir", "rows.0.n_gpus", "2", "n_gpus of a row"),
    Declared("v1", "x_dir", "rows.0.metric", "dir_ok", "words after the metric"),
    Declared("v1", "dummy_prof", "rows.0.metric", "", "words after the metric"),
    Declared("v1", "x_two_perf", "rows.0.performance", "1", "several performance lines"),
    Declared("v1", "x_two_perf", "rows.0.metric", "a", "several performance lines"),
    Declared("v1", "x_err", "rows.0.status", "FAILURE", "error patterns in the log"),
    Declared("v1", "dollar", "containers.0.steps", r"\['x_args.sh --v incontainer'\]", "`$NAME` in a card's args"),
    Declared("v1", "ctxjson", "rows", "dummy_ctxtest", "context in JSON"),
    Declared("v1", "ctxjson", "builds|containers", "ci-dummy_ctxtest_dummy_ctxtest.ctx1.ubuntu.amd", "context in JSON"),
    Declared("v1", "ctxjson", "files.perf.csv|files.dummy_ctxtest*.live.log", "there", "context in JSON"),
    Declared("v1", "img", "rows.0.docker_file", r"N/A \(local image mode\)", "row of an image that was not built"),
    Declared("v1", "img", "files.dummy_dummy.ubuntu.amd.live.log", "", NAMES),
    # tags
    *(Declared("v1", name, "rows", "x_fail dummy", row) for name, row in TAGS.items()),
    *(Declared("v1", name, "builds|containers", "ci-x_fail_.* ci-dummy_.*", row) for name, row in TAGS.items()),
    *(Declared("v1", name, "files.perf.csv|files.*.live.log", "there", row) for name, row in TAGS.items()),
    Declared("v2", "dupargs", "rows", "x_args x_args x_args", "a card twice, with other arguments"),
    Declared("v2", "dupargs", "containers", "(ci-x_args_dummy.ubuntu.amd ?){3}", "a card twice, with other arguments"),
    # images
    Declared("*", "img", "files.dummy_rocm_pytorch_latest.live.log", "there", NAMES),
    Declared("v2", "two|envprec|envprec2|arch|useimg", "files.*.live.log", "there", NAMES),
    Declared("*", "img", "rows.0.docker_sha", "sha256:.*", "docker_sha"),
    Declared("v2", "useimg", "rows.0.docker_sha", "sha256:.*", "docker_sha"),
    Declared("v2", "nv1", "rows.0.docker_file|rows.0.docker_image|builds.0.*|containers.0.*", ".*nvidia.*",
             "Dockerfile of another vendor"),
    Declared("v2", "nv1", "rows.0.base_docker", "nvidia/.*", "Dockerfile of another vendor"),
    Declared("v2", "nv1", "files.dummy_dummy.ubuntu.*", "(there)?", "Dockerfile of another vendor"),
    Declared("v2", "nv1|nv2", "builds.0.args.MAD_SYSTEM_GPU_ARCHITECTURE", "NVIDIA H100 80GB HBM3",
             "architecture as a build argument"),
    # runs that did not start
    Declared("*", "dummy_gpubind", "builds", "", "image of a run that cannot start"),
    Declared("*", "dummy_gpubind", "rows.0.build_duration|rows.0.docker_sha", "", "image of a run that cannot start"),
    Declared("*", "dummy_gpubind", "files.*.live.log", "", "image of a run that cannot start"),
    Declared("v2", "dummy_skip_gpu_arch", "rows", "dummy_skip_gpu_arch", NOT_STARTED),
    Declared("v2", "dummy_skip_gpu_arch", "builds|files.*.build.live.log", "", "image of a run that cannot start"),
    Declared("v2", "buildfail", "rows", "dummy", NOT_STARTED),
    Declared("v2", "nodocker", "rows", "x_nodocker", NOT_STARTED),
    Declared("v2", "dummy_gpubind|dummy_skip_gpu_arch|buildfail|nodocker|x_multi_nometric",
             "files.perf.csv|files.perf_entry*|files.perf_super.*", "there", NOT_STARTED),
    Declared("v2", "buildfail", "files.dummy_dummy.ubuntu.amd.run.live.log|files.dummy_dummy.ubuntu.amd.live.log",
             "there", NAMES),
    Declared("v1", "dep", "rows", "x_dep", "deprecated cards"),
    Declared("v2", "dep", "rows.0.status", "SKIPPED", "deprecated cards"),
    Declared("v2", "dep", "rows.0.*|builds|containers|files.*.live.log|files.perf_super.*", "", "deprecated cards"),
    # results files
    Declared("v1", "x_multi_missing|x_multi_nometric", "rows.0.performance", "", MULTI),
    Declared("*", "x_multi_missing|x_multi_nometric", "files.common_info.json", "", SIDE_FILES),
    Declared("v1", "x_multi_nocopy", "rows.0.model", "x_multi_nocopy_a", MULTI),
    Declared("v1", "x_multi_nocopy", "rows.0.*", "3|u|SUCCESS", MULTI),
    Declared("v1", "x_multi_nocopy", "files.xmnc.csv", "there", MULTI),
    Declared("v2", "x_multi_allblank", "rows.0.model", "x_multi_allblank_a", NO_METRIC),
    Declared("v2", "x_multi_allblank", "rows.0.metric", "tok/s", NO_METRIC),
    Declared("v2", "x_multi_allblank", "files.common_info.json", "there", NO_METRIC),
    Declared("v2", "x_multi_nometric", "rows", "x_multi_nometric", NO_METRIC),
    Declared("*", "stale", "rows", "dummy_multi_1 dummy_multi_2 dummy_multi_3 dummy_multi_4 dummy_multi",
             "a left-over results file"),
    # what stays behind, and scripts around the model
    Declared("*", "dummy_torchrun_helper|x_fail|x_perf_then_fail|prepost", "files.run_directory", "",
             "folder of a model that failed"),
    Declared("*", "accum", "containers.*.steps", r"\['test_echo.sh pre_script A', 'cmd_A', 'run.sh', 'test_echo.sh "
             r"post_script A'\]", "post-scripts of several models"),
    # flags and manifests
    Declared("v2", "cleanup", "files.perf_entry*", "", "`--cleanup-perf`"),
    Declared("v2", "manout", "files.build_manifest.json", "", "`--manifest-output` of a run"),
    Declared("v2", "manout", "files.other.json", "there", "`--manifest-output` of a run"),
    Declared("v2", "envprec", "containers.0.env.AAA", "run", "context of a build and of its run"),
)  # fmt: skip
