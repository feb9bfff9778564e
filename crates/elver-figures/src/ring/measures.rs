//! How large a ring is, and how it batches.

use anyhow::Result;
use clap::Args;
use elver_ring::Config;

/// The paper's number of slots (section V-A), and the most that short messages get.
const SLOTS: u32 = 128;
const SLOTS_MAX: u32 = 2_048;
/// What a ring of short messages may take, beside its headers. The paper's 128 slots are filled long before
/// a pointer comes back from a software RNIC: a ring would measure round trips.
const RING_BYTES: u32 = 1 << 20;

/// Measures of rings, where others than the default are wanted.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Measures {
    /// Messages that a ring holds, a power of two: slots, and buffers that raw WRITEs take in turn. By
    /// default 128, and of short messages as many as take 1 MiB, at most 2048.
    #[arg(long)]
    slots: Option<u32>,
    /// Slots after which the tail is told; by default a quarter (throughput, as the next two).
    #[arg(long)]
    alpha: Option<u32>,
    /// Slots that go out ahead of the tail; by default an eighth, α at most.
    #[arg(long)]
    beta: Option<u32>,
    /// Slots after which the head is told; by default a quarter.
    #[arg(long)]
    gamma: Option<u32>,
    /// Slots right behind one another, which share cache lines: 72 bytes for 64 in place of 128.
    #[arg(long)]
    packed: bool,
}

impl Measures {
    /// Messages that a ring holds.
    pub(crate) fn slots_for(&self, size: u32) -> u32 {
        let fits = (RING_BYTES / size.next_multiple_of(64)).clamp(SLOTS, SLOTS_MAX);
        self.slots.unwrap_or(1 << fits.ilog2())
    }

    /// A ring whose slots hold a message each; 64 B and their header take two cache lines.
    pub(crate) fn config(&self, size: u32) -> Result<Config> {
        let ours = Config::default().with_slots(self.slots_for(size));
        let alpha = self.alpha.unwrap_or(ours.alpha);
        let beta = self.beta.unwrap_or(ours.beta.min(alpha));
        let gamma = self.gamma.unwrap_or(ours.gamma);
        let config = Config { alpha, beta, gamma, ..ours };
        Ok(match self.packed {
            true => config.packed_for_messages_of(size)?,
            false => config.for_messages_of(size)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_have_the_papers_measures_and_short_ones_more_slots() {
        let none = Measures::default();
        let slots = [64, 512, 4_096, 32_768, 1 << 20].map(|size| none.slots_for(size));
        assert_eq!(slots, [2_048, 2_048, 256, 128, 128]);
        let paper = Config::default();
        let config = none.config(1 << 20).unwrap();
        assert_eq!(Config { slot_bytes: paper.slot_bytes, ..config }, paper);
        let asked = Measures { slots: Some(8), alpha: Some(1), ..none };
        let Config { slots, alpha, beta, gamma, .. } = asked.config(64).unwrap();
        assert_eq!((slots, alpha, beta, gamma), (8, 1, 1, 2));
        assert!(Measures { slots: Some(100), ..none }.config(64).is_err());
    }
}
