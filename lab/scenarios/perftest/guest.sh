# shellcheck shell=bash
. /job/both.sh

# both TEST OPTIONS: in both roles.
both() {
    client "perftest $1 $2" "ib_${1/-/_}" -F -x 1 $2
    server "perftest $1 $LAB_IP $2" "ib_${1/-/_}" -F -x 1 $2
}

neighbour "$LAB_HOST_IP"
both write-bw '-n 200'
both write-bw '-n 500 -s 100 -c UC'
both read-bw '-n 100'
both read-lat '-n 200'
both send-lat '-n 200 -s 64'
both send-lat '-n 200 -c UC'
both send-lat '-n 200 -s 1000 -c UD'
# The same through `elver perf`.
through_perf() {
    local options="--size $2 --iters 200 --peer perftest" op=${1%% *} mode=${1#* }
    client "perf $op $mode $options" "$3" -F -x 1 -s "$2" -n 200
    server "perf $op $LAB_IP $mode $options" "$3" -F -x 1 -s "$2" -n 200
}
through_perf 'write --mode async' 65536 ib_write_bw
through_perf 'read --mode sync' 8 ib_read_lat
through_perf 'send --mode sync' 64 ib_send_lat
# Every size up to 8 MB in one run; the server sees only that its memory is written.
client 'perftest write-bw -s 8388608' ib_write_bw -F -x 1 -a -n 5
