#!/usr/bin/env bash
# The fast library, and a program that lends its queue pairs.
set -euo pipefail
cd "$1"
cargo build --release --quiet -p elver-fastverbs
mkdir -p target/lab
gcc -O1 -g -Wall -Wextra -Werror -o target/lab/lender lab/scenarios/fork/lender.c -Icrates/elver-fastverbs/include \
    -Ltarget/release -Wl,-rpath,"$1/target/release" -lelver_fastverbs -libverbs
