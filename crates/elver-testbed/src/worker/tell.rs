//! How a worker speaks with its parent: lines of JSON out, and in; the end of what comes in ends it.

use std::io::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The last thing that a worker tells which failed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Failed {
    pub(super) failed: String,
}

/// Tells the parent something.
pub(super) fn tell(what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what)? + "\n";
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(line.as_bytes()).and_then(|()| out.flush())?)
}

/// Ends this process when its parent closes its standard input or dies.
pub(super) fn end_with_parent() -> Result<()> {
    std::thread::Builder::new()
        .name("parent".into())
        .spawn(|| {
            // Whatever comes first: its end, or an error, which is an end too.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        })
        .context("cannot start a thread")?;
    Ok(())
}
