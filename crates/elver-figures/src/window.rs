//! A number of WRs under way through a VQP, in batches of which the last WR is signalled.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use elver_testbed::sample::{Clock, Sample};
use elver_verbs::{Payload, SendFlags, SendOp, SendWr, Sge};

/// An operation that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);

/// How much is under way, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// WRs under way.
    pub(crate) depth: u32,
    /// WRs of a batch.
    pub(crate) batch: u32,
    pub(crate) duration: Duration,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Post a batch.
    Post,
    /// Take completions that are there, and say how many.
    Take,
}

impl Window {
    /// A batch of equal WRs.
    pub(crate) fn batch<'a>(&self, op: SendOp, sges: &'a [Sge]) -> Vec<SendWr<'a>> {
        let wr = |last| SendWr {
            wr_id: 0,
            op,
            flags: if last { SendFlags::SIGNALED } else { SendFlags::empty() },
            payload: Payload::Sges(sges),
            dest: None,
        };
        (1..=self.batch).map(|index| wr(index == self.batch)).collect()
    }

    /// Keeps as many batches under way as fit; a latency is a batch's.
    pub(crate) fn run(&self, mut take: impl FnMut(Step) -> Result<usize>) -> Result<Sample> {
        let window = (self.depth / self.batch).max(1) as usize;
        let mut sample = Sample::of_batches(self.batch as usize)?;
        let mut posted_at = vec![Instant::now(); window];
        let (mut posted, mut completed) = (0usize, 0usize);
        let mut clock = Clock::new(self.duration);
        let mut last = Instant::now();
        while clock.goes_on(&mut sample) {
            while posted - completed < window {
                posted_at[posted % window] = last;
                take(Step::Post)?;
                posted += 1;
            }
            let found = loop {
                match take(Step::Take)? {
                    0 => ensure!(last.elapsed() < STALL, "nothing completed for {STALL:?}"),
                    found => break found,
                }
            };
            last = Instant::now();
            for _ in 0..found {
                sample.record(last - posted_at[completed % window]);
                completed += 1;
            }
        }
        clock.finish(&mut sample);
        Ok(sample)
    }
}
