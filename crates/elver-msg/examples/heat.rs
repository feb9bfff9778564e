//! Heat in a rod, a part of it at each rank: neighbours tell each other their outermost cells in each step.
//!
//! `elver launch -n 4 -- target/release/examples/heat 1200 500`

use elver_msg::{Error, Group, ops};

const TO_LEFT: u32 = 1;
const TO_RIGHT: u32 = 2;

/// A rank's cells, between one of each neighbour's.
struct Rod {
    cells: Vec<f64>,
    left: Option<u32>,
    right: Option<u32>,
}

impl Rod {
    fn of(group: &Group, cells: usize) -> Rod {
        let (rank, size) = (group.rank(), group.size());
        let at = |rank: u32| rank as usize * cells / size as usize;
        let own = at(rank + 1) - at(rank);
        let left = rank.checked_sub(1);
        let right = Some(rank + 1).filter(|right| *right < size);
        let mut rod = Rod { cells: vec![0.0; own + 2], left, right };
        if rank == 0 {
            // All of the heat is in the first cell.
            rod.cells[1] = 1_000.0;
        }
        rod
    }

    fn step(&mut self, group: &Group) -> Result<(), Error> {
        let last = self.cells.len() - 1;
        let own = [(self.left, 1, TO_LEFT), (self.right, last - 1, TO_RIGHT)];
        for (neighbour, cell, tag) in own {
            if let Some(to) = neighbour {
                group.send(to, tag, &self.cells[cell].to_le_bytes())?;
            }
        }
        // At an end of the rod nothing comes and nothing goes: the cell beyond is as warm as the last one.
        (self.cells[0], self.cells[last]) = (self.cells[1], self.cells[last - 1]);
        for (neighbour, cell, tag) in [(self.left, 0, TO_RIGHT), (self.right, last, TO_LEFT)] {
            if let Some(from) = neighbour {
                let mut bytes = [0; 8];
                group.recv(from, tag, &mut bytes)?;
                self.cells[cell] = f64::from_le_bytes(bytes);
            }
        }
        let before = self.cells.clone();
        for at in 1..last {
            self.cells[at] += 0.25 * (before[at - 1] - 2.0 * before[at] + before[at + 1]);
        }
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse().unwrap());
    let cells = numbers.next().unwrap_or(1_200);
    let steps = numbers.next().unwrap_or(500);
    let group = Group::from_env()?;
    assert!(cells >= group.size() as usize, "each rank has a cell at least");
    let mut rod = Rod::of(&group, cells);
    for _ in 0..steps {
        rod.step(&group)?;
    }
    let own = &rod.cells[1..rod.cells.len() - 1];
    let mut heat = [own.iter().sum::<f64>()];
    let mut warmest = [own.iter().copied().fold(0.0, f64::max)];
    group.allreduce(&mut heat, ops::sum)?;
    group.allreduce(&mut warmest, ops::max)?;
    if group.rank() == 0 {
        println!("{} ranks, {cells} cells, {steps} steps", group.size());
        println!("heat {:.3}, the warmest cell {:.3}", heat[0], warmest[0]);
    }
    group.finish()
}
