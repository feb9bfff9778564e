#!/usr/bin/env bash
# The fast library, and all providers that Debian has, as an archive: the guests' own have two.
set -euo pipefail
cd "$1"
cargo build --release --quiet -p elver-fastverbs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -o APT::Sandbox::User=root -q download ibverbs-providers >/dev/null)
dpkg-deb -x "$work"/ibverbs-providers_*.deb "$work/root"
mkdir -p target/lab
tar -C "$work/root" -cf target/lab/providers.tar etc/libibverbs.d usr/lib
