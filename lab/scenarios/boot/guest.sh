# shellcheck shell=bash
uname -sr
echo "links: $LAB_RDMA"

run rdma link show
for type in $LAB_RDMA; do
    rdma link show | grep -q "link ${type}0/1 state ACTIVE physical_state LINK_UP netdev net0" || fail "${type}0 is not up"
done

step 'ibv_devinfo -v'
ibv_devinfo -v >out/devinfo || fail "ibv_devinfo exited with $?"
expect() {
    grep -Eq "$1" out/devinfo || {
        cat out/devinfo
        fail "ibv_devinfo does not say $1"
    }
}
expect 'hca_id:[[:space:]]*rxe0'
expect 'transport:[[:space:]]*InfiniBand'
expect 'state:[[:space:]]*PORT_ACTIVE'
expect 'active_mtu:[[:space:]]*1024'
expect 'GID\[ *1\]:[[:space:]]*(::ffff:10\.9\.0\.1|0000:0000:0000:0000:0000:ffff:0a09:0001)'
if [[ $LAB_RDMA = *siw* ]]; then
    expect 'hca_id:[[:space:]]*siw0'
    expect 'transport:[[:space:]]*iWARP'
fi

for file in uverbs0 rdma_cm; do
    [ -c /dev/infiniband/$file ] || fail "no /dev/infiniband/$file"
done
