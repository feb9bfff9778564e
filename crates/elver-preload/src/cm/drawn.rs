//! Ports that connections of this process are from. Nobody looks them up, but no two of a network namespace are to be alike: a
//! process holds blocks of them, so that thousands of connections cost it few descriptors.

use std::ffi::c_int;

use crate::cm::ports::{self, BLOCK, Claim};

struct Block {
    port_space: u16,
    first: u16,
    /// Those that are in use, a bit each.
    used: u16,
    _held: Claim,
}

const _: () = assert!(BLOCK as u32 == u16::BITS, "each port of a block has a bit");

/// The blocks that this process has, of which some port is in use.
#[derive(Default)]
pub(crate) struct Drawn {
    blocks: Vec<Block>,
}

impl Drawn {
    /// Draws a port; `anywhere` is any number.
    pub(crate) fn draw(&mut self, port_space: u16, anywhere: u32) -> Result<u16, c_int> {
        let has_room = |block: &Block| block.port_space == port_space && block.used != u16::MAX;
        let found = self.blocks.iter().position(has_room);
        let at = match found {
            Some(at) => at,
            None => {
                let (first, held) = ports::hold_block(port_space, anywhere)?;
                self.blocks.push(Block { port_space, first, used: 0, _held: held });
                self.blocks.len() - 1
            }
        };
        let block = &mut self.blocks[at];
        let start = anywhere % u16::BITS;
        let bit = (start + block.used.rotate_right(start).trailing_ones()) % u16::BITS;
        block.used |= 1 << bit;
        Ok(block.first + bit as u16)
    }

    /// Gives a port back that was drawn.
    pub(crate) fn give_back(&mut self, port_space: u16, port: u16) {
        let has = |block: &Block| {
            let bit = port.wrapping_sub(block.first);
            block.port_space == port_space && bit < BLOCK && block.used & 1 << bit != 0
        };
        let Some(at) = self.blocks.iter().position(has) else { return };
        let block = &mut self.blocks[at];
        block.used &= !(1 << (port - block.first));
        if block.used == 0 {
            self.blocks.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ports_are_drawn_once_and_given_back() {
        const MANY: usize = 100;
        let mut all = [Drawn::default(), Drawn::default()];
        let mut drawn = HashSet::new();
        for round in 0..MANY {
            for one in &mut all {
                // Both begin their search at one place.
                assert!(drawn.insert(one.draw(0xfff1, round as u32 * 7).unwrap()));
            }
        }
        assert!(all.iter().all(|one| one.blocks.len() == MANY.div_ceil(usize::from(BLOCK))));
        let [mut first, second] = all;
        drop(second);
        for port in drawn {
            // Those of the other change nothing.
            first.give_back(0xfff1, port);
        }
        assert!(first.blocks.is_empty());
    }
}
