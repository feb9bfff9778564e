//! How packets lie in a lane: one behind the other, each behind a word with its length and traffic class. One
//! that does not fit before the end begins anew at the start.

/// Of the word before a packet: its length, then its traffic class. This length is of what is left out at the
/// end.
pub(super) const SKIP: u64 = 0xffff;
pub(super) const WORD: usize = 8;

/// What lies in a lane's file, with the order in which the other process sees it.
pub(super) trait Space {
    const WORDS: usize;
    /// Words behind which a lane that is empty begins anew, so that who sends little touches little memory.
    const AGAIN: usize;

    /// Words sent and words taken since the beginning, each of what it names. What was written before one was
    /// told is seen by who reads it.
    fn sent(&self) -> u64;
    fn tell_sent(&self, words: u64);
    fn taken(&self) -> u64;
    fn tell_taken(&self, words: u64);

    fn head(&self, at: usize) -> u64;
    fn set_head(&self, at: usize, head: u64);
    /// Puts bytes at a word, and gets them from there, which lie inside.
    fn put(&self, at: usize, bytes: &[u8]);
    fn get(&self, at: usize, into: &mut [u8]);
}

/// How far a process is with a lane of its own.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(super) words: u64,
    /// What the peer had taken when that was looked at last.
    taken: u64,
}

/// There is no room, since the peer takes nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What a peer wrote is no packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Sends a packet in a lane of this process; the peer's tells what was taken of it. One thread at a time.
#[inline]
pub(super) fn send<S: Space>(
    own: &S,
    peer: &S,
    at: &mut Sent,
    class: u8,
    packet: &[u8],
) -> Result<(), Full> {
    let needed = 1 + packet.len().div_ceil(WORD);
    let mut offset = at.words as usize % S::WORDS;
    let rest = S::WORDS - offset;
    let mut skipped = if needed > rest { rest } else { 0 };
    if at.words + (skipped + needed) as u64 > at.taken + S::WORDS as u64 || offset > S::AGAIN {
        let taken = peer.taken();
        // Nobody takes what was not sent.
        at.taken = if taken > at.words { at.taken } else { taken };
        if at.taken == at.words && offset > S::AGAIN {
            skipped = rest;
        }
        if at.words + (skipped + needed) as u64 > at.taken + S::WORDS as u64 {
            return Err(Full);
        }
    }
    if skipped > 0 {
        own.set_head(offset, SKIP);
        offset = 0;
    }
    own.set_head(offset, u64::from(class) << 16 | packet.len() as u64);
    own.put(offset + 1, packet);
    at.words += (skipped + needed) as u64;
    own.tell_sent(at.words);
    Ok(())
}

/// Takes the next packet of a peer's lane, as long as `buf` at most; its length and traffic class.
#[inline]
pub(super) fn take<S: Space>(
    peer: &S,
    taken: &mut u64,
    buf: &mut [u8],
) -> Result<Option<(usize, u8)>, Broken> {
    loop {
        let there = peer.sent().wrapping_sub(*taken);
        if there == 0 {
            return Ok(None);
        }
        let offset = *taken as usize % S::WORDS;
        let head = peer.head(offset);
        let rest = S::WORDS - offset;
        if there > S::WORDS as u64 {
            return Err(Broken);
        }
        if head & 0xffff == SKIP {
            // What is at the beginning leaves nothing out, so that this comes to its end.
            if offset == 0 || (rest as u64) > there {
                return Err(Broken);
            }
            *taken += rest as u64;
            continue;
        }
        let length = (head & 0xffff) as usize;
        let needed = 1 + length.div_ceil(WORD);
        let Some(to) = buf.get_mut(..length) else { return Err(Broken) };
        if needed > rest || needed as u64 > there {
            return Err(Broken);
        }
        peer.get(offset + 1, to);
        *taken += needed as u64;
        return Ok(Some((length, (head >> 16) as u8)));
    }
}
