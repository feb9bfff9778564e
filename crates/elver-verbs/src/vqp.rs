//! Words for virtual queue pairs that the node, its core and its clients share (KRCORE, sections 3 and 4). Those of
//! them that processes pass each other have a number for that.

/// Priority of a VQP (KRCORE, arXiv version, section 4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Has QPs reserved and is never slowed for others.
    High,
    /// Shares QPs, and yields to the high class.
    #[default]
    Low,
}

/// How a VQP gets its physical QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// KRCORE's Algorithm 1: a shared RC QP if there is one, else a DC QP and the peer's metadata from the
    /// DCCache or a meta server.
    #[default]
    Shared,
    /// As LITE, with the handshake over UD that KRCORE gives it: a shared RC QP, made on a miss.
    Lite,
    /// As [`Policy::Shared`], but metadata is asked of the peer itself, by an RPC over UD. Where the
    /// peer takes it must be known from an earlier contact; before that a meta server is asked.
    RpcMeta,
    /// An RC QP for this VQP alone, as a process with verbs makes it.
    Leased,
}

/// How to connect a VQP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// How the VQP gets its physical QP.
    pub policy: Policy,
    /// Do not look at the DCCache or at RC QPs, as if this was the first contact: for measurements.
    /// With [`Policy::Lite`] the VQP then gets an RC QP that goes with it.
    pub uncached: bool,
}

/// What backs a VQP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// A shared RC QP.
    Rc,
    /// A shared DC QP; the metadata stood in the DCCache.
    DcCached,
    /// A shared DC QP; the metadata was looked up at a meta server.
    DcLookup,
    /// An RC QP of its own ([`Policy::Leased`]).
    Leased,
}

/// State of a VQP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VqpState {
    /// Created.
    Idle,
    /// A `qconnect` is pending.
    Connecting,
    /// Connected: it can post.
    Connected,
    /// Something failed; what was outstanding is flushed. `qconnect` takes it out of here.
    Error,
}

/// A word's number, and the word of a number.
macro_rules! numbered {
    ($($word:ident { $($value:ident),* })*) => {$(
        impl $word {
            const ALL: &[$word] = &[$($word::$value),*];

            /// Its number.
            pub fn code(self) -> u8 {
                self as u8
            }

            /// What has this number.
            pub fn from_code(code: u8) -> Option<$word> {
                $word::ALL.get(usize::from(code)).copied()
            }
        }
    )*};
}

numbered! {
    Class { High, Low }
    Policy { Shared, Lite, RpcMeta, Leased }
    Via { Rc, DcCached, DcLookup, Leased }
    VqpState { Idle, Connecting, Connected, Error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_a_number_of_its_own() {
        for code in 0..=u8::MAX {
            assert_eq!(Class::from_code(code).map(Class::code), (code < 2).then_some(code));
            assert_eq!(Policy::from_code(code).map(Policy::code), (code < 4).then_some(code));
            assert_eq!(Via::from_code(code).map(Via::code), (code < 4).then_some(code));
            assert_eq!(VqpState::from_code(code).map(VqpState::code), (code < 4).then_some(code));
        }
    }
}
