#!/usr/bin/env bash
# shellcheck disable=SC2218,SC2119,SC2120,SC2059,SC2104,SC1090,SC2034,SC2094,SC2123,SC2317 # functions in the places of builtins
# stubs.sh PLACE…: run PLACE/kit_source_run.sh with a stub in the place of every program, once as it is and once with
# tests the other way round, and note what is called in PLACE.straight and PLACE.inverted: each word with a zero byte
# behind it, \1 behind the last, \5 for the end of a line.  quoting.py has more about it.
BASH_COMPAT=4.3 # `break` in a function leaves its caller's loop, and a here-document is a file
exec >/dev/null 2>&1
exec 195<>kit_alive 196>kit_alive 194<kit_alive 195>&- # 194 ends when the last process has gone that has 196
ulimit -c 0
ulimit -f 32768 # KiB of notes
ulimit -t 2     # for what loops, also where nobody is left to end it

note() { builtin printf '%s\0' "${@//$'\n'/$'\005'}" $'\001' >&199; } # without line ends it is written at once
called() {
  note "$@"
  if [[ -f /dev/stdin ]]; then # it reads a here-document
    IFS= builtin read -r -d '' kit_text </dev/stdin
    [[ -z $kit_text ]] || note '<<' "$1" "$kit_text"
  fi
}
command_not_found_handle() { called "$@"; }
kit_run() { # a command whose name may be a path
  case ${1-} in
    '') ;;
    */*) called "$@" ;;
    *) "$@" ;;
  esac
}
kit_end() {
  local kit_name kit_values
  for kit_name in $(compgen -v); do
    [[ $kit_before != *$'\n'"$kit_name"$'\n'* ]] || continue
    kit_values="${kit_name}[@]"
    note variable "$kit_name" "${!kit_values}"
  done
  note $'\002'
}

# what has no meaning without programs, or would end the script
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

kit_script() { # in a shell of its own: PLACE straight|inverted
  builtin cd "$1" || return
  if [[ $2 == inverted ]]; then
    test() { ! builtin test "$@"; }
    function [ { ! builtin [ "$@"; }
  fi
  HOME=$1
  shift "$#"
  enable -n exec kill cd pushd popd ulimit umask history fc bind suspend enable
  builtin set -r
  builtin source kit_source_run.sh
}

unset RANDOM SRANDOM SECONDS EPOCHSECONDS EPOCHREALTIME BASHPID # the same ones every time
RANDOM=4 SRANDOM=4 SECONDS=0 EPOCHSECONDS=0 EPOCHREALTIME=0.0 BASHPID=4 FUNCNEST=100 PATH=/dev/null/none HOME=''
kit_pid=4 kit_before='' kit_name='' kit_text='' kit_values='' # variables that are not the script's
kit_before=$'\n'$(compgen -v)$'\n'
for place; do
  for way in straight inverted; do
    (kit_script "$place" "$way") 194<&- 199>"$place.$way" &
  done
done
unset -f exec
exec 196>&-
builtin wait
builtin read -r -t 0.5 <&194 # what goes on in the background
builtin kill -KILL 0
