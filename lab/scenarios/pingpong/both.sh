# shellcheck shell=bash
# The two roles. host.sh hears.

# told WORD: what the host program must say next.
told() {
    local word
    word=$(hear) && [ "$word" = "$1" ] || fail "the host program said '$word' instead of '$1'"
}

# client ELVER COMMAND…: elver serves, and the command is the client.
client() {
    local elver=$1
    shift
    say "serve $elver"
    told listens
    run "$@" "$LAB_HOST_IP"
    step "elver $elver ends"
    told over
}

# server ELVER COMMAND…: the command serves, and elver is the client.
server() {
    local elver=$1 pid
    shift
    step "$*, server"
    "$@" &
    pid=$!
    listening 18515 $pid
    say "ask $elver"
    told over
    wait $pid || fail "'$*' exited with $?"
}
