#!/bin/sh
# What each pod of a madlite run does: the actions of the plan, one after another, until one fails.
# A line "#madlite MARK begin|end|file ..." tells whoever reads the log where each begins and ends.
[ -n "${BASH_VERSION-}" ] || ! command -v bash > /dev/null || exec bash "$0" # which has process groups without a terminal
set -u
NODE_RANK=${JOB_COMPLETION_INDEX:-0}
export NODE_RANK MAD_NODE_RANK="$NODE_RANK" MAD_COLLECT_METRICS=false
[ "$NODE_RANK" != 0 ] || MAD_COLLECT_METRICS=true
if [ -n "${MAD_MULTI_NODE_RUNNER-}" ]; then # a MAD script does not expand what is in it
    MAD_MULTI_NODE_RUNNER=$(printf %s "$MAD_MULTI_NODE_RUNNER" | sed "s/\\\$NODE_RANK/$NODE_RANK/
s/\\\$MASTER_ADDR/${MASTER_ADDR-}/
s/\\\$MASTER_PORT/${MASTER_PORT-}/")
    export MAD_MULTI_NODE_RUNNER
fi
child='' stopped='' late=''

tell() { printf '\n#madlite %s %s\n' "$MADLITE_MARK" "$*"; }

running() { [ -n "$child" ] && kill -0 "$child" 2> /dev/null; }

stop() { # INT, the grace, TERM, the grace, KILL
    [ -z "$stopped" ] || return 0
    stopped=1
    for name in INT TERM KILL; do
        running || return 0
        kill -s "$name" -- "-$child" 2> /dev/null
        left=$MADLITE_GRACE
        while running && [ "$left" -gt 0 ]; do
            sleep 1
            left=$((left - 1))
        done
    done
}
trap stop TERM INT
trap 'late=1; stop' USR1

keep_limit() { # the run's own, where no madlite follows it
    trap 'kill "$sleeper" 2> /dev/null; exit' TERM
    sleep "$MADLITE_LIMIT" &
    sleeper=$!
    wait "$sleeper"
    kill -s USR1 $$
}

act() { # number, folder, command...
    number=$1 folder=$2
    shift 2
    tell begin "$number"
    code=126
    if [ -n "$stopped" ]; then
        code=143
    elif cd "$folder"; then
        if [ -n "${BASH_VERSION-}" ]; then
            set -m # a process group of its own
            "$@" < /dev/null &
            child=$!
            set +m
        else # INT does not reach it, TERM does
            setsid "$@" < /dev/null &
            child=$!
        fi
        [ -z "$stopped" ] || { # by a signal that came before `child` was set
            stopped=''
            stop
            stopped=2
        }
        code=0
        wait "$child" || code=$?
        while running || [ "${stopped:-0}" = 1 ]; do # a signal ended the wait, not the action
            [ -z "$stopped" ] || stopped=2
            code=0
            wait "$child" || code=$?
        done
    fi
    child=''
    [ "$code" -ge 0 ] || code=143 # bash's -1: the signal that stopped the run came as the action ended
    [ -z "$late" ] || code=124 # as timeout(1) has it
    send
    tell end "$number" "$code"
    [ "$code" = 0 ] || exit "$code"
}

send() { # the files that the run leaves, by the log; more than 1 MiB each stays
    [ "$sends" = yes ] || return 0
    cd "$MADLITE_WORKSPACE" || return 0
    for name in $MADLITE_RESULTS; do
        [ -f "$name" ] && [ "$(wc -c < "$name")" -le 1048576 ] || continue
        cmp -s "$name" "/madlite/files/$name" && continue # as it came
        tell file "$name"
        base64 "$name"
        tell end-of-file
    done
}
sends=no

mkdir -p "$MADLITE_WORKSPACE" || exit 126
for name in /madlite/files/* /madlite/files/.[!.]*; do # `..` begins what Kubernetes itself has there
    [ ! -e "$name" ] || cp -RL "$name" "$MADLITE_WORKSPACE/" || exit 126
done
[ -z "${MADLITE_ARCHIVE-}" ] || tar -xf "$MADLITE_ARCHIVE" -C "$MADLITE_WORKSPACE" || exit 126
if [ "${MADLITE_LIMIT:-0}" != 0 ]; then
    keep_limit > /dev/null 2>&1 &
    keeper=$!
    trap 'kill "$keeper" 2> /dev/null' EXIT
fi
