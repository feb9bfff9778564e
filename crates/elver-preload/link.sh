#!/bin/sh
# Links the archive that cargo made into libibverbs.so.1: link.sh ARCHIVE OUTPUT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "${CC:-cc}" -shared -o "$2" -Wl,-soname,libibverbs.so.1 \
    -Wl,--version-script="$here/libibverbs.map" -Wl,--gc-sections -Wl,-z,defs \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
