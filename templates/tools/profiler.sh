#!/usr/bin/env bash
# profiler.sh check|run|collect PROFILER …: profile a model's GPUs with what the image has.
#
# check PROFILER                  before the model: fails, and says what is missing, where the profiler is not here
# run PROFILER OPTION… -- COMMAND run the command under it; its result goes to <profiler>_output/ of this folder
# collect PROFILER                after the model: bring that folder to the working folder, which is the parent
#
# PROFILER is rocprof (rocprofv3 where there is one, else the old rocprof), rocprof_v1 (the old one first, as version 1 of
# madengine has it), rocprofv3, rpd or rocm_trace_lite.
set -u
PATH=$PATH:${ROCM_PATH:-/opt/rocm}/bin
RUNS=madlite_runs # a folder below it is a run's own: what is made there stays there

action=${1-} profiler=${2-}
shift 2 2>/dev/null || set --

say() { echo "profiler: $*"; }
fail() {
  echo "profiler: error: $*" >&2
  exit 2
}

case $profiler in
  rocprof | rocprof_v1 | rocprofv3) output=rocprof_output ;;
  rpd | rocm_trace_lite) output=${profiler}_output ;;
  *) fail "there is no profiler '$profiler'" ;;
esac

has() { command -v "$1" >/dev/null 2>&1; }
has_module() { has python3 && python3 -c "import $1" >/dev/null 2>&1; }
missing() { fail "$1 is not in this image: use one that has it ($2), or run without the tool"; }

check_rocprof() {
  has rocprofv3 || { [ "$profiler" != rocprofv3 ] && has rocprof; } ||
    missing "$profiler" "ROCm's rocprofiler-sdk brings rocprofv3; looked for in PATH and ${ROCM_PATH:-/opt/rocm}/bin"
}

check_rpd() {
  has runTracer.sh || missing runTracer.sh "make install of ROCm/rocmProfileData brings it"
  # where the tracer makes its file with Python and cannot, it ends without running the command, with exit code 0
  if grep -q rocpd.schema "$(command -v runTracer.sh)" && ! has_module rocpd.schema; then
    missing "Python's module rocpd" "make install of ROCm/rocmProfileData brings it"
  fi
}

has_lite() { has rtl || has_module rocm_trace_lite; }

check_lite() {
  has_lite && return
  if [ -n "${ROCM_TRACE_LITE_WHEEL_URL-}" ]; then # it may hold a password: said nowhere
    python3 -m pip install --quiet -- "$ROCM_TRACE_LITE_WHEEL_URL" >/dev/null 2>&1
    has_lite && return
    fail "rocm-trace-lite could not be installed from ROCM_TRACE_LITE_WHEEL_URL"
  fi
  missing rocm-trace-lite "or set ROCM_TRACE_LITE_WHEEL_URL, which is installed then"
}

check() {
  case $profiler in
    rocprof*) check_rocprof ;;
    rpd) check_rpd ;;
    rocm_trace_lite) check_lite ;;
  esac
}

# Split what is given into options=() and command=(): at the first --, else before the first word that is no option.
split() {
  local word has_end=
  options=() command=()
  for word in "$@"; do [ "$word" = -- ] && has_end=1; done
  while [ $# -gt 0 ]; do
    case $1 in
      --)
        shift
        break
        ;;
      -*) ;;
      *) [ -n "$has_end" ] || break ;;
    esac
    options+=("$1")
    shift
  done
  command=("$@")
}

given() { # given OPTION…: whether one of them is among the options
  local one word
  for word in ${options[@]+"${options[@]}"}; do
    for one in "$@"; do [ "$word" = "$one" ] && return 0; done
  done
  return 1
}

run_rocprof() {
  if has rocprofv3 && ! { [ "$profiler" = rocprof_v1 ] && has rocprof; }; then
    [ ${#options[@]} -gt 0 ] || options=(--kernel-trace) # the old one's own choice
    given -d --output-directory || options+=(-d "$output")
    exec rocprofv3 ${options[@]+"${options[@]}"} -- "${command[@]}"
  fi
  # the old one knows fewer options; its HIP trace is what comes nearest to the trace of a runtime
  exec rocprof ${options[@]+"${options[@]/#--runtime-trace/--hip-trace}"} -o "$output/results.csv" "${command[@]}"
}

run_lite() {
  local lite=(rtl)
  has rtl || lite=(python3 -m rocm_trace_lite.cli)
  if [ -n "${RTL_MODE-}" ]; then
    if "${lite[@]}" trace --help 2>&1 | grep -q -e --mode; then
      options+=(--mode "$RTL_MODE")
    else
      say "this rocm-trace-lite has no modes: RTL_MODE=$RTL_MODE has no effect" >&2
    fi
  fi
  exec "${lite[@]}" trace ${options[@]+"${options[@]}"} -o "$PWD/$output/trace.db" "${command[@]}"
}

run() {
  split "$@"
  [ ${#command[@]} -gt 0 ] || fail "no command to run"
  check
  mkdir -p -- "$output" || exit 2
  case $profiler in
    rocprof*) run_rocprof ;;
    rpd) exec runTracer.sh ${options[@]+"${options[@]}"} -o "$PWD/$output/trace.rpd" "${command[@]}" ;;
    rocm_trace_lite) run_lite ;;
  esac
}

# Bring what rocprof wrote beside the folder, where a command of one's own named no folder, into it: results.*, and
# rocprofv3's <host>/<pid>_…; the model's own results file and folders (a trainer's all_results.json) stay.
gather_rocprof() {
  local one
  for one in results.* */; do
    case $one in "$output/" | 'results.*' | '*/' | "${MAD_OUTPUT_CSV-}") continue ;; esac
    if [ -f "$one" ] || compgen -G "${one}[0-9]*_results.*" >/dev/null ||
      compgen -G "${one}[0-9]*_trace.csv" >/dev/null; then
      mv -- "$one" "$output/"
    fi
  done
  # one table of each kind under the name that MAD's tooling reads, the largest where several processes wrote one
  for one in agent_info domain_stats kernel_stats kernel_trace hip_api_trace counter_collection; do
    local table
    table=$(find "$output" -type f -name "*_$one.csv" -printf '%s %p\n' | sort -rn | head -n 1)
    if [ -n "$table" ] && [ ! -e "$output/rocprofv3_output_$one.csv" ]; then
      cp -- "${table#* }" "$output/rocprofv3_output_$one.csv"
    fi
  done
}

gather_rpd() {
  [ -s "$output/trace.rpd" ] || return 0
  if has rpd2tracing.py; then
    rpd2tracing.py "$output/trace.rpd" "$output/trace.json" || say "trace.rpd could not be converted to trace.json"
  fi
}

collect() {
  mkdir -p -- "$output" || exit 2
  case $profiler in
    rocprof*) gather_rocprof ;;
    rpd) gather_rpd ;;
  esac
  [ -n "$(ls -A -- "$output")" ] || {
    say "nothing was recorded in $output/"
    return
  }
  local parent=${PWD%/*} place=$output
  if [ "${parent##*/}" != "$RUNS" ]; then
    mkdir -p -- "../$output" && cp -R -- "$output/." "../$output/" || exit 2
    chmod -R a+rwX -- "../$output"
    place=../$output
  fi
  say "$(find "$output" -type f | wc -l) files in $place/"
}

case $action in
  check) check ;;
  run) run "$@" ;;
  collect) collect ;;
  *) fail "usage: profiler.sh check|run|collect PROFILER" ;;
esac
