# shellcheck shell=bash
# -e: both ends share one processor under User Mode Linux, where two that spin take turns of 10 to 20 ms.
pingpong() {
    step "$*, server"
    "$@" &
    listening 18515 $!
    run "$@" 127.0.0.1
    wait $! || fail "the server exited with $?"
}

pingpong ibv_rc_pingpong -e -g 1 -n 100
pingpong ibv_uc_pingpong -e -g 1 -n 100
pingpong ibv_ud_pingpong -e -g 1 -n 100 -s 1000
