//! What ranks know together: each has a part of some numbers, and all learn their sum, their mean and their spread.
//!
//! `elver launch -n 4 -- target/release/examples/sums 1000000`

use elver_msg::{Error, Group, ops};

/// A rank's part of the numbers from 1 on.
fn part(group: &Group, count: u64) -> impl Iterator<Item = f64> {
    let (rank, size) = (u64::from(group.rank()), u64::from(group.size()));
    (rank * count / size + 1..=(rank + 1) * count / size).map(|number| number as f64)
}

fn main() -> Result<(), Error> {
    let count: u64 = std::env::args().nth(1).map_or(1_000_000, |count| count.parse().unwrap());
    let group = Group::from_env()?;
    // One operation for both sums: what takes long is the way, not the bytes.
    let mut sums = [0.0, 0.0];
    for number in part(&group, count) {
        sums[0] += number;
        sums[1] += number * number;
    }
    group.allreduce(&mut sums, ops::sum)?;
    let mean = sums[0] / count as f64;
    let deviation = (sums[1] / count as f64 - mean * mean).sqrt();
    // Each rank's largest number, at rank 0.
    let largest = part(&group, count).fold(0.0, f64::max);
    if let Some(all) = group.gather(0, &[largest])? {
        println!("{} ranks: mean {mean:.1}, deviation {deviation:.1}", group.size());
        println!("the largest number of each rank: {all:?}");
    }
    group.finish()
}
