//! What the demonstration says: text for people, with colour and progress on a terminal alone.

use std::io::IsTerminal;

use elver_console::{Progress, say};

pub(crate) struct Say {
    silent: bool,
    colour: bool,
    progress: Progress,
}

impl Say {
    /// Says nothing but progress where programs read.
    pub(crate) fn new(for_programs: bool) -> Say {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Say {
            silent: for_programs,
            colour: std::io::stdout().is_terminal() && !plain && !dumb,
            progress: Progress::begin(),
        }
    }

    /// What is being done.
    pub(crate) fn doing(&mut self, what: &str) {
        self.progress.doing(what);
    }

    /// The begin of a part.
    pub(crate) fn title(&mut self, text: &str) {
        let (bold, plain) = if self.colour { ("\x1b[1;36m", "\x1b[0m") } else { ("", "") };
        self.line(&format!("\n{bold}{text}{plain}"));
    }

    /// A line of a table.
    pub(crate) fn row(&mut self, name: &str, value: &str) {
        self.line(&format!("  {name:<34} {value}"));
    }

    /// Something that was claimed, and holds.
    pub(crate) fn holds(&mut self, text: &str) {
        let (green, plain) = if self.colour { ("\x1b[32m", "\x1b[0m") } else { ("", "") };
        self.line(&format!("  {green}✓{plain} {text}"));
    }

    fn line(&mut self, text: &str) {
        self.progress.erase();
        if !self.silent {
            say!("{text}");
        }
    }
}
