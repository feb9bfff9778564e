# Builds the two ends: the host program and the guest's agent.
set -eu
root=$1
output=$root/target/lab/interop-agent
if ! echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1; then
    echo 'no infiniband/verbs.h; get it with: apt-get install --no-install-recommends libibverbs-dev' >&2
    exit 1
fi
mkdir -p "$(dirname "$output")"
cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -o "$output" "$root/lab/scenarios/interop/agent.c" -libverbs
cargo build --release --quiet -p elver-interop --manifest-path "$root/Cargo.toml"
