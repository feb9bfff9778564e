//! Packets from one process to another through memory. Each of the two has a file that it alone writes and
//! the other maps read-only: what it sends, how far that goes, and how far it has taken what the other
//! sent. Nothing that a process leaves half done is seen by the other, and what is taken is copied before
//! it is looked at.

#[cfg(test)]
mod model;
mod packets;

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use elver_soft::allow_file;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

pub(crate) use self::packets::{Broken, Full, Sent};
use self::packets::{Space, WORD};
use super::mapped::{Mapped, Shared};

/// Words of a lane: what a peer's window has in flight fits, so that packets are lost to those alone that
/// do not look.
const WORDS: usize = 1 << 18;

#[repr(C, align(64))]
struct Count(AtomicU64);

#[repr(C)]
pub(crate) struct Layout {
    sent: Count,
    taken: Count,
    words: [AtomicU64; WORDS],
}

// SAFETY: it consists of atomic integers.
unsafe impl Shared for Layout {}

/// What this process sends to one peer, and has taken of his.
pub(crate) struct Lane {
    mapped: Mapped<Layout>,
}

/// The same of a peer.
pub(crate) struct LaneView(Mapped<Layout>);

impl Space for Layout {
    const WORDS: usize = WORDS;
    const AGAIN: usize = 1 << 13;

    #[inline]
    fn sent(&self) -> u64 {
        self.sent.0.load(Ordering::Acquire)
    }

    #[inline]
    fn tell_sent(&self, words: u64) {
        self.sent.0.store(words, Ordering::Release);
    }

    #[inline]
    fn taken(&self) -> u64 {
        self.taken.0.load(Ordering::Acquire)
    }

    #[inline]
    fn tell_taken(&self, words: u64) {
        self.taken.0.store(words, Ordering::Release);
    }

    #[inline]
    fn head(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    #[inline]
    fn set_head(&self, at: usize, head: u64) {
        self.words[at].store(head, Ordering::Relaxed);
    }

    #[inline]
    fn put(&self, at: usize, bytes: &[u8]) {
        let words = &self.words[at..];
        assert!(bytes.len() <= words.len() * WORD);
        let to = words.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: they lie inside, which this process alone writes; the peer looks at them once they are
        // told of.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    #[inline]
    fn get(&self, at: usize, into: &mut [u8]) {
        let words = &self.words[at..];
        assert!(into.len() <= words.len() * WORD);
        // SAFETY: they lie inside; a peer that writes them meanwhile breaks his own packet.
        unsafe { ptr::copy_nonoverlapping(words.as_ptr().cast(), into.as_mut_ptr(), into.len()) };
    }
}

impl Lane {
    /// With its file, which the peer is given.
    pub(crate) fn new() -> Result<(Lane, OwnedFd), Errno> {
        let file = memfd_create("elver-lane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        allow_file(size_of::<Layout>() as u64)?;
        rustix::fs::ftruncate(&file, size_of::<Layout>() as u64)?;
        let mapped = Mapped::<Layout>::of(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok((Lane { mapped }, file))
    }

    /// Sends a packet. One thread at a time.
    #[inline]
    pub(crate) fn send(
        &self,
        at: &mut Sent,
        peer: &LaneView,
        class: u8,
        packet: &[u8],
    ) -> Result<(), Full> {
        packets::send(self.mapped.get(), peer.0.get(), at, class, packet)
    }

    /// Tells the peer how much of his was taken.
    #[inline]
    pub(crate) fn took(&self, words: u64) {
        self.mapped.get().tell_taken(words);
    }
}

impl LaneView {
    pub(crate) fn new(file: OwnedFd) -> Result<LaneView, Errno> {
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let size = rustix::fs::fstat(&file)?.st_size;
        if !sealed || size as u64 != size_of::<Layout>() as u64 {
            return Err(Errno::INVAL);
        }
        Ok(LaneView(Mapped::of(&file, ProtFlags::READ)?))
    }

    /// Whether more was sent than was taken.
    #[inline]
    pub(crate) fn has_more(&self, taken: u64) -> bool {
        self.0.get().sent() != taken
    }

    /// Takes the next packet, as long as `buf` at most; its length and traffic class.
    #[inline]
    pub(crate) fn take(
        &self,
        taken: &mut u64,
        buf: &mut [u8],
    ) -> Result<Option<(usize, u8)>, Broken> {
        packets::take(self.0.get(), taken, buf)
    }
}

#[cfg(test)]
mod tests {
    use elver_random::Rng;

    use super::packets::SKIP;
    use super::*;

    const AGAIN: usize = Layout::AGAIN;

    fn lane() -> (Lane, LaneView) {
        let (lane, file) = Lane::new().unwrap();
        (lane, LaneView::new(file).unwrap())
    }

    /// What is sent while the other takes it arrives as it was, in order.
    #[test]
    fn packets_arrive_in_order() {
        let ((here, of_here), (there, of_there)) = (lane(), lane());
        const PACKETS: u32 = 30_000;
        let length = |n: u32| (n.wrapping_mul(2_654_435_761) >> 7) as usize % 4_200;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = Sent::default();
                let mut packet = Vec::new();
                for n in 0..PACKETS {
                    packet.clear();
                    packet.resize(length(n), n as u8);
                    while here.send(&mut at, &of_there, n as u8, &packet).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut taken, mut buf) = (0, vec![0; 4_200]);
            for n in 0..PACKETS {
                let (len, class) = loop {
                    if let Some(found) = of_here.take(&mut taken, &mut buf).unwrap() {
                        break found;
                    }
                    std::thread::yield_now();
                };
                there.took(taken);
                assert_eq!((len, class), (length(n), n as u8));
                assert!(buf[..len].iter().all(|byte| *byte == n as u8), "packet {n}");
            }
            assert_eq!(of_here.take(&mut taken, &mut buf), Ok(None));
        });
    }

    #[test]
    fn a_lane_that_nobody_takes_from_is_full_and_one_that_is_empty_begins_anew() {
        let ((here, of_here), (there, of_there)) = (lane(), lane());
        let (mut at, mut taken, mut buf) = (Sent::default(), 0, vec![0; 4_096]);
        let packet = [7; 4_096];
        let mut count = 0;
        while here.send(&mut at, &of_there, 0, &packet).is_ok() {
            count += 1;
        }
        assert_eq!(count, WORDS / (1 + packet.len() / WORD));
        assert_eq!(here.send(&mut at, &of_there, 0, &packet), Err(Full));
        while of_here.take(&mut taken, &mut buf).unwrap().is_some() {}
        there.took(taken);
        for _ in 0..1_000 {
            here.send(&mut at, &of_there, 0, &packet[..64]).unwrap();
            assert_eq!(of_here.take(&mut taken, &mut buf), Ok(Some((64, 0))));
            there.took(taken);
            assert!(at.words as usize % WORDS <= AGAIN + 9);
        }
    }

    #[test]
    fn who_leaves_all_out_is_found_out() {
        let (here, of_here) = lane();
        let layout = here.mapped.get();
        layout.words[0].store(SKIP, Ordering::Relaxed);
        layout.sent.0.store(WORDS as u64, Ordering::Relaxed);
        assert_eq!(of_here.take(&mut 0, &mut [0; 64]), Err(Broken));
    }

    /// Whatever a peer has in his file, what is taken ends and stays inside.
    #[test]
    fn nonsense_is_found_out() {
        let mut rng = Rng::new(20_261_124_u64);
        let (here, of_here) = lane();
        let layout = here.mapped.get();
        let mut buf = vec![0; 4_096];
        let mut broken = 0;
        for _ in 0..2_000 {
            let mut taken = u64::from(rng.next_u32() % (2 * WORDS as u32));
            let sent = match rng.next_u32() % 3 {
                0 => taken + u64::from(rng.next_u32() % 600),
                1 => taken.wrapping_sub(u64::from(rng.next_u32())),
                _ => u64::from(rng.next_u32()) << 32,
            };
            layout.sent.0.store(sent, Ordering::Relaxed);
            for n in 0..64 {
                let word = &layout.words[(taken as usize + n) % WORDS];
                word.store(u64::from(rng.next_u32() >> (rng.next_u32() % 32)), Ordering::Relaxed);
            }
            let begun = taken;
            loop {
                match of_here.take(&mut taken, &mut buf) {
                    Ok(None) => break,
                    Ok(Some((length, _))) => assert!(length <= buf.len()),
                    Err(Broken) => {
                        broken += 1;
                        break;
                    }
                }
                assert!(taken > begun && taken - begun <= 2 * WORDS as u64);
            }
        }
        assert!(broken > 1_000, "{broken}");
    }
}
