//! NIXL's agent, over the UCX that it brings, and the libibverbs that it brings under a name of its own.

use anyhow::Result;

use super::stage::{Said, Stage};

const DEVICE: (&str, &str) = ("UCX_TLS", "rc,ud");

/// As it is.
pub(super) fn moves(stage: &Stage<'_>) -> Result<Said> {
    measured(stage, &[DEVICE])
}

/// Without UCX's keepalive, for which it keeps a UD lane beside its RC lane.
pub(super) fn moves_quietly(stage: &Stage<'_>) -> Result<Said> {
    measured(stage, &[DEVICE, ("UCX_KEEPALIVE_INTERVAL", "inf")])
}

fn measured(stage: &Stage<'_>, env: &[(&str, &str)]) -> Result<Said> {
    let over = stage.moved("nixl", env, false)?;
    let mut measured = over.clone();
    if stage.place.is_host() {
        let tcp = stage.moved("nixl", &[("UCX_TLS", "tcp")], true)?;
        measured = format!("{over}; over its own TCP {tcp}");
    }
    Ok(Said { measured, ..Said::default() })
}
