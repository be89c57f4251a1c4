#!/usr/bin/env bash
# gpu_info.sh start|stop power|vram: sample every GPU in the background while a model runs.
#
# Run in the model's folder.  POWER_* or VRAM_* variables say how: DEVICE (all, or numbers with commas), SAMPLING_RATE
# (seconds between samples), MODE (power: watts, vram: percent), OUTPUT_FILE.  The result is a CSV file, a row per moment
# and a column per GPU.  The first of amd-smi, rocm-smi and nvidia-smi that tells something is asked; without one, or
# without a GPU, a line says so and nothing fails.
#
# The sampler ends when it is stopped, when the folder goes, and when what started it goes: the program that runs this
# session, or, in a container, everything that was not there before it.
set -u
export LC_ALL=C
PATH=$PATH:${ROCM_PATH:-/opt/rocm}/bin
SMI_LIMIT_S=20
QUIET_S=60 # in a container: so long without anybody else's process, and the run is over

action=${1-} tool=${2-}
case $tool in power | vram) ;; *) action= ;; esac
setting() { # setting NAME DEFAULT: the value of POWER_NAME or VRAM_NAME
  local name=${tool^^}_$1
  printf '%s' "${!name:-$2}"
}
device=$(setting DEVICE all)
rate=$(setting SAMPLING_RATE 0.1)
kind=$(setting MODE "$tool")
output=$(setting OUTPUT_FILE "gpu_info_${tool}_profiler_output.csv")
state=.gpu_info_$tool # holds the sampler's process id; without this file it ends

say() { echo "gpu_info $tool: $*"; }
fail() {
  say "$*" >&2
  exit 2
}

limited() {
  if command -v timeout >/dev/null; then timeout -k 1 "$SMI_LIMIT_S" "$@"; else "$@"; fi
}

ask() { # ask SMI: its table, as CSV with a heading
  case $1-$kind in
    amd-smi-power) limited amd-smi metric --power --csv ;;
    amd-smi-vram) limited amd-smi metric --mem-usage --csv ;;
    rocm-smi-power) limited rocm-smi --showpower --csv ;;
    rocm-smi-vram) limited rocm-smi --showmeminfo vram --csv ;;
    nvidia-smi-power) limited nvidia-smi --query-gpu=index,power.draw --format=csv,nounits ;;
    nvidia-smi-vram) limited nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv,nounits ;;
  esac </dev/null 2>/dev/null
}

# Print "GPU value" for each GPU that is wanted and has a value.  Columns are found by their names, which differ between
# versions; a second die or partition has no value of its own.
read_table() {
  awk -F ' *, *' -v kind="$kind" -v device="$device" '
    BEGIN { n = split(device, listed, /[ ,]+/); for (i = 1; i <= n; i++) wanted[listed[i]] = 1 }
    { sub(/\r$/, ""); sub(/^ +/, ""); sub(/ +$/, "") }
    tolower($1) ~ /^(gpu|device|index)$/ {
      power = used = total = 0
      for (i = NF; i > 1; i--) {
        name = tolower($i)
        if (name ~ /power/ && name !~ /limit|cap|management|max/) power = i
        if (name ~ /used/) used = i
        else if (name ~ /total/) total = i
      }
      next
    }
    $1 ~ /^(card|gpu)?[0-9]+$/ {
      id = $1
      sub(/^[a-z]+/, "", id)
      if (id in seen || !("all" in wanted || id in wanted)) next
      if (kind == "power" && power && $power ~ /^[0-9.]+$/) value = $power
      else if (kind == "vram" && used && total && $used ~ /^[0-9.]+$/ && $total + 0 > 0)
        value = sprintf("%.2f", 100 * $used / $total)
      else next
      seen[id] = 1
      print id, value
    }'
}

sample() { # sample SMI: fill value[GPU]
  local id number
  value=()
  while read -r id number; do value[id]=$number; done < <(ask "$1" | read_table)
}

now() {
  local seconds fraction=${EPOCHREALTIME-}
  printf -v seconds '%(%Y-%m-%d %H:%M:%S)T' "${fraction%.*}"
  [ -n "$fraction" ] && fraction=${fraction#*.} || printf -v seconds '%(%Y-%m-%d %H:%M:%S)T' -1
  printf '%s.%s' "$seconds" "${fraction:-000000}"
}

row() {
  local id line
  line=$(now)
  for id in "${gpus[@]}"; do line+=,${value[id]-}; done
  printf '%s\n' "$line"
}

look() { # look PID: its state, parent, session and start, from /proc/PID/stat
  local line
  read -r line 2>/dev/null <"/proc/$1/stat" || return 1
  read -r -a line <<<"${line##*) }"
  state_of=${line[0]} parent=${line[1]} session=${line[3]} begun=${line[19]}
}

lives() { # say whether a process is there and no zombie
  look "$1" && [ "$state_of" != Z ]
}

over() { # say whether nobody waits for samples any more
  [ -e "$state" ] || return 0
  if [ "$owner" -gt 1 ]; then
    ! lives "$owner" || [ "$begun" != "$owner_begun" ]
    return
  fi
  [ $((SECONDS - looked)) -ge 5 ] || return 1
  looked=$SECONDS
  local entry
  for entry in /proc/[0-9]*; do
    case $before in *" ${entry#/proc/} "*) continue ;; esac
    if lives "${entry#/proc/}" && [ "$session" != "$own" ]; then
      quiet_since=$SECONDS
      return 1
    fi
  done
  [ $((SECONDS - quiet_since)) -ge "$QUIET_S" ]
}

run_sampler() { # run_sampler SMI, until it is over
  local waiting=
  trap 'kill $waiting 2>/dev/null; rm -f "$state"; exit 0' TERM INT HUP
  while ! over; do
    sleep "$rate" &
    waiting=$!
    wait "$waiting"
    waiting=
    sample "$1"
    [ ${#value[@]} -eq 0 ] || row >>"$output" || break
  done
  rm -f "$state"
}

find_owner() { # the program that runs this session: 0 where it is outside of this container or its leader has ended
  owner=0
  look "$$" && own=$session
  look "$own" && owner=$parent
  owner_begun=
  [ "$owner" -le 1 ] || { look "$owner" && owner_begun=$begun; }
  before=" $(cd /proc && echo [0-9]*) " looked=$SECONDS quiet_since=$SECONDS
}

start() {
  local smi pid
  [[ $rate =~ ^[0-9]+(\.[0-9]+)?$|^\.[0-9]+$ ]] || fail "SAMPLING_RATE '$rate' is no number of seconds"
  [[ $kind == power || $kind == vram ]] || fail "MODE '$kind' is neither power nor vram"
  [[ $(setting DUAL_GCD false) != true ]] || say "DUAL_GCD has no effect: the model runs once"
  if [ -e "$state" ] && read -r pid <"$state" && lives "$pid"; then
    say "is sampling already"
    return
  fi
  for smi in amd-smi rocm-smi nvidia-smi; do
    command -v "$smi" >/dev/null && sample "$smi" && [ ${#value[@]} -gt 0 ] && break
  done
  if [ ${#value[@]} -eq 0 ]; then
    say "none of amd-smi, rocm-smi and nvidia-smi tells the $kind of a GPU (DEVICE $device) here: nothing is sampled"
    return
  fi
  gpus=("${!value[@]}")
  { printf 'time' && printf ",$column%s" "${gpus[@]}" && echo && row; } >"$output" || fail "$output cannot be written"
  find_owner
  : >"$state"
  run_sampler "$smi" </dev/null >/dev/null 2>&1 &
  echo "$!" >"$state"
  say "samples GPU ${gpus[*]} every $rate s by $smi into $output"
}

stop() {
  local pid=
  if [ -e "$state" ]; then
    read -r pid <"$state"
    rm -f "$state"
    kill "$pid" 2>/dev/null
    for _ in {1..50}; do
      lives "$pid" || break
      sleep 0.1
    done
    ! lives "$pid" || kill -KILL "$pid" 2>/dev/null
  fi
  if [ -e "$output" ]; then say "$(($(wc -l <"$output") - 1)) samples in $output"; else say "nothing was sampled"; fi
}

value=() gpus=() column="Power(Watt) GPU"
[ "$kind" = power ] || column="vram(%%) GPU"
case $action in
  start) start ;;
  stop) stop ;;
  *) fail "usage: gpu_info.sh start|stop power|vram" ;;
esac
