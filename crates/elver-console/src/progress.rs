//! A line on the terminal that says what is being done, and goes when it is done.

use std::io::{IsTerminal, Write};

/// Erases the line.
const ERASE: &str = "\r\x1b[2K";

/// Progress, where standard error is a terminal that can erase a line.
pub struct Progress(bool);

impl Progress {
    /// None yet.
    pub fn begin() -> Progress {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Progress(std::io::stderr().is_terminal() && !dumb)
    }

    /// What is being done.
    pub fn doing(&self, what: &str) {
        if self.0 {
            // A terminal that is gone needs no progress.
            let _ = write!(std::io::stderr(), "{ERASE}… {what}");
        }
    }

    /// Makes room for a line of text.
    pub fn erase(&self) {
        if self.0 {
            let _ = write!(std::io::stderr(), "{ERASE}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}
