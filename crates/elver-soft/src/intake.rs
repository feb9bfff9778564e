//! How far a device has taken what arrives on its link.
//!
//! What its owner lets befall packets, what multicast groups bring and what comes past the link is not looked at: who asks
//! is a node, which has none of these.

use elver_verbs::Intake;

/// What a datagram takes of a socket's buffer beside its bytes, at least.
pub(crate) const DATAGRAM_BYTES: usize = 512;

/// What a look at the link has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// There was no more.
    pub(crate) emptied: bool,
    /// What it took of the socket's buffer, at least.
    pub(crate) bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Taken {
    intake: Intake,
    /// Since all had been taken.
    bytes: usize,
    /// As much as may wait, if that is known: who has taken so much since has taken all that had waited then.
    waiting_max: Option<usize>,
}

impl Taken {
    pub(crate) fn new(waiting_max: Option<usize>) -> Taken {
        Taken { intake: Intake::Behind, bytes: 0, waiting_max }
    }

    #[inline]
    pub(crate) fn add(&mut self, look: Look) {
        self.bytes += look.bytes;
        if look.emptied {
            (self.intake, self.bytes) = (Intake::Empty, 0);
        } else if self.waiting_max.is_some_and(|most| self.bytes >= most) {
            (self.intake, self.bytes) = (Intake::Past, 0);
        }
    }

    /// What was taken since this was asked last.
    #[inline]
    pub(crate) fn intake(&mut self) -> Intake {
        std::mem::take(&mut self.intake)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Look = Look { emptied: false, bytes: 600 };

    #[test]
    fn a_look_that_finds_no_more_says_so_once() {
        let mut taken = Taken::new(Some(1_000));
        assert_eq!(taken.intake(), Intake::Behind, "nobody has looked");
        taken.add(Look { emptied: true, ..SOME });
        assert_eq!((taken.intake(), taken.intake()), (Intake::Empty, Intake::Behind));
    }

    #[test]
    fn who_is_never_done_has_taken_in_the_end_what_had_waited() {
        let mut taken = Taken::new(Some(1_000));
        taken.add(SOME);
        assert_eq!(taken.intake(), Intake::Behind);
        taken.add(SOME);
        assert_eq!(taken.intake(), Intake::Past);
        // That counts from the last time.
        taken.add(SOME);
        assert_eq!(taken.intake(), Intake::Behind);
        let mut boundless = Taken::new(None);
        for _ in 0..1_000 {
            boundless.add(SOME);
        }
        assert_eq!(boundless.intake(), Intake::Behind);
    }
}
