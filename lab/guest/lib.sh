# What a scenario's guest.sh can use. Descriptor 8 is the line to the runner, 9 the control channel
# to the host program; a program of your own gets it with <&9 >&9.
export PATH=/job/bin:$PATH

# step TEXT: says what comes now; when the scenario hangs, the runner names the last step.
step() { printf '\001lab step %s\n' "$*" >&8; }

# fail TEXT: ends the guest's script.
fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

# run COMMAND…: a step that must succeed.
run() {
    step "$*"
    "$@" || fail "'$*' exited with $?"
}

# barrier NAME: returns when every guest of the scenario has called it.
barrier() {
    printf '\001lab barrier %s\n' "$1" >&8
    local answer
    IFS= read -r -t 600 answer <&8
    [ "$answer" = "go $1" ] || fail "barrier $1: the runner answered '$answer'"
}

# listening PORT [PID]: returns when something listens on that TCP port; fails after ten seconds, or when process PID,
# which should listen, has ended.
listening() {
    local hex end=$((SECONDS + 10))
    hex=$(printf '%04X' "$1")
    while ((SECONDS < end)); do
        grep -q "^ *[0-9]*: [0-9A-F]*:$hex [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 && return
        [ -z "$2" ] || kill -0 "$2" 2>/dev/null || fail "process $2 ended, and did not listen on port $1"
        usleep 10000
    done
    fail "nothing listens on port $1"
}

# neighbour ADDRESS: returns when the address answers; fails after twenty seconds.
neighbour() {
    local end=$((SECONDS + 20))
    while ((SECONDS < end)); do
        ping -q -c 1 -W 1 "$1" >/dev/null && return
    done
    fail "no answer from $1"
}

# say TEXT / hear: one line to the host program, and one line from it, over the control channel.
say() { printf '%s\n' "$*" >&9; }
hear() {
    IFS= read -r -t "${1:-60}" REPLY <&9 || fail 'nothing came over the control channel'
    printf '%s\n' "$REPLY"
}
