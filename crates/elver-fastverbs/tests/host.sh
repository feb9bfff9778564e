# A host with two mlx5 devices as far as libibverbs sees one: attributes as a ConnectX-5 shows them in sysfs, and a
# character device that takes every command and does nothing. In a mount namespace of its own: host.sh DIRECTORY COMMAND...
set -euo pipefail
place=$1
shift
# device NUMBER: one more.
device() {
    local verbs=$place/sys/class/infiniband_verbs/uverbs$1 own=$place/sys/class/infiniband/mlx5_$1
    mkdir -p "$verbs" "$own/device"
    echo "mlx5_$1" >"$verbs/ibdev"
    echo 1:3 >"$verbs/dev"
    echo 1 >"$verbs/abi_version"
    echo '1: CA' >"$own/node_type"
    echo "0c42:a103:0065:1e3$1" >"$own/node_guid"
    echo MT_0000000080 >"$own/board_id"
    echo 'pci:v000015B3d00001017sv000015B3sd00000008bc02sc07i00' >"$own/device/modalias"
    mknod "/dev/infiniband/uverbs$1" c 1 3
}
mkdir -p /dev/infiniband
mount -t tmpfs tmpfs /dev/infiniband
mkdir -p "$place/sys/class/infiniband_verbs"
echo 6 >"$place/sys/class/infiniband_verbs/abi_version"
for number in $DEVICES; do device "$number"; done
export SYSFS_PATH=$place/sys
exec "$@"
