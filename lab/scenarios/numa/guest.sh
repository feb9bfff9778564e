# shellcheck shell=bash
nodes=/sys/devices/system/node
export ELVER_SOCKET=/tmp/elverd.sock
# The kernel's rxe has the usual port.
printf '[node]\nudp_port = 24791\n' >/tmp/elverd.toml

# daemon COMMAND…: a daemon that is run so, in the place of the one before.
daemon() {
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; }
    rm -f $ELVER_SOCKET
    "$@" elverd --config /tmp/elverd.toml 2>out/elverd &
    daemon=$!
    local end=$((SECONDS + 30))
    until [ -S $ELVER_SOCKET ]; do
        kill -0 $daemon 2>/dev/null || { cat out/elverd; fail 'elverd ended'; }
        ((SECONDS < end)) || fail 'elverd does not listen'
        usleep 10000
    done
}

# lies COMMAND… runs the page, which says where memory lies; said LINE: it has said so.
lies() {
    step "$*"
    "$@" >out/said || { cat out/said out/elverd; fail "'$*' failed"; }
    cat out/said
}
said() { grep -Fqx "1048576 bytes $1" out/said || fail "it does not say '$1'"; }

run ip link set lo up
if [ ! -d $nodes/node1 ]; then
    [[ $LAB_ENGINE = uml ]] || fail "the kernel has one NUMA node: $(ls $nodes)"
    daemon
    lies numa
    grep -q '^1048576 bytes near this thread' out/said || fail 'no memory'
    exit
fi

[ "$(cat $nodes/has_memory)" = 0-1 ] || fail "nodes with memory: $(cat $nodes/has_memory)"
# As many at either, so that each has some left.
for node in 0 1; do
    echo 4 >$nodes/node$node/hugepages/hugepages-2048kB/nr_hugepages
    [ "$(cat $nodes/node$node/hugepages/hugepages-2048kB/nr_hugepages)" = 4 ] || fail "no huge pages at node $node"
done

# unplaced COUNT: the daemon counts so many regions that lie elsewhere than they were to.
unplaced() {
    local said
    said=$(wget -q -O - http://127.0.0.1:4792/metrics | sed -n 's/^elver_engine_regions_unplaced_total //p')
    [ "$said" = "$1" ] || fail "regions_unplaced is '$said', and not $1"
}

# Wherever the daemon runs, which makes the memory, and whichever thread asks for it.
for served in 0 1; do
    daemon taskset -c $served
    for asks in 0 1; do
        lies taskset -c $asks numa
        said "near this thread: pages of 4 KB: 256 at node $asks"
        for node in 0 1; do
            said "at node $node: pages of 4 KB: 256 at node $node"
            said "from huge pages at node $node: pages of 2048 KB: 1 at node $node"
        done
        said "anywhere: pages of 4 KB: 256 at node $served"
    done
    unplaced 0
done

# A daemon that may have memory of one node alone.
run mount -t cgroup2 none /sys/fs/cgroup
run eval 'echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control'
run mkdir /sys/fs/cgroup/one
run eval 'echo 0 >/sys/fs/cgroup/one/cpuset.mems'
daemon bash -c 'echo $$ >/sys/fs/cgroup/one/cgroup.procs; exec "$@"' one
lies taskset -c 1 numa
said 'near this thread: pages of 4 KB: 256 at node 0'
said 'at node 0: pages of 4 KB: 256 at node 0'
said 'at node 1: pages of 4 KB: 256 at node 0'
said 'from huge pages at node 1: pages of 2048 KB: 1 at node 0'
unplaced 3
