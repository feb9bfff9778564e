#!/usr/bin/env bash
# Runs elver at the guest's word. Each line of the control channel is a command:
#   serve WORDS   runs `elver WORDS` as a server; answers "listens", and how it ended
#   ask WORDS     runs `elver WORDS` as a client; answers how it ended
# Argument: the control channel as fd:NUMBER.
set -euo pipefail

control=${1#fd:}
elver=${CARGO_TARGET_DIR:-target}/release/elver
said=$LAB_RUN/elver.err

# User Mode Linux's network driver now and then leaves a frame lying until the next one comes. RC sends again; UC and UD
# have nobody who does.
ping -q -i 0.02 "$LAB_GUEST_IP" >/dev/null &
trap 'kill %1' EXIT

answer() { printf '%s\n' "$*" >&"$control"; }
ended() { if wait "$1"; then answer over; else answer failed; fi; }

while IFS= read -r -u "$control" line; do
    read -ra words <<<"$line"
    echo "elver ${words[*]:1}"
    : >"$said"
    patience=(--timeout 30)
    [ "${words[1]}" = perf ] && patience=()
    "$elver" "${words[@]:1}" --idle sleep "${patience[@]}" 2> >(tee "$said" >&2) &
    pid=$!
    if [ "${words[0]}" = serve ]; then
        until grep -q 'waiting for a client' "$said"; do
            kill -0 $pid || break
            sleep 0.02
        done
        answer listens
    fi
    ended $pid
done
