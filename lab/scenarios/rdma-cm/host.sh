#!/usr/bin/env bash
# Runs programs over elver at the guest's word. Each line of the control channel is a command:
#   serve SPACE/PORT WORDS   runs WORDS as a server; answers "listens" when it does so there, and how it ended
#   ask WORDS                runs WORDS as a client; answers how it ended
# Argument: the control channel as fd:NUMBER.
set -euo pipefail

control=${1#fd:}
elver=${CARGO_TARGET_DIR:-target}/release/elver

# User Mode Linux's network driver now and then leaves a frame lying until the next one comes. RC and rdma_cm send
# again; UD has nobody who does.
ping -q -i 0.02 "$LAB_GUEST_IP" >/dev/null &
said=$(mktemp)
trap 'kill %1; rm -f "$said"' EXIT

# ended STATUS: whether a program did what it should. At its end rping destroys the event channel while its other thread is
# on its way back to ask it, which then ends the process by exit(-1), if it comes too late: all was compared by then.
ended() {
    [ "$1" = 0 ] && return
    [ "$1" = 255 ] && grep -q 'DISCONNECT EVENT' "$said" &&
        [ "$(tail -n 1 "$said")" = 'rdma_get_cm_event: Bad file descriptor' ]
}

answer() { printf '%s\n' "$*" >&"$control"; }

while IFS= read -r -u "$control" line; do
    read -ra words <<<"$line"
    at=
    [ "${words[0]}" = serve ] && at=${words[1]} && unset 'words[1]'
    words=("${words[@]}")
    echo "elver run -- ${words[*]:1}"
    timeout -k 2 30 "$elver" run --address "$LAB_HOST_IP" -- "${words[@]:1}" >"$said" 2>&1 &
    pid=$!
    if [ "$at" ]; then
        until grep -q "@elver-rdma_cm/$at/" /proc/net/unix; do
            kill -0 $pid || break
            sleep 0.02
        done
        answer listens
    fi
    status=0
    wait $pid || status=$?
    cat "$said"
    if ended "$status"; then answer over; else answer failed; fi
done
