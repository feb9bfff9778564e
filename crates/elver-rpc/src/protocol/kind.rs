/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The client's greeting, once, before all others.
    Hello = 1,
    /// The server's answer.
    Welcome = 2,
    /// Or this: a status; the connection is over.
    Refused = 3,
    /// A call begins, with the first piece of its message.
    Request = 4,
    /// How a call ends, with the first piece of its message, or with a status.
    Response = 5,
    /// A further piece of a message.
    Piece = 6,
    /// Bytes of a stream.
    Stream = 7,
    /// More bytes of a stream may come.
    Credit = 8,
    /// The client wants no answer.
    Cancel = 9,
}

/// All of them, by number from 1 on.
pub(super) const KINDS: [Kind; 9] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Refused,
    Kind::Request,
    Kind::Response,
    Kind::Piece,
    Kind::Stream,
    Kind::Credit,
    Kind::Cancel,
];

/// A call of a connection: a slot, of which the server has as many as it says in its greeting, and the
/// how manieth call of this slot it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallId {
    /// Its slot.
    pub slot: u32,
    /// The slot's turn.
    pub turn: u32,
}
