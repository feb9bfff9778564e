//! Handles: small numbers that name a device's objects. A handle of a destroyed object is refused
//! with [`crate::VerbsError::InvalidHandle`], also after its slot was taken again.

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    };
}

handle!(
    /// A protection domain.
    Pd
);
handle!(
    /// A memory region.
    Mr
);
handle!(
    /// A memory window (type 2).
    Mw
);
handle!(
    /// A completion queue.
    Cq
);
handle!(
    /// A shared receive queue.
    Srq
);
handle!(
    /// An XRC domain: which shared receive queues an XRC target reaches.
    Xrcd
);
handle!(
    /// An address handle: where a UD datagram or a DC request goes.
    Ah
);
handle!(
    /// A queue pair. Its number on the wire, the QPN, is another number.
    Qp
);
