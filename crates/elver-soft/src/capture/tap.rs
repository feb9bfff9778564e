//! A tap: a device puts what goes over its link into a bounded ring, from which another thread takes
//! it. The device never waits for that; what finds no room is counted and left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rtrb::{Consumer, Producer, RingBuffer};

use super::pcapng::{Direction, Recorded};

/// Bytes in front of each packet in the ring.
const HEAD_BYTES: usize = 20;
/// Bits of a packet's length; none has 2^30 bytes. The direction stands above them.
const LEN_BITS: u32 = 30;
/// The fewest bytes of a ring: some of the longest packets.
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// The device's end; see [`tap`].
#[derive(Debug)]
pub struct Tap {
    ring: Producer<u8>,
    snap_bytes: usize,
    /// Packets left out since the last one that found room.
    lost: u32,
    lost_total: Arc<AtomicU64>,
}

/// The end of who takes what was recorded.
#[derive(Debug)]
pub struct TapReader {
    ring: Consumer<u8>,
    /// What was read of a packet whose bytes are still being put in.
    head: Option<Head>,
    bytes: Vec<u8>,
    lost_total: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    unix_ns: u64,
    direction: Direction,
    len: u32,
    kept: u32,
    lost: u32,
}

/// Both ends of a tap whose ring has about so many bytes, and that keeps so many of each packet.
pub fn tap(buffer_bytes: usize, snap_bytes: u32) -> (Tap, TapReader) {
    let (producer, consumer) = RingBuffer::new(buffer_bytes.max(BUFFER_BYTES_MIN));
    let lost_total = Arc::<AtomicU64>::default();
    let snap_bytes = snap_bytes as usize;
    let tap = Tap { ring: producer, snap_bytes, lost: 0, lost_total: lost_total.clone() };
    (tap, TapReader { ring: consumer, head: None, bytes: Vec::new(), lost_total })
}

/// Nanoseconds since 1970, now.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Tap {
    /// Records a packet of this moment, which consists of two parts.
    pub(super) fn record(&mut self, direction: Direction, front: &[u8], back: &[u8]) {
        let front_kept = front.len().min(self.snap_bytes);
        let back_kept = back.len().min(self.snap_bytes - front_kept);
        let kept = front_kept + back_kept;
        if self.ring.slots() < HEAD_BYTES + kept {
            self.lost = self.lost.saturating_add(1);
            self.lost_total.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let len = (front.len() + back.len()) as u32;
        let head = Head { unix_ns: unix_ns(), direction, len, kept: kept as u32, lost: self.lost };
        self.lost = 0;
        for bytes in [&head.encode()[..], &front[..front_kept], &back[..back_kept]] {
            // There is room: it was counted, and only this end takes any.
            let _ = self.ring.push_entire_slice(bytes);
        }
    }
}

impl TapReader {
    /// Takes the oldest packet, if one is there whole.
    pub fn take(&mut self) -> Option<Recorded<'_>> {
        let head = match self.head.take() {
            Some(head) => head,
            None => {
                let mut bytes = [0; HEAD_BYTES];
                self.ring.pop_entire_slice(&mut bytes).ok()?;
                Head::decode(&bytes)
            }
        };
        self.bytes.resize(head.kept as usize, 0);
        if self.ring.pop_entire_slice(&mut self.bytes).is_err() {
            self.head = Some(head);
            return None;
        }
        Some(Recorded {
            unix_ns: head.unix_ns,
            direction: head.direction,
            bytes: &self.bytes,
            len: head.len,
            lost: head.lost,
        })
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.head.is_none() && self.ring.is_empty()
    }

    /// Packets that found no room so far.
    pub fn lost(&self) -> u64 {
        self.lost_total.load(Ordering::Relaxed)
    }
}

impl Head {
    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.unix_ns.to_ne_bytes());
        let way = (self.direction as u32) << LEN_BITS;
        bytes[8..12].copy_from_slice(&(self.len | way).to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.kept.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.lost.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Head {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let mut unix_ns = [0; 8];
        unix_ns.copy_from_slice(&bytes[..8]);
        let is_in = word(8) >> LEN_BITS == Direction::In as u32;
        let direction = if is_in { Direction::In } else { Direction::Out };
        let (len, kept, lost) = (word(8) & ((1 << LEN_BITS) - 1), word(12), word(16));
        Head { unix_ns: u64::from_ne_bytes(unix_ns), direction, len, kept, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_where_it_is_missing() {
        let (mut tap, mut reader) = tap(0, 100);
        let mut sent = 0u32;
        // Until it is full, and two more.
        while reader.lost() < 2 {
            tap.record(Direction::Out, &sent.to_ne_bytes(), &[0x55; 300]);
            sent += 1;
        }
        for number in 0..sent - 2 {
            let one = reader.take().unwrap();
            assert_eq!(one.bytes[..4], number.to_ne_bytes());
            assert_eq!((one.bytes.len(), one.len, one.lost), (100, 304, 0));
        }
        assert!(reader.take().is_none() && reader.is_empty());
        tap.record(Direction::In, &[], &[7; 3]);
        let one = reader.take().unwrap();
        assert_eq!((one.bytes, one.len, one.lost), (&[7, 7, 7][..], 3, 2));
        assert_eq!((one.direction, reader.lost()), (Direction::In, 2));
    }

    #[test]
    fn a_packet_is_taken_whole_from_another_thread() {
        let (mut tap, mut reader) = tap(0, 9_000);
        const COUNT: u32 = 20_000;
        let writer = std::thread::spawn(move || {
            for number in 0..COUNT {
                let len = number as usize % 700;
                tap.record(Direction::In, &number.to_ne_bytes(), &vec![number as u8; len]);
            }
        });
        let mut seen = 0;
        loop {
            let ended = writer.is_finished();
            match reader.take() {
                Some(one) => {
                    let number = u32::from_ne_bytes(one.bytes[..4].try_into().unwrap());
                    seen += one.lost + 1;
                    assert_eq!(number + 1, seen, "those that are missing are told where they are");
                    assert_eq!(one.bytes.len(), 4 + number as usize % 700);
                    assert!(one.bytes[4..].iter().all(|byte| *byte == number as u8));
                }
                None if ended => break,
                None => std::thread::yield_now(),
            }
        }
        assert!(seen <= COUNT && u64::from(COUNT - seen) <= reader.lost());
        writer.join().unwrap();
    }
}
