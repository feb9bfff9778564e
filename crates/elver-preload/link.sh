#!/bin/sh
# Links the archive that cargo made into libibverbs.so.1, with libmlx5.so.1 as its other name beside it: link.sh ARCHIVE OUTPUT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Programs and providers of a release of rdma-core ask for all private names in that release's node. Each is in the first
# that had it by the version script, and in the later ones by a jump: here, for x86-64.
later_nodes() {
    awk '
        /^[^ ]/ { node = $1 ~ /^IBVERBS_PRIVATE_/ ? $1 : "" }
        node && /{$/ {
            for (i = 0; i < count; i++) {
                alias = names[i] "." node
                printf ".globl %s\n.type %s, @function\n%s:\njmp %s@PLT\n", alias, alias, alias, names[i]
                printf ".size %s, . - %s\n.symver %s, %s@%s\n", alias, alias, alias, names[i], node
            }
        }
        node && /;$/ && !/^}/ { sub(/;/, "", $1); names[count++] = $1 }
        BEGIN { print ".text" }
        END { print ".section .note.GNU-stack, \"\", @progbits" }
    ' "$here/libibverbs.map"
}
later_nodes | "${CC:-cc}" -shared -o "$2" -Wl,-soname,libibverbs.so.1 \
    -Wl,--version-script="$here/libibverbs.map" -Wl,--gc-sections -Wl,-z,defs \
    -x assembler - -x none -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
# Under LD_LIBRARY_PATH the loader finds programs' libmlx5 by it, and takes both for the one file that they are.
ln -sf "$(basename "$2")" "$(dirname "$2")/libmlx5.so.1"
