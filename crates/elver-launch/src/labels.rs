//! What ranks say, a line at a time, with the rank before it.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A longer line is cut into several.
const LINE_MAX: u64 = 64 << 10;
/// How long a pipe may stay open when its rank has ended: what that has started may hold it.
const LAST_WORDS: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 128 << 10;

/// Where a rank's words go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    Output,
    Errors,
}

pub(crate) struct Labels {
    open: usize,
    /// Each thread that has come to its end says so.
    say: Sender<()>,
    said: Receiver<()>,
}

impl Labels {
    pub(crate) fn new() -> Labels {
        let (say, said) = channel();
        Labels { open: 0, say, said }
    }

    /// Passes on what is read, until its end.
    pub(crate) fn follow(
        &mut self,
        rank: usize,
        from: impl Read + Send + 'static,
        to: To,
    ) -> Result<()> {
        let say = self.say.clone();
        let run = move || {
            // Who reads may have enough: then the rank is told, as it writes on.
            let _ = pass_on(rank, from, |line| match to {
                To::Output => std::io::stdout().lock().write_all(line),
                To::Errors => std::io::stderr().lock().write_all(line),
            });
            let _ = say.send(());
        };
        let thread = std::thread::Builder::new().name(format!("elver-rank-{rank}"));
        thread.stack_size(STACK_BYTES).spawn(run).context("cannot follow a rank's output")?;
        self.open += 1;
        Ok(())
    }

    /// Waits until all was passed on.
    pub(crate) fn hear_out(&mut self) {
        let end = Instant::now() + LAST_WORDS;
        while self.open > 0 {
            if self.said.recv_timeout(end.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
            self.open -= 1;
        }
    }
}

fn pass_on(
    rank: usize,
    from: impl Read,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        write!(line, "{rank}: ")?;
        if from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        write(&line)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_rank_and_none_is_without_an_end() {
        let mut all = Vec::new();
        let take = |line: &[u8]| {
            all.extend_from_slice(line);
            Ok(())
        };
        pass_on(7, &b"one\n\ntwo"[..], take).unwrap();
        assert_eq!(all, b"7: one\n7: \n7: two\n");
    }

    #[test]
    fn long_lines_are_cut() {
        let mut lines = Vec::new();
        let take = |line: &[u8]| {
            lines.push(line.len());
            Ok(())
        };
        pass_on(1, &vec![b'x'; LINE_MAX as usize + 5][..], take).unwrap();
        assert_eq!(lines, [3 + LINE_MAX as usize + 1, 3 + 5 + 1]);
    }
}
