//! The check that the client library stays light: who builds it without a node inside gets few crates.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Most crates that a program takes in with `elver`, itself and what its macros are built with
/// counted.
const CRATES_MAX: usize = 25;

/// Counts them; says what it found.
pub(crate) fn check() -> Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--package", "elver", "--edges", "normal", "--prefix", "none"])
        .output()
        .context("cannot run cargo tree")?;
    ensure!(output.status.success(), "cargo tree failed for elver");
    let tree = String::from_utf8(output.stdout).context("cargo tree printed no text")?;
    let crates = crates(&tree);
    let names = crates.iter().copied().collect::<Vec<_>>().join(", ");
    ensure!(
        crates.len() <= CRATES_MAX,
        "elver takes in {} crates, and may take {CRATES_MAX}: {names}",
        crates.len()
    );
    ensure!(!crates.iter().any(|name| name.starts_with("elver-node")), "elver takes in the node");
    compile()?;
    Ok(format!("elver takes in {} crates of at most {CRATES_MAX}: {names}", crates.len()))
}

/// Compiles it so: everybody else in the workspace has a node inside.
fn compile() -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo)
        .args(["check", "--quiet", "--locked", "--package", "elver"])
        .status()
        .context("cannot run cargo check")?;
    ensure!(status.success(), "elver does not compile without the feature `embedded`");
    Ok(())
}

/// The names and versions in a tree, each once however often it stands there.
fn crates(tree: &str) -> BTreeSet<&str> {
    tree.lines()
        .filter_map(|line| line.split(" (").next())
        .filter(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_counts_once() {
        let tree = "a v1 (/here)\nb v1 (proc-macro)\nc v1\nb v1 (proc-macro) (*)\nc v1 (*)\nc v2\n";
        assert_eq!(crates(tree).into_iter().collect::<Vec<_>>(), ["a v1", "b v1", "c v1", "c v2"]);
    }
}
