# shellcheck shell=bash
[ -e /sys/class/infiniband ] && [ "$(ls /sys/class/infiniband)" ] && fail 'there is an RDMA device'
run elver demo
