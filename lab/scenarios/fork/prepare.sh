#!/usr/bin/env bash
# The fast library, and programs that lend their queue pairs.
set -euo pipefail
cd "$1"
cargo build --release --quiet -p elver-fastverbs
mkdir -p target/lab

# link PROGRAM SOURCE LIBRARY...: cargo has LD_LIBRARY_PATH name its own build for tests, before which only the older kind of
# path comes.
link() {
    gcc -O1 -g -Wall -Wextra -Werror -o "target/lab/$1" "lab/scenarios/fork/$2.c" -Icrates/elver-fastverbs/include \
        -Ltarget/release -Wl,--disable-new-dtags,-rpath,"$PWD/target/release" "${@:3}"
}
link lender lender -lelver_fastverbs -libverbs
link edges edges -lelver_fastverbs -libverbs
link late edges -libverbs -lelver_fastverbs
