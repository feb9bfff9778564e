# shellcheck shell=bash
# Guest a serves, guest b asks and prints. One guest would not do: between two of its own addresses
# rxe sends no packets (rxe_net.c, rxe_prepare: RXE_LOOPBACK_MASK).
neighbour "$LAB_PEER_IP"

# both NAME PORT SERVER… -- CLIENT…: the server here or the client there, one after the other.
both() {
    local name=$1 port=$2
    shift 2
    local server=()
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    if [ "$LAB_GUEST" = a ]; then
        "${server[@]}" >out/server.log 2>&1 &
        listening "$port" $!
        barrier "$name listens"
        barrier "$name is over"
        kill $! 2>/dev/null
        wait $!
    else
        barrier "$name listens"
        step "$name"
        "$@" || fail "$name exited with $?"
        barrier "$name is over"
    fi
}

rxe() {
    local name=$1
    shift
    both "rxe $name" 18515 "$@" -- "$@" "$LAB_PEER_IP"
}

elver_perf() {
    local name=$1
    shift
    both "elver $name" 18515 elver perf server --bind "$LAB_IP" --udp-port 14791 -- \
        elver perf "$@" "$LAB_PEER_IP" --udp-port 14791
}

for round in 1 2 3; do
    rxe "READ 8 B, round $round" ib_read_lat -x 1 -m 4096 -s 8 -n 2000 -F
    elver_perf "READ 8 B, round $round" read --size 8 --mode sync --duration 1 --mtu 4096 --json
    rxe "WRITE 64 KB, round $round" ib_write_bw -x 1 -m 4096 -s 65536 -n 2000 -F
    elver_perf "WRITE 64 KB, round $round" write --size 65536 --mode async --depth 128 --batch 1 --duration 1 --mtu 4096 --json
done
