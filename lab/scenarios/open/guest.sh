# shellcheck shell=bash
# The programs themselves, not their loaders' scripts: a cold process is one that is started as users start it.
cp /job/programs/elver /usr/bin/elver
cp /job/programs/libelver_fastverbs.so /usr/lib/
tar -C / -xf /job/bin/providers.tar
for library in /job/lib/*; do
    [ -e "/usr/lib/x86_64-linux-gnu/${library##*/}" ] || cp "$library" /usr/lib/x86_64-linux-gnu/
done
echo "providers: $(ls /etc/libibverbs.d | wc -l)"

rounds=20
[ "$LAB_ENGINE" = uml ] || rounds=8
run /usr/bin/elver bench open --rounds "$rounds" --library /usr/lib/libelver_fastverbs.so

step 'a list of devices without a cache, with one that is not to be believed, and with one of another kernel'
cache=/tmp/verbs
export ELVER_FASTVERBS_CACHE=$cache ELVER_FASTVERBS_LOG=1
list() { LD_PRELOAD=/usr/lib/libelver_fastverbs.so ibv_devices 2>&1; }
expect() { grep -q "$1" out/list || { cat out/list; fail "it does not say $1"; }; }
list >out/list; expect 'absent 1'; expect rxe0
ELVER_FASTVERBS=renew list >out/list; expect 'renewed 1'; expect rxe0
list >out/list; expect 'lists 1'; expect rxe0
chmod 666 $cache
list >out/list; expect 'refused 1'; expect 'its mode is 666'; expect rxe0
chmod 644 $cache
head -c 100 $cache >$cache.part && mv $cache.part $cache
list >out/list; expect 'refused 1'; expect 'its header says'; expect rxe0

step 'a device that comes and goes makes the cache stale, and it is made anew'
ELVER_FASTVERBS=renew list >out/list; expect 'renewed 1'
ip link add net1 type dummy || fail 'cannot make a second network device'
rdma link add rxe1 type rxe netdev net1 || fail 'rdma link add rxe1 failed'
mknod /dev/infiniband/uverbs1 c "$(cut -d: -f1 /sys/class/infiniband_verbs/uverbs1/dev)" \
    "$(cut -d: -f2 /sys/class/infiniband_verbs/uverbs1/dev)" 2>/dev/null
list >out/list; expect 'stale: devices 1'; expect 'renewed 1'; expect rxe1
list >out/list; expect 'lists 1'; expect rxe1
rdma link delete rxe1 || fail 'rdma link delete rxe1 failed'
list >out/list; expect 'stale: devices 1'; expect rxe0
grep -q rxe1 out/list && fail 'rxe1 is still in the list'

step 'a device that is opened ahead'
ELVER_FASTVERBS_WARM=any LD_PRELOAD=/usr/lib/libelver_fastverbs.so ibv_devinfo -d rxe0 >out/list 2>&1
expect 'warm 1'; expect PORT_ACTIVE

step 'a cache by verbs-profile, which watches by ptrace'
/usr/bin/elver verbs-profile --runs 4 --library /usr/lib/libelver_fastverbs.so --cache $cache.profiled >out/list 2>&1 ||
    { cat out/list; fail "verbs-profile exited with $?"; }
expect 'watched by ptrace'; expect '^ibv_get_device_list .* netlink answers'; expect 'is written'
ELVER_FASTVERBS_CACHE=$cache.profiled list >out/list; expect 'lists 1'; expect rxe0
