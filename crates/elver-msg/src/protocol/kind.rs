/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Who this is: the first frame of each end.
    Hello = 1,
    /// In its place: this end does not want the other one.
    Refused = 2,
    /// A whole message.
    Eager = 3,
    /// There is a message; it is told how long, and where it may be READ.
    Offer = 4,
    /// The receiver of an offer wants it in pieces.
    Clear = 5,
    /// The next bytes of a message that was cleared.
    Piece = 6,
    /// The receiver of an offer has READ it.
    Done = 7,
    /// Nothing but the credit that each frame may carry.
    Credit = 8,
    /// This end leaves when all is said: nothing comes behind it.
    Bye = 9,
    /// The collective operation of this tag ends at this end without its result: the others need not wait for it.
    GaveUp = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::Refused,
    Kind::Eager,
    Kind::Offer,
    Kind::Clear,
    Kind::Piece,
    Kind::Done,
    Kind::Credit,
    Kind::Bye,
    Kind::GaveUp,
];

impl Kind {
    /// By its number.
    #[inline]
    pub(super) fn of(number: u8) -> Option<Kind> {
        usize::from(number).checked_sub(1).and_then(|at| KINDS.get(at).copied())
    }
}
