//! What the tests share: the daemon as a process, other processes beside it, and the plain client of the
//! node's own tests.

#[path = "../../../../elver-node/tests/all/common/mod.rs"]
mod client;
pub mod daemon;
pub mod group;
pub mod process;
pub mod stall;

use std::path::Path;
use std::time::Instant;

use elver_portal::{Answer, Reply, Socket};

pub use client::*;

impl Client {
    pub fn connect(path: &Path) -> Result<Client, String> {
        Client::over(Socket::connect(path, PATIENCE).map_err(|error| error.to_string())?)
    }

    /// The next so many answers, in whatever order they come: whether each was refused.
    pub fn outcomes(&mut self, count: usize) -> Vec<(u32, Result<(), Refused>)> {
        let limit = Instant::now() + PATIENCE;
        let mut outcomes = Vec::new();
        while outcomes.len() < count {
            assert!(Instant::now() < limit, "{} of {count} answers", outcomes.len());
            match self.end.next_reply(&mut self.scratch).unwrap() {
                Some(Reply::Answer { request, answer: Answer::Refused(refusal) }) => {
                    outcomes.push((request, Err((refusal.code, refusal.text.to_string()))));
                }
                Some(Reply::Answer { request, .. }) => outcomes.push((request, Ok(()))),
                Some(Reply::Completion(completion)) => self.completions.push(completion),
                Some(Reply::VqpFailed { vqp, cause }) => self.failed.push((vqp, cause.code)),
                None => std::thread::yield_now(),
            }
        }
        outcomes
    }
}
