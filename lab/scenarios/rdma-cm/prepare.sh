#!/usr/bin/env bash
set -euo pipefail
cargo build --release --quiet --bin elver
cargo xtask preload
