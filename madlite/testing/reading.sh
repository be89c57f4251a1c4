#!/usr/bin/env bash
# shellcheck disable=SC2218,SC2119,SC2120,SC2059,SC2104,SC1090,SC2034 # functions in the places of builtins
# reading.sh SCRIPT NOTES straight|inverted ALIVE SECONDS: source ./kit_source_SCRIPT with every program taken away, and
# note the words of its commands: each with a zero byte behind it, \1 behind the last, \5 for the end of a line.
# words.py has more about it.
BASH_COMPAT=4.3 # `break` in a function leaves its caller's loop, as in any bash before 4.4
script=$1 way=$3 alive=$4 seconds=$5
exec 198>&1 199>"$2" >/dev/null 2>&1 # 198 tells the caller when the last process has gone
ulimit -c 0
ulimit -f 32768 # KiB of notes
ulimit -t 20    # the end of what escapes all else

guard() { # after so many seconds, or when the caller is gone, which holds ALIVE open, nothing of this goes on
  (
    IFS= builtin read -r -t "$1" _ <"$alive"
    builtin kill -KILL 0
  ) 198>&- 199>&- &
}
guard "$seconds"

note() { builtin printf '%s\0' "${@//$'\n'/$'\005'}" $'\001' >&199; } # without line ends it is written at once
called() {
  note "$@"
  if { builtin : <&202; }; then # it reads a here-document
    IFS= builtin read -r -d '' kit_text
    [[ -z $kit_text ]] || note '<<' "$1" "$kit_text"
  fi
}
command_not_found_handle() { called "$@"; }
kit_target() { note '>' "$@"; }
kit_run() {
  case ${1-} in
    '') ;;
    */*) called "$@" ;;
    *) "$@" ;;
  esac
}
kit_end() {
  local kit_name kit_values
  for kit_name in $(compgen -e); do note export "$kit_name" "${!kit_name}"; done
  for kit_name in $(compgen -v); do
    kit_values="${kit_name}[@]"
    note variable "$kit_name" "${!kit_values}"
  done
  note $'\002'
}

# what has no meaning without programs, or would end the reading
exec() { [[ $# -eq 0 ]] || called "$@"; }
command() { called "$@"; }
echo() { note echo "$@" && builtin echo "$@"; }
printf() { note printf "$@" && builtin printf "$@"; }
sleep() { # a loop that waits goes round once
  note sleep "$@"
  break
}
trap() {
  note trap "$@"
  [[ $# -lt 2 || $1 == -* ]] || builtin eval "$1"
}
source() {
  note source "$@"
  local kit_file=kit_source_${1##*/}
  [[ ! -f $kit_file ]] || builtin source "$kit_file" "${@:2}"
}
.() { source "$@"; }
cd() { note cd "$@"; }
pushd() { note pushd "$@"; }
popd() { :; }
exit() { :; }
kill() { :; }
wait() { :; }
set() { :; }
unset RANDOM SRANDOM SECONDS EPOCHSECONDS EPOCHREALTIME BASHPID # the same ones every time
RANDOM=4 SRANDOM=4 SECONDS=0 EPOCHSECONDS=0 EPOCHREALTIME=0.0 BASHPID=4 kit_pid=4 FUNCNEST=100
if [[ $way == inverted ]]; then
  test() { ! builtin test "$@"; }
  function [ { ! builtin [ "$@"; }
fi

(
  enable -n exec kill cd pushd popd ulimit umask history fc bind suspend enable
  builtin set -r
  builtin source "kit_source_$script"
)
guard 0.5 # for what goes on in the background
