#!/usr/bin/env bash
# What functions need that guests have not, as this host has it: crun, Python, pyverbs and all providers of libibverbs, with
# their libraries.
set -euo pipefail
cd "$1"
for needed in /etc/libibverbs.d/rxe.driver:ibverbs-providers /usr/lib/python3/dist-packages/pyverbs/__init__.py:python3-pyverbs; do
    [ -e "${needed%:*}" ] || {
        echo "this machine has no ${needed%:*}; get it with: apt-get install --no-install-recommends ${needed#*:}" >&2
        exit 1
    }
done
cargo build --release --quiet --locked -p elver-faas -p elver-python
mkdir -p target/lab
python=$(readlink -f /usr/bin/python3)
packages=/usr/lib/python3/dist-packages/pyverbs
providers=$(dirname "$(find /usr/lib -name 'librxe-rdmav*.so' | head -n 1)")
objects=("$python" /usr/lib/"${python##*/}"/lib-dynload/*.so "$packages"/*.so "$packages"/providers/*/*.so "$providers"/*.so)
# The loader may have found a library by a link of a merged /usr.
libraries=$(ldd /usr/bin/crun "${objects[@]}" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sed 's|^/lib|/usr/lib|' | sort -u)
# shellcheck disable=SC2086
tar -C / -h --exclude='python3*/test' --exclude='python3*/idlelib' --exclude='python3*/config-*' -cf target/lab/functions.tar \
    usr/bin/crun usr/bin/python3 "usr/lib/${python##*/}" "${packages#/}" "${providers#/}" etc/libibverbs.d \
    usr/lib64/ld-linux-x86-64.so.2 ${libraries//\/usr/usr}
