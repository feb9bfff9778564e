//! DLSlime's endpoints.

use anyhow::Result;

use super::stage::{Said, Stage};

/// Of the library, and of its environment.
pub(super) const NAME: &str = "dlslime";

/// How fast says more of the machine: a thread of its own and who waits for that look without a pause.
pub(super) fn moves(stage: &Stage<'_>) -> Result<Said> {
    stage.moved(NAME, &[], false)?;
    Ok(Said::default())
}
