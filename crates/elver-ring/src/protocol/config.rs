use thiserror::Error;

use super::shape::{HEADER_BYTES, PACKED_UNIT, SLOT_UNIT, Shape};

/// Most slots of a ring.
pub const SLOTS_MAX: u32 = 1 << 20;
/// Most bytes of a ring's slots.
const RING_BYTES_MAX: u64 = 1 << 32;

/// A ring's measures. Both ends have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slots, a power of two (N).
    pub slots: u32,
    /// Bytes of a slot, a multiple of [`SLOT_UNIT`], or of [`PACKED_UNIT`] for slots that share cache lines.
    pub slot_bytes: u32,
    /// Pointer advancement: after so many slots the tail is told (α).
    pub alpha: u32,
    /// Slot transmission: so many slots go out ahead of the tail (β). With α = β = 1 nothing is batched.
    pub beta: u32,
    /// Lazy push: after so many processed slots the head is told (γ).
    pub gamma: u32,
    /// After so many nanoseconds what was committed goes out though it is fewer than α slots: when its sender is polled
    /// next (`Sender::poll`), or at once while its end waits for a message by `Ends::recv`. Nothing runs by itself: a sender
    /// that computes, or waits for something else, keeps its part of a batch for as long, however late that is. Who cannot
    /// poll flushes.
    pub linger_ns: Option<u64>,
}

impl Default for Config {
    /// The paper's (section V-A): 128 slots of a cache line, α = 32, β = 16, γ = 32.
    fn default() -> Config {
        Config { slots: 128, slot_bytes: 64, alpha: 32, beta: 16, gamma: 32, linger_ns: None }
    }
}

impl Config {
    /// As this, with nothing batched: each message is told at once.
    pub fn unbatched(self) -> Config {
        Config { alpha: 1, beta: 1, ..self }
    }

    /// As this, with so many slots, and α, β and γ in the paper's proportion to them: a quarter, an eighth,
    /// a quarter. The more of them are filled while a pointer is under way, the less each costs.
    pub fn with_slots(self, slots: u32) -> Config {
        let [quarter, eighth] = [4, 8].map(|part| (slots / part).max(1));
        Config { slots, alpha: quarter, beta: eighth, gamma: quarter, ..self }
    }

    /// As this, with slots that hold messages of `bytes` bytes each, header included.
    ///
    /// # Errors
    /// [`ConfigError`] if no slot is so long.
    pub fn for_messages_of(self, bytes: u32) -> Result<Config, ConfigError> {
        self.slots_in(SLOT_UNIT, bytes)
    }

    /// The same with slots right behind one another: fewer bytes go over the wire, and who fills one slot and
    /// who reads the next may use the same cache line. If the rings of both ways are such, so are the words
    /// that the peers write. Table II of the paper has it as the ring without cache friendliness.
    ///
    /// # Errors
    /// [`ConfigError`] if no slot is so long.
    pub fn packed_for_messages_of(self, bytes: u32) -> Result<Config, ConfigError> {
        self.slots_in(PACKED_UNIT, bytes)
    }

    /// Whether slots share cache lines.
    pub fn is_packed(&self) -> bool {
        !self.slot_bytes.is_multiple_of(SLOT_UNIT)
    }

    fn slots_in(self, unit: u32, bytes: u32) -> Result<Config, ConfigError> {
        let whole = u64::from(bytes) + HEADER_BYTES;
        let slot_bytes = u32::try_from(whole.next_multiple_of(u64::from(unit)))
            .map_err(|_| ConfigError::SlotBytes { slot_bytes: bytes })?;
        let config = Config { slot_bytes, ..self };
        config.check().map(|_| config)
    }

    /// Checks the measures.
    ///
    /// # Errors
    /// [`ConfigError`] says which does not fit.
    pub fn check(&self) -> Result<Shape, ConfigError> {
        let Config { slots, slot_bytes, alpha, beta, gamma, .. } = *self;
        if !slots.is_power_of_two() || !(2..=SLOTS_MAX).contains(&slots) {
            return Err(ConfigError::Slots { slots });
        }
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        // A slot holds a header.
        let is_whole = slot_bytes >= SLOT_UNIT && slot_bytes.is_multiple_of(PACKED_UNIT);
        if !is_whole || bytes > RING_BYTES_MAX {
            return Err(ConfigError::SlotBytes { slot_bytes });
        }
        if beta == 0 || beta > alpha || alpha > slots {
            return Err(ConfigError::Batching { alpha, beta, slots });
        }
        if gamma == 0 || gamma > slots {
            return Err(ConfigError::LazyPush { gamma, slots });
        }
        Ok(Shape::new(slots, slot_bytes, slots - gamma + 1))
    }
}

/// A measure that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The number of slots.
    #[error("a ring has a power of two of slots, 2 to {SLOTS_MAX}, and not {slots}")]
    Slots {
        /// What was asked for.
        slots: u32,
    },
    /// The length of a slot.
    #[error(
        "a slot of {slot_bytes} bytes does not fit: it has {SLOT_UNIT} at least, is a multiple of \
         {PACKED_UNIT}, and all slots together are at most {RING_BYTES_MAX} bytes"
    )]
    SlotBytes {
        /// What was asked for.
        slot_bytes: u32,
    },
    /// α and β.
    #[error("1 ≤ β ≤ α ≤ slots must hold: β is {beta}, α is {alpha}, of {slots} slots")]
    Batching {
        /// α.
        alpha: u32,
        /// β.
        beta: u32,
        /// The ring's slots.
        slots: u32,
    },
    /// γ.
    #[error("1 ≤ γ ≤ slots must hold: γ is {gamma}, of {slots} slots")]
    LazyPush {
        /// γ.
        gamma: u32,
        /// The ring's slots.
        slots: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_that_do_not_fit_are_named() {
        let good = Config::default();
        assert_eq!(good.check().unwrap().bytes(), 128 * 64);
        let slots = |slots| Config { slots, ..good }.check().unwrap_err();
        assert_eq!(slots(0), ConfigError::Slots { slots: 0 });
        assert_eq!(slots(100), ConfigError::Slots { slots: 100 });
        assert_eq!(slots(SLOTS_MAX * 2), ConfigError::Slots { slots: SLOTS_MAX * 2 });
        let bytes = |slot_bytes| Config { slot_bytes, ..good }.check().unwrap_err();
        for wrong in [0, 8, 56, 63, 65, 1 << 31] {
            assert_eq!(bytes(wrong), ConfigError::SlotBytes { slot_bytes: wrong });
        }
        for (alpha, beta) in [(0, 0), (16, 0), (16, 17), (129, 1)] {
            let wrong = Config { alpha, beta, ..good }.check();
            assert_eq!(wrong, Err(ConfigError::Batching { alpha, beta, slots: 128 }));
        }
        for gamma in [0, 129] {
            let wrong = Config { gamma, ..good }.check();
            assert_eq!(wrong, Err(ConfigError::LazyPush { gamma, slots: 128 }));
        }
    }

    #[test]
    fn any_number_of_slots_has_measures_that_fit() {
        let paper = Config::default();
        assert_eq!(paper.with_slots(128), paper);
        for slots in (1..=20).map(|bits| 1 << bits) {
            let config = paper.with_slots(slots);
            assert_eq!(config.check().map(|shape| shape.slots()), Ok(u64::from(slots)));
        }
    }

    #[test]
    fn slots_are_made_for_a_message() {
        let slot = |bytes| Config::default().for_messages_of(bytes).map(|config| config.slot_bytes);
        assert_eq!((slot(0), slot(56), slot(57), slot(64)), (Ok(64), Ok(64), Ok(128), Ok(128)));
        assert!(slot(u32::MAX).is_err());
        let packed = |bytes| Config::default().packed_for_messages_of(bytes);
        let slot = |bytes| packed(bytes).map(|config| (config.slot_bytes, config.is_packed()));
        assert_eq!(
            (slot(56), slot(57), slot(64)),
            (Ok((64, false)), Ok((72, true)), Ok((72, true)))
        );
        assert!(packed(8).is_err() && packed(u32::MAX).is_err());
    }
}
