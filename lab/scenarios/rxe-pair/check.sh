#!/usr/bin/env bash
# The capture must have what the programs did, as tshark sees it.
set -euo pipefail

count() { tshark -r "$1" -Y "$2" 2>/dev/null | wc -l; }
expect() {
    local got
    got=$(count "$capture" "$2")
    echo "$1: $got packets"
    [ "$got" -ge "$3" ] || { echo "expected at least $3 packets of '$2'" >&2; exit 1; }
}

capture=$1
expect 'RC SEND ONLY or FIRST' 'infiniband.bth.opcode == 0 || infiniband.bth.opcode == 4' 200
expect 'RC WRITE FIRST' 'infiniband.bth.opcode == 6' 50
expect 'RC READ REQUEST' 'infiniband.bth.opcode == 12' 50
expect 'RC READ RESPONSE FIRST' 'infiniband.bth.opcode == 13' 50
expect 'RC ACKNOWLEDGE' 'infiniband.bth.opcode == 17' 100
