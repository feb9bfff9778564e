# shellcheck shell=bash
# -e: both ends share one processor under User Mode Linux, where two that spin take turns of 10 to 20 ms.
pingpong() {
    local program=$1
    shift
    step "$program $*, server"
    "$program" -e -n 100 -g 1 "$@" &
    listening 18515
    run "$program" -e -n 100 -g 1 "$@" 127.0.0.1
    wait $! || fail "the server exited with $?"
}

pingpong ibv_rc_pingpong
pingpong ibv_uc_pingpong
pingpong ibv_ud_pingpong -s 1000
