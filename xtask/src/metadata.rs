//! What cargo says of the workspace.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// What `cargo metadata` says.
pub(crate) fn metadata(arguments: &[&str]) -> Result<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(arguments)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// A field that must be there.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    match value[key].as_str() {
        Some(text) => Ok(text),
        None => bail!("cargo metadata has no text field {key:?}"),
    }
}

/// An array that must be there.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    match value[key].as_array() {
        Some(list) => Ok(list),
        None => bail!("cargo metadata has no list field {key:?}"),
    }
}
