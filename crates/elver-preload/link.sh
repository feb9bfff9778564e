#!/bin/sh
# Links the archive that cargo made into libibverbs.so.1, with libmlx5.so.1 as its other name beside it: link.sh ARCHIVE OUTPUT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"${CC:-cc}" -shared -o "$2" -Wl,-soname,libibverbs.so.1 \
    -Wl,--version-script="$here/libibverbs.map" -Wl,--gc-sections -Wl,-z,defs \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
# Under LD_LIBRARY_PATH the loader finds programs' libmlx5 by it, and takes both for the one file that they are.
ln -sf "$(basename "$2")" "$(dirname "$2")/libmlx5.so.1"
