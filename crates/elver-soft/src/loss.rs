/// Loss by design: drops a share of the packets that arrive, the same ones for the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Packets dropped of a million.
    pub per_million: u32,
    /// Which ones.
    pub seed: u64,
}

#[derive(Debug)]
pub(crate) struct LossState {
    per_million: u64,
    state: u64,
}

impl LossState {
    pub(crate) fn new(loss: Loss) -> LossState {
        LossState { per_million: u64::from(loss.per_million), state: loss.seed | 1 }
    }

    /// Whether the next packet is dropped. The sequence is xorshift64 (Marsaglia, 2003).
    pub(crate) fn drops(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % 1_000_000 < self.per_million
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_its_share() {
        let mut loss = LossState::new(Loss { per_million: 10_000, seed: 3 });
        let dropped = (0..100_000).filter(|_| loss.drops()).count();
        assert!((800..1200).contains(&dropped), "{dropped}");
    }
}
