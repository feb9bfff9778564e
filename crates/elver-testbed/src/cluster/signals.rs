//! What a signal leaves behind: nothing.

use std::sync::OnceLock;
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::cluster::scratch;

/// From now on a signal that ends this process removes its directories first. Its daemons get
/// theirs from the kernel, by the death of their parent.
pub(super) fn watch() -> Result<()> {
    static WATCHED: OnceLock<()> = OnceLock::new();
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch signals")?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            scratch::remove_all();
            // It ends the process as if nobody had watched.
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}
