//! Processes of one host that connect side by side.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elver_testbed::sample::{Sample, WARM_UP};
use elver_testbed::worker::Worker;
use elver_testbed::worker::member::{Order, Tally};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::de::DeserializeOwned;

/// How long a crowd may take to be there, to get ready, and to end beyond its time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between the word to begin and the begin: the word must have reached all.
const LEAD: Duration = Duration::from_millis(20);

/// Processes that do what they are told at the same time.
pub(crate) struct Crowd(Vec<Worker>);

impl Crowd {
    /// Waits until all of them are there.
    pub(crate) fn start(count: u32, member: impl Fn() -> Result<Worker>) -> Result<Crowd> {
        allow_files();
        let members = (0..count).map(|_| member()).collect::<Result<_>>()?;
        let mut crowd = Crowd(members);
        crowd.hear::<bool>(PATIENCE, "did not start")?;
        Ok(crowd)
    }

    /// All of them connect, each one at a time, for as long as the order says.
    pub(crate) fn connect(self, order: &Order) -> Result<Sample> {
        Ok(self.connect_to(std::slice::from_ref(order), || Ok(()))?.0)
    }

    /// The same, each as one of the orders in turn says; all of them for the same time. `ready` looks
    /// around when all are ready and none has begun.
    pub(crate) fn connect_to<T>(
        mut self,
        orders: &[Order],
        ready: impl FnOnce() -> Result<T>,
    ) -> Result<(Sample, T)> {
        let order = orders.first().context("a crowd without an order")?;
        for (member, order) in self.0.iter_mut().zip(orders.iter().cycle()) {
            member.ask(order)?;
        }
        self.hear::<bool>(PATIENCE, "did not get ready")?;
        let seen = ready()?;
        let begin = elver_node::now().saturating_add_ns(LEAD.as_nanos() as u64);
        self.ask(&begin.0)?;
        let duration = Duration::from_secs_f64(order.seconds);
        let warm = begin.saturating_add_ns(duration.mul_f64(WARM_UP).as_nanos() as u64);
        let tallies: Vec<Tally> = self.hear(duration + LEAD + PATIENCE, "did not connect")?;
        let mut sample = Sample::new()?;
        for tally in &tallies {
            sample.add_counts(&tally.counts);
        }
        let ended = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(warm.0);
        sample.took(Duration::from_nanos(ended.saturating_sub(warm.0)));
        Ok((sample, seen))
    }

    fn ask(&mut self, what: &impl serde::Serialize) -> Result<()> {
        self.0.iter_mut().try_for_each(|member| member.ask(what))
    }

    /// What each of them tells next, in all within `at_most`.
    fn hear<T: DeserializeOwned>(&mut self, at_most: Duration, failing: &str) -> Result<Vec<T>> {
        let end = Instant::now() + at_most;
        let count = self.0.len();
        let hear = |(index, member): (usize, &mut Worker)| {
            let left = end.saturating_duration_since(Instant::now());
            member.hear(left).with_context(|| format!("process {} of {count} {failing}", index + 1))
        };
        self.0.iter_mut().enumerate().map(hear).collect()
    }
}

/// Each process has two pipes here.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is not allowed, starting the process that is one too many says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
