//! The proof that some crates do no IO: they compile as `no_std + alloc`, name nothing of std
//! outside their tests, and no dependency of theirs switches a `std` feature on.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::{list, metadata, text};

/// The crates that a kernel could host.
const CRATES: [&str; 8] = [
    "elver-random",
    "elver-wire",
    "elver-verbs",
    "elver-cm",
    "elver-rnic",
    "elver-kv",
    "elver-control",
    "elver-core",
];

/// Checks them; says what it found.
pub(crate) fn check() -> Result<String> {
    for name in CRATES {
        compile(name)?;
        features(name)?;
    }
    let members = metadata(&["--no-deps"])?;
    for package in list(&members, "packages")? {
        if CRATES.contains(&text(package, "name")?) {
            let manifest = Path::new(text(package, "manifest_path")?);
            let source = manifest.parent().context("a manifest has a directory")?.join("src");
            sources(&source)?;
        }
    }
    Ok(format!("{} use core and alloc alone", CRATES.join(", ")))
}

/// Compiles a crate with its default features off.
fn compile(name: &str) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo)
        .args(["check", "--quiet", "--locked", "--no-default-features", "--package", name])
        .status()
        .context("cannot run cargo check")?;
    ensure!(status.success(), "{name} does not compile with its default features off");
    Ok(())
}

/// Checks that nothing below a crate has a `std` feature on.
fn features(name: &str) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--no-default-features", "--edges", "normal", "--prefix"])
        .args(["none", "--format", "{p} [{f}]", "--package", name])
        .output()
        .context("cannot run cargo tree")?;
    ensure!(output.status.success(), "cargo tree failed for {name}");
    let tree = String::from_utf8(output.stdout).context("cargo tree printed no text")?;
    let wrong = std_features(&tree);
    ensure!(wrong.is_empty(), "below {name} the std feature is on: {}", wrong.join(", "));
    Ok(())
}

/// The lines of a tree that name the feature `std`; macros run at build time and may use it.
fn std_features(tree: &str) -> Vec<&str> {
    tree.lines()
        .filter(|line| !line.contains("(proc-macro)"))
        .filter(|line| {
            let features = line.rsplit_once('[').map_or("", |(_, features)| features);
            features.trim_end_matches("] (*)").trim_end_matches(']').split(',').any(|f| f == "std")
        })
        .collect()
}

/// Checks that a crate declares `no_std` and that its sources name std only in tests.
fn sources(source: &Path) -> Result<()> {
    let root = fs::read_to_string(source.join("lib.rs"))?;
    ensure!(root.contains("#![no_std]"), "{} lacks #![no_std]", source.display());
    let mut folders = vec![source.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                ensure!(!names_std(&text), "{} names std outside tests", path.display());
            }
        }
    }
    Ok(())
}

/// Whether a source names std before its tests begin.
fn names_std(source: &str) -> bool {
    let product = source.split("#[cfg(test)]").next().unwrap_or_default();
    product.contains("std::") || product.contains("extern crate std")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_std_feature_is_found() {
        let tree = "a v1 [alloc]\nb v1 [default,std]\nc v1 (proc-macro) [std]\nd v2 [std] (*)\n";
        assert_eq!(std_features(tree), ["b v1 [default,std]", "d v2 [std] (*)"]);
    }

    #[test]
    fn std_is_found_before_the_tests_alone() {
        assert!(names_std("fn a() {\n    extern crate std;\n}\n"));
        assert!(names_std("use std::fmt;\n"));
        assert!(!names_std("use core::fmt;\n#[cfg(test)]\nmod tests {\n    use std::fmt;\n}\n"));
    }
}
