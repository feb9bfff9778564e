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
trap 'kill %1' EXIT

answer() { printf '%s\n' "$*" >&"$control"; }

while IFS= read -r -u "$control" line; do
    read -ra words <<<"$line"
    at=
    [ "${words[0]}" = serve ] && at=${words[1]} && unset 'words[1]'
    words=("${words[@]}")
    echo "elver run -- ${words[*]:1}"
    timeout -k 2 30 "$elver" run --address "$LAB_HOST_IP" -- "${words[@]:1}" &
    pid=$!
    if [ "$at" ]; then
        until grep -q "@elver-rdma_cm/$at/" /proc/net/unix; do
            kill -0 $pid || break
            sleep 0.02
        done
        answer listens
    fi
    if wait $pid; then answer over; else answer failed; fi
done
