//! Signals end everything, in order.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by signals: everything ends.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Signals end a run in order: guests are in process groups of their own, and would outlive this one.
pub fn handle() -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context("cannot handle signals")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}
