# shellcheck shell=bash
uname -r
export ELVER_FASTVERBS_CACHE=/tmp/verbs ELVER_FASTVERBS_LOG=1
library=/job/programs/libelver_fastverbs.so
with() { LD_PRELOAD=$library "$@" >out/said 2>&1 || { cat out/said; fail "'$*' exited with $?"; }; }
expect() { grep -q "$1" out/said || { cat out/said; fail "it does not say $1"; }; }

step 'the cache is made'
ELVER_FASTVERBS=renew with ibv_devices; expect 'renewed 1'; expect rxe0
step 'a list by it, and a device that is opened'
with ibv_devices; expect 'lists 1'; expect rxe0
with ibv_devinfo -d rxe0; expect 'lists 1'; expect PORT_ACTIVE
grep elver-fastverbs out/said
