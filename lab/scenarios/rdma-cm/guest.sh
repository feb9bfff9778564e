# shellcheck shell=bash
# rping (-V), rstream and riostream (-T v) compare what they receive; ucmatose and udaddy count it.

# told WORD: what the host program must say next.
told() {
    local word
    word=$(hear) && [ "$word" = "$1" ] || fail "the host program said '$word' instead of '$1'"
}

# client SPACE PORT SERVER CLIENT: elver serves, and the kernel asks.
client() {
    say "serve $1/$2 $3"
    told listens
    # shellcheck disable=SC2086
    run $4
    step "$3, on the host, ends"
    told over
}

# server SPACE PORT SERVER CLIENT: the kernel serves, and elver asks.
server() {
    local pid
    step "$3"
    # shellcheck disable=SC2086
    $3 &
    pid=$!
    until rdma resource show cm_id | grep -q "LISTEN.*:$2\b"; do
        kill -0 $pid || fail "'$3' ended, and did not listen on port $2"
        usleep 10000
    done
    say "ask $4"
    told over
    step "$3 ends"
    wait $pid || fail "'$3' exited with $?"
}

# both SPACE PORT SERVER CLIENT: one program in both roles; the client's words end with the server's address.
both() {
    client "$1" "$2" "$3" "$4 $LAB_HOST_IP"
    server "$1" "$2" "$3" "$4 $LAB_IP"
}

neighbour "$LAB_HOST_IP"
both 0106 7174 'rping -s -C 20 -V -S 5000' 'rping -c -C 20 -V -S 5000 -a'
both 0106 7471 'ucmatose -c 4 -C 20 -S 3000' 'ucmatose -c 4 -C 20 -S 3000 -s'
both 0111 7174 'udaddy -c 2 -C 20' 'udaddy -c 2 -C 20 -s'
both 0106 7471 'rstream -S 4096 -I 20 -C 5 -T v' 'rstream -S 4096 -I 20 -C 5 -T v -s'
both 0106 7471 'riostream -S 4096 -I 5 -C 1 -T v' 'riostream -S 4096 -I 5 -C 1 -T v -s'
both 0106 7471 rdma_server 'rdma_client -s'
step 'elver asks where nobody listens'
say "ask rping -c -C 1 -p 7175 -a $LAB_IP"
told failed
step 'the kernel asks where nobody listens'
say 'serve 0106/7174 rping -s -C 1'
told listens
refused=$(rping -c -C 1 -p 7175 -a "$LAB_HOST_IP" 2>&1) && fail 'somebody answered at a port that nobody has'
[[ $refused = *'RDMA_CM_EVENT_REJECTED, error 8'* ]] || fail "it was not refused: $refused"
run rping -c -C 1 -a "$LAB_HOST_IP"
told over
