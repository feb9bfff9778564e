//! Counting packets by flow, as a measuring network function does.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use rapidhash::fast::RandomState;

/// Whose packet it is: both ends and the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Who sends.
    pub source: Ipv4Addr,
    /// To whom.
    pub destination: Ipv4Addr,
    /// The sender's port, or 0.
    pub source_port: u16,
    /// The other one's, or 0.
    pub destination_port: u16,
    /// The number of the protocol above IP (IANA).
    pub protocol: u8,
}

/// What is told of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose it is.
    pub flow: Flow,
    /// When it was seen, in nanoseconds.
    pub nanoseconds: u64,
    /// How many came before it.
    pub sequence: u64,
    /// Bytes of it on the wire.
    pub bytes: u32,
}

/// Bytes of a record as it is sent.
pub const RECORD: usize = 40;

impl Record {
    /// As it is sent: the flow in 16 bytes, then time, sequence and size, and four zeros.
    pub fn encode(&self) -> [u8; RECORD] {
        let Record { flow, nanoseconds, sequence, bytes } = self;
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&flow.source.octets());
        out[4..8].copy_from_slice(&flow.destination.octets());
        out[8..10].copy_from_slice(&flow.source_port.to_be_bytes());
        out[10..12].copy_from_slice(&flow.destination_port.to_be_bytes());
        out[12] = flow.protocol;
        out[16..24].copy_from_slice(&nanoseconds.to_le_bytes());
        out[24..32].copy_from_slice(&sequence.to_le_bytes());
        out[32..36].copy_from_slice(&bytes.to_le_bytes());
        out
    }

    /// What [`Record::encode`] made. Any bytes are a record.
    pub fn decode(from: &[u8; RECORD]) -> Record {
        let [s0, s1, s2, s3, d0, d1, d2, d3, sp0, sp1, dp0, dp1, protocol, _, _, _, rest @ ..] =
            *from;
        let [t0, t1, t2, t3, t4, t5, t6, t7, n0, n1, n2, n3, n4, n5, n6, n7, b0, b1, b2, b3, ..] =
            rest;
        Record {
            flow: Flow {
                source: Ipv4Addr::new(s0, s1, s2, s3),
                destination: Ipv4Addr::new(d0, d1, d2, d3),
                source_port: u16::from_be_bytes([sp0, sp1]),
                destination_port: u16::from_be_bytes([dp0, dp1]),
                protocol,
            },
            nanoseconds: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            sequence: u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            bytes: u32::from_le_bytes([b0, b1, b2, b3]),
        }
    }
}

/// Packets, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    total: Count,
    flows: HashMap<Flow, Count, RandomState>,
    /// Records that were not the next of their sequence.
    gaps: u64,
    next: u64,
}

impl Counts {
    /// Takes a record in.
    pub fn count(&mut self, record: &Record) {
        self.total.add(record.bytes);
        self.flows.entry(record.flow).or_default().add(record.bytes);
        self.gaps += u64::from(record.sequence != self.next);
        self.next = record.sequence.wrapping_add(1);
    }

    /// Of all flows.
    pub fn total(&self) -> Count {
        self.total
    }

    /// How many flows there were.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Of one flow; zeros of one that was not seen.
    pub fn of(&self, flow: &Flow) -> Count {
        self.flows.get(flow).copied().unwrap_or_default()
    }

    /// Records that did not follow the one before: some between were lost, repeated or out of order.
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// The flows with most packets, the largest first.
    pub fn largest(&self, most: usize) -> Vec<(Flow, Count)> {
        let mut flows: Vec<_> = self.flows.iter().map(|(flow, count)| (*flow, *count)).collect();
        flows.sort_by_key(|(flow, count)| (std::cmp::Reverse(count.packets), *flow));
        flows.truncate(most);
        flows
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(flow: u8, sequence: u64, bytes: u32) -> Record {
        let flow = Flow {
            source: Ipv4Addr::new(10, 0, 0, flow),
            destination: Ipv4Addr::new(192, 0, 2, 1),
            source_port: 1_000,
            destination_port: 443,
            protocol: 6,
        };
        Record { flow, nanoseconds: sequence * 100, sequence, bytes }
    }

    #[test]
    fn flows_are_counted_and_gaps_are_seen() {
        let mut counts = Counts::default();
        for one in [record(1, 0, 64), record(2, 1, 1_500), record(1, 2, 64), record(1, 4, 64)] {
            counts.count(&one);
        }
        assert_eq!(counts.total(), Count { packets: 4, bytes: 1_692 });
        assert_eq!((counts.flows(), counts.gaps()), (2, 1));
        assert_eq!(counts.of(&record(2, 0, 0).flow), Count { packets: 1, bytes: 1_500 });
        assert_eq!(counts.of(&record(3, 0, 0).flow), Count::default());
        let largest = counts.largest(1);
        assert_eq!(largest, [(record(1, 0, 0).flow, Count { packets: 3, bytes: 192 })]);
    }

    proptest! {
        #[test]
        fn a_record_is_sent_and_understood(bytes in any::<[u8; RECORD]>()) {
            let record = Record::decode(&bytes);
            prop_assert_eq!(Record::decode(&record.encode()), record);
            prop_assert_eq!(&record.encode()[..13], &bytes[..13]);
            prop_assert_eq!(&record.encode()[16..36], &bytes[16..36]);
        }
    }
}
