//! Traffic that is made up, where no capture of real traffic may be given away.

use std::net::Ipv4Addr;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng as _, SeedableRng};
use rand_distr::{Distribution, Zipf};

use crate::flows::{Flow, Record};

/// What the traffic is like. The default is like a minute of a backbone's link: 30 million packets of a million
/// flows.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Flows that there are; those that no packet falls to are not seen.
    pub flows: u32,
    /// The k-th largest flow has 1/k^`skew` of the largest one's packets: Zipf's law.
    pub skew: f64,
    /// Packets a second, at equal distances.
    pub packets_per_s: u64,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { flows: 1_000_000, skew: 1.0, packets_per_s: 500_000 }
    }
}

/// Sizes of packets and how many of twelve have them, in bytes: "simple IMIX".
const SIZES: [(u32, u32); 3] = [(64, 7), (576, 4), (1_500, 1)];

impl Traffic {
    /// Packets without end, the same for the same seed.
    ///
    /// # Panics
    /// Without flows, with a skew that is not a number of 0 or above, or without packets in a second.
    pub fn packets(self, seed: u64) -> impl Iterator<Item = Record> {
        let Traffic { flows, skew, packets_per_s } = self;
        assert!(packets_per_s > 0, "traffic has packets");
        let law =
            Zipf::new(f64::from(flows), skew).expect("a number of flows, and a skew of 0 or above");
        let mut random = ChaCha20Rng::seed_from_u64(seed);
        (0..).map(move |sequence| Record {
            flow: flow(law.sample(&mut random) as u32),
            nanoseconds: (u128::from(sequence) * 1_000_000_000 / u128::from(packets_per_s)) as u64,
            sequence,
            bytes: size(random.next_u32()),
        })
    }
}

/// The flow of a rank: nothing about it is random, so that it is the same in each trace.
fn flow(rank: u32) -> Flow {
    let mixed = u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Flow {
        source: Ipv4Addr::from_bits(rank ^ 0x0a00_0000),
        destination: Ipv4Addr::from_bits((mixed >> 32) as u32),
        source_port: (mixed >> 16) as u16 | 1_024,
        destination_port: if rank.is_multiple_of(3) { 53 } else { 443 },
        protocol: if rank.is_multiple_of(3) { 17 } else { 6 },
    }
}

fn size(random: u32) -> u32 {
    let mut left = random % SIZES.iter().map(|(_, share)| share).sum::<u32>();
    for (bytes, share) in SIZES {
        if left < share {
            return bytes;
        }
        left -= share;
    }
    unreachable!("the shares are all there are")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::Counts;

    #[test]
    fn flows_are_as_large_as_the_law_says() {
        let traffic = Traffic { flows: 1_000, ..Traffic::default() };
        let mut counts = Counts::default();
        for record in traffic.packets(7).take(200_000) {
            counts.count(&record);
        }
        // 1/(1 + 1/2 + … + 1/1000) is 0.1336; 200,000 draws deviate by 0.0008.
        let share = |rank: u32| counts.of(&flow(rank)).packets as f64 / 200_000.0;
        for rank in [1, 2, 10] {
            let wanted = 0.1336 / f64::from(rank);
            assert!((share(rank) - wanted).abs() < 0.005, "rank {rank}: {}", share(rank));
        }
        assert_eq!((counts.gaps(), counts.total().packets), (0, 200_000));
        // (7 · 64 + 4 · 576 + 1500) / 12 bytes.
        let mean = counts.total().bytes as f64 / 200_000.0;
        assert!((mean - 354.3).abs() < 4.0, "{mean}");
    }

    #[test]
    fn the_same_seed_gives_the_same_and_another_does_not() {
        let of = |seed| Traffic::default().packets(seed).take(50).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!(of(1)[49].nanoseconds, 98_000);
    }

    #[test]
    fn each_rank_is_a_flow_of_its_own() {
        let flows: std::collections::HashSet<_> = (1..=100_000).map(flow).collect();
        assert_eq!(flows.len(), 100_000);
    }
}
