use super::fault::Fault;

/// Slots are multiples of so many bytes: a cache line (section IV-C).
pub const SLOT_UNIT: u32 = 64;
/// Where they need not begin at cache lines, of so many: headers are words.
pub const PACKED_UNIT: u32 = 8;
/// Bytes of a message's header: its length, and the low 32 bits of the number of the slot behind it, so
/// that no header of an earlier lap passes for it, nor do zeros.
pub const HEADER_BYTES: u64 = 8;

/// The bit of a pointer's word that says that its writer has ended: no more messages, or no more reading.
pub(super) const ENDED: u64 = 1 << 63;

/// Bytes of the ring's slots, from `offset` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// From the first slot's first byte.
    pub offset: u64,
    /// Bytes; none if there is nothing.
    pub len: u64,
}

/// A message: where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its first slot, counted from the ring's beginning.
    pub(super) at: u64,
    /// Slots that it takes.
    pub(super) slots: u64,
    /// Bytes, without its header.
    len: u32,
    shape: Shape,
}

/// Where slots are, and how many a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    slots: u32,
    slot_bytes: u32,
    message_slots_max: u32,
}

impl Shape {
    pub(super) fn new(slots: u32, slot_bytes: u32, message_slots_max: u32) -> Shape {
        Shape { slots, slot_bytes, message_slots_max }
    }

    /// Slots of the ring.
    pub fn slots(&self) -> u64 {
        u64::from(self.slots)
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Bytes of the longest message.
    pub fn message_bytes_max(&self) -> u32 {
        self.fits(u64::from(self.message_slots_max))
    }

    /// Bytes of the longest message that so many free slots hold.
    #[inline]
    pub(super) fn fits(&self, slots: u64) -> u32 {
        let slots = slots.min(u64::from(self.message_slots_max));
        let bytes = (slots * u64::from(self.slot_bytes)).saturating_sub(HEADER_BYTES);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Where a slot begins.
    #[inline]
    pub fn offset(&self, slot: u64) -> u64 {
        (slot & u64::from(self.slots - 1)) * u64::from(self.slot_bytes)
    }

    /// Slots that a message takes.
    #[inline]
    pub(super) fn slots_of(&self, len: u32) -> u64 {
        (u64::from(len) + HEADER_BYTES).div_ceil(u64::from(self.slot_bytes))
    }

    /// `len` bytes from a place on: what lies before the last slot's end, and what goes on at the
    /// beginning.
    #[inline]
    fn spans(&self, offset: u64, len: u64) -> [Span; 2] {
        let first = len.min(self.bytes() - offset);
        [Span { offset, len: first }, Span { offset: 0, len: len - first }]
    }

    /// The bytes of slots `from .. to`.
    #[inline]
    pub(super) fn slot_spans(&self, from: u64, to: u64) -> [Span; 2] {
        self.spans(self.offset(from), (to - from) * u64::from(self.slot_bytes))
    }

    pub(super) fn frame(self, at: u64, len: u32) -> Frame {
        Frame { at, slots: self.slots_of(len), len, shape: self }
    }

    /// The message whose header was found at a slot, if what follows is there.
    #[inline]
    pub(super) fn parse(self, at: u64, header: u64, slots: u64) -> Result<Frame, Fault> {
        let (bytes, found) = (header as u32, ((header >> 32) as u32).wrapping_sub(1));
        if found != at as u32 {
            return Err(Fault::Stale { at, found });
        }
        let frame = self.frame(at, bytes);
        if frame.slots > slots { Err(Fault::Length { at, bytes, slots }) } else { Ok(frame) }
    }
}

impl Frame {
    /// Bytes of the message.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where its header stands.
    #[inline]
    pub fn header_offset(&self) -> u64 {
        self.shape.offset(self.at)
    }

    /// Its header: little-endian, at [`Frame::header_offset`].
    #[inline]
    pub fn header(&self) -> u64 {
        u64::from((self.at as u32).wrapping_add(1)) << 32 | u64::from(self.len)
    }

    /// Where its bytes stand: two spans, the second empty unless it goes on at the ring's beginning.
    #[inline]
    pub fn spans(&self) -> [Span; 2] {
        self.shape.spans(self.header_offset() + HEADER_BYTES, u64::from(self.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape::new(8, 64, 7)
    }

    #[test]
    fn a_message_goes_on_at_the_beginning() {
        let frame = shape().frame(8 * 5 + 7, 100);
        assert_eq!((frame.slots, frame.header_offset()), (2, 7 * 64));
        let expected = [Span { offset: 7 * 64 + 8, len: 56 }, Span { offset: 0, len: 44 }];
        assert_eq!(frame.spans(), expected);
        // One that ends where the ring does goes on nowhere.
        assert_eq!(shape().frame(7, 56).spans()[1].len, 0);
        assert_eq!(shape().frame(6, 8 + 112).spans()[1].len, 0);
    }

    #[test]
    fn all_slots_are_two_spans_at_most() {
        let spans = shape().slot_spans(5, 13);
        assert_eq!(spans, [Span { offset: 320, len: 192 }, Span { offset: 0, len: 320 }]);
    }

    #[test]
    fn a_header_is_of_one_place_and_no_longer_than_what_is_there() {
        let shape = shape();
        for at in [0, 5, u64::from(u32::MAX), 1 << 40] {
            let frame = shape.frame(at, 100);
            assert_eq!(shape.parse(at, frame.header(), 2), Ok(frame));
            let bytes = 100;
            let short = shape.parse(at, frame.header(), 1);
            assert_eq!(short, Err(Fault::Length { at, bytes, slots: 1 }));
            // A lap later.
            let found = at as u32;
            assert_eq!(
                shape.parse(at + 8, frame.header(), 2),
                Err(Fault::Stale { at: at + 8, found })
            );
        }
        assert!(matches!(shape.parse(0, 0, 8), Err(Fault::Stale { at: 0, .. })));
        let most = u64::from(u32::MAX) | 1 << 32;
        assert!(matches!(shape.parse(0, most, 8), Err(Fault::Length { .. })));
    }
}
