//! Any bytes as what another process of the user tells a program over libibverbs: its greeting, its table, its lane.

/// Runs an input; its first byte says which of them.
pub fn run(bytes: &[u8]) {
    let Some((door, bytes)) = bytes.split_first() else { return };
    match door % 4 {
        0 | 1 => elver_preload::fuzzed::lane(bytes),
        2 => elver_preload::fuzzed::table(bytes),
        _ => elver_preload::fuzzed::greeting(bytes),
    }
}
