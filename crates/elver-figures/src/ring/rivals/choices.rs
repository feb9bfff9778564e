//! What tells the designs from one another. Messages of a ring have one length; each design is set as is
//! best for it, which the documentation of [`Choices`]' makers tells.

/// How the sender learns what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The receiver writes it: after each message, or after a quarter of the ring.
    Active,
    Lazy,
    /// The sender reads it once half of the ring is filled.
    Pull,
}

/// How the receiver learns what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// WRITE_WITH_IMM, which makes a completion; the number of messages is the immediate value.
    Completion,
    /// A WRITE of the tail behind that of the messages.
    Twice,
    /// A WRITE of the message's length behind that of the message, into a word that the receiver has set to
    /// zero with the message: "poll message" without relying on the order of bytes within a WRITE, as the
    /// paper has it for FaRM.
    Length,
}

/// What tells one design from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    pub(super) head: Head,
    pub(super) tail: Tail,
    /// Messages that one WRITE takes, at least unless it is flushed.
    pub(super) batch: u64,
    /// WRITEs under way, beyond which messages wait and then go together.
    pub(super) in_flight: u64,
    /// Messages begin at a cache line, instead of right behind one another.
    pub(super) slotted: bool,
    /// The sender keeps one message, and waits until it is written; one that fits a WR inline it need not.
    pub(super) one_buffer: bool,
    /// Messages are copied into the ring and out of it.
    pub(crate) copies: bool,
}

/// Under way as many as fit the send queue.
const ANY: u64 = u64::MAX;

impl Choices {
    /// The micro-benchmark's: slots of a message, no header, no copy, 16 messages in a WRITE.
    fn micro(head: Head, tail: Tail) -> Choices {
        let batch = 16;
        Choices {
            head,
            tail,
            batch,
            in_flight: ANY,
            slotted: true,
            one_buffer: false,
            copies: false,
        }
    }

    pub(crate) fn pull_cq() -> Choices {
        Choices::micro(Head::Pull, Tail::Completion)
    }

    pub(crate) fn push_cq() -> Choices {
        Choices::micro(Head::Lazy, Tail::Completion)
    }

    pub(crate) fn pull_wt() -> Choices {
        Choices::micro(Head::Pull, Tail::Twice)
    }

    pub(crate) fn push_wt() -> Choices {
        Choices::micro(Head::Lazy, Tail::Twice)
    }

    /// FaRM: the ring is at the receiver alone, where messages are used in place and then set to zero. A
    /// message that fits goes inline, so that the sender need not wait for its buffer.
    pub(crate) fn farm() -> Choices {
        let (head, tail) = (Head::Lazy, Tail::Length);
        let one_buffer = true;
        Choices { head, tail, batch: 1, in_flight: ANY, slotted: false, one_buffer, copies: false }
    }

    /// SocksDirect: WRITE_WITH_IMM, each with a completion; ten under way, and what comes meanwhile goes in
    /// one when one of them is done.
    pub(crate) fn socksdirect() -> Choices {
        let (head, tail) = (Head::Lazy, Tail::Completion);
        Choices {
            head,
            tail,
            batch: 1,
            in_flight: 10,
            slotted: false,
            one_buffer: false,
            copies: true,
        }
    }

    /// L5: two WRITEs for each message. The second is posted with the first, in one call.
    pub(crate) fn l5() -> Choices {
        let (head, tail) = (Head::Lazy, Tail::Twice);
        Choices {
            head,
            tail,
            batch: 1,
            in_flight: ANY,
            slotted: false,
            one_buffer: false,
            copies: true,
        }
    }

    /// MVAPICH: buffers of one message, which are taken in turn as its list has them; the head goes back
    /// after each. Its flag at a message's end would rely on the order of bytes: the length comes behind.
    pub(crate) fn mvapich() -> Choices {
        let (head, tail) = (Head::Active, Tail::Length);
        Choices {
            head,
            tail,
            batch: 1,
            in_flight: ANY,
            slotted: true,
            one_buffer: false,
            copies: true,
        }
    }

    /// As this, with nothing batched.
    pub(crate) fn unbatched(self) -> Choices {
        Choices { batch: 1, ..self }
    }
}
