# shellcheck shell=bash
# Guest a is the server, guest b the client.
both() {
    local port=$1 name=$2
    shift
    if [ "$LAB_GUEST" = a ]; then
        step "$*, server"
        "$@" &
        listening "$port" $!
        barrier "$name listens"
        wait $! || fail "$name, server, exited with $?"
    else
        barrier "$name listens"
        run "$@" "$LAB_PEER_IP"
    fi
    barrier "$name is over"
}

neighbour "$LAB_PEER_IP"
both 18515 ibv_rc_pingpong -e -g 1 -n 100 -s 4096
both 18515 ib_write_bw -x 1 -s 4096 -n 50 -F
both 18515 ib_read_lat -x 1 -s 4096 -n 50 -F
