//! Tells on stderr what takes long.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Every line that takes longer than this is worth telling.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a step that goes on says so, where the line cannot be rewritten.
const REMINDER: Duration = Duration::from_secs(30);

/// One step, silent until it proves to be long.
pub struct Step {
    name: String,
    started: Instant,
    told: Option<Instant>,
    terminal: bool,
}

impl Step {
    pub fn new(name: impl Into<String>) -> Step {
        let terminal = std::io::stderr().is_terminal();
        Step { name: name.into(), started: Instant::now(), told: None, terminal }
    }

    /// A step that is known to be long: told at once.
    pub fn long(name: impl Into<String>) -> Step {
        let mut step = Step::new(name);
        eprintln!("lab: {} …", step.name);
        step.told = Some(Instant::now());
        step
    }

    /// To be called now and then: `state` says how far it is.
    pub fn tick(&mut self, state: &str) {
        let due = match self.told {
            None => self.started.elapsed() > PATIENCE,
            Some(told) if self.terminal => told.elapsed() > Duration::from_secs(1),
            Some(told) => told.elapsed() > REMINDER,
        };
        if !due {
            return;
        }
        self.told = Some(Instant::now());
        let seconds = self.started.elapsed().as_secs();
        let mut stderr = std::io::stderr().lock();
        // What cannot be written to stderr cannot be told at all.
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[Klab: {}: {state}, {seconds} s\r", self.name)
        } else {
            writeln!(stderr, "lab: {}: {state}, {seconds} s", self.name)
        };
        let _ = stderr.flush();
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.told.is_some() {
            let clear = if self.terminal { "\x1b[K" } else { "" };
            eprintln!("{clear}lab: {}: {:.1} s", self.name, self.started.elapsed().as_secs_f32());
        }
    }
}
