use thiserror::Error;

/// Words of 8 bytes in a slot of a ring.
pub const SLOT_WORDS: usize = 8;
/// Words of a slot that carry the entry; the first holds its tag, and in an entry's first slot what
/// the entry is.
pub const PAYLOAD_WORDS: usize = SLOT_WORDS - 1;
/// Most slots of an entry.
pub const ENTRY_SLOTS_MAX: usize = 16;
/// Most words that an entry carries.
pub const ENTRY_WORDS_MAX: usize = ENTRY_SLOTS_MAX * PAYLOAD_WORDS;

/// Bytes of a session's arena: memory for the small regions that most processes begin with. Both
/// ends map it with the rings, so that such a region costs neither a file nor a mapping of its own.
pub const ARENA_BYTES: u64 = 64 << 10;
const PAGE: usize = 4096;

/// Words between two that different ends write: two cache lines, since processors fetch them in
/// pairs.
const APART: usize = 16;
/// Words before the first ring.
const HEADER_WORDS: usize = 5 * APART;
const SLOTS_MIN: u32 = 2 * ENTRY_SLOTS_MAX as u32;
const SLOTS_MAX: u32 = 1 << 16;

/// Where everything stands in a session's shared memory.
///
/// ```text
///   word 0    node_sleeps      set by the node, taken back by whoever wakes it
///   word 16   client_sleeps    set by the client, likewise
///   word 32   head of the command ring       written by the node
///   word 48   head of the receive ring       written by the node
///   word 64   head of the completion ring    written by the client
///   word 80   slots of the command ring, then of the receive ring, then of the completion ring
///   from the next page on: the arena, of [`ARENA_BYTES`]
/// ```
///
/// A slot is a cache line: a word with a tag, and seven that carry an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Slots of the ring with commands and send WQEs, client to node. A power of two.
    pub command_slots: u32,
    /// Slots of the ring with posted receives, client to node. A power of two.
    pub receive_slots: u32,
    /// Slots of the ring with completions, answers and events, node to client. A power of two.
    pub completion_slots: u32,
}

/// Sizes that no layout has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a ring of {slots} slots: it must be a power of two in {SLOTS_MIN}..={SLOTS_MAX}")]
pub struct LayoutError {
    /// The size as given.
    pub slots: u32,
}

impl Default for Layout {
    fn default() -> Layout {
        // Small, since mapping a page costs a new process 0.15 µs.
        Layout { command_slots: 256, receive_slots: 256, completion_slots: 512 }
    }
}

impl Layout {
    /// Refuses sizes that are no power of two or out of range.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] with the number of slots that cannot be.
    pub fn check(self) -> Result<Layout, LayoutError> {
        for slots in [self.command_slots, self.receive_slots, self.completion_slots] {
            if !slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&slots) {
                return Err(LayoutError { slots });
            }
        }
        Ok(self)
    }

    /// The nearest layout that is allowed and nowhere larger than `most`: what a node grants to a
    /// client that wants this one.
    pub fn granted(self, most: Layout) -> Layout {
        let grant = |wanted: u32, most: u32| {
            let most = most.clamp(SLOTS_MIN, SLOTS_MAX);
            let slots = wanted.clamp(SLOTS_MIN, most).next_power_of_two();
            if slots > most { slots / 2 } else { slots }
        };
        Layout {
            command_slots: grant(self.command_slots, most.command_slots),
            receive_slots: grant(self.receive_slots, most.receive_slots),
            completion_slots: grant(self.completion_slots, most.completion_slots),
        }
    }

    /// Bytes of the rings and of what stands before them.
    pub fn ring_bytes(&self) -> usize {
        (self.completions_at() + self.completion_slots as usize * SLOT_WORDS) * 8
    }

    /// Where the arena begins, in bytes: at a page.
    pub fn arena_at(&self) -> usize {
        self.ring_bytes().next_multiple_of(PAGE)
    }

    /// Bytes of the shared memory.
    pub fn bytes(&self) -> usize {
        self.arena_at() + ARENA_BYTES as usize
    }

    pub(crate) const NODE_SLEEPS: usize = 0;
    pub(crate) const CLIENT_SLEEPS: usize = APART;
    pub(crate) const COMMAND_HEAD: usize = 2 * APART;
    pub(crate) const RECEIVE_HEAD: usize = 3 * APART;
    pub(crate) const COMPLETION_HEAD: usize = 4 * APART;

    pub(crate) fn commands_at(&self) -> usize {
        HEADER_WORDS
    }

    pub(crate) fn receives_at(&self) -> usize {
        self.commands_at() + self.command_slots as usize * SLOT_WORDS
    }

    pub(crate) fn completions_at(&self) -> usize {
        self.receives_at() + self.receive_slots as usize * SLOT_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_sizes_are_refused() {
        for slots in [0, 16, 33, 1 << 17, u32::MAX] {
            let layout = Layout { receive_slots: slots, ..Layout::default() };
            assert_eq!(layout.check(), Err(LayoutError { slots }));
        }
        assert!(Layout::default().check().is_ok());
    }

    #[test]
    fn whatever_is_wanted_an_allowed_layout_is_granted() {
        let sizes = [0, 1, 31, 32, 33, 500, 512, 513, 1 << 16, u32::MAX];
        for wanted in sizes {
            for most in sizes {
                let all = |slots| Layout {
                    command_slots: slots,
                    receive_slots: slots,
                    completion_slots: slots,
                };
                let granted = all(wanted).granted(all(most));
                assert_eq!(granted.check(), Ok(granted), "wanted {wanted}, most {most}");
                assert!(granted.command_slots <= most.max(SLOTS_MIN));
            }
        }
    }
}
