//! Large messages without a copy: rank 0 hands blocks of work to whoever asks, from registered memory into registered
//! memory, and takes the answers as they come.
//!
//! `elver launch -n 4 -- target/release/examples/blocks 64 1048576`

use elver_msg::{Error, Group, Source, Tag};

const ASK: u32 = 1;
const BLOCK: u32 = 2;
const ANSWER: u32 = 3;

fn hand_out(group: &Group, blocks: u64, bytes: u64) -> Result<u64, Error> {
    let region = group.alloc(bytes)?;
    let mut total = 0;
    let mut done = 0;
    let mut next = 0;
    let mut left = group.size() - 1;
    while left > 0 || done < blocks {
        // Whoever is first: an answer, or a question for more.
        let (status, words) = group.recv_vec(Source::Any, Tag::Any)?;
        if status.tag == ANSWER {
            total += u64::from_le_bytes(words.try_into().expect("an answer has eight bytes"));
            done += 1;
        } else if next < blocks {
            region.write(0, &vec![next as u8; bytes as usize]).map_err(Error::from)?;
            // It is the receiver's when this returns.
            group.send_region(status.source, BLOCK, &region)?;
            next += 1;
        } else {
            group.send(status.source, BLOCK, &[])?;
            left -= 1;
        }
    }
    Ok(total)
}

fn work(group: &Group, bytes: u64) -> Result<(), Error> {
    let region = group.alloc(bytes)?;
    let mut block = vec![0; bytes as usize];
    loop {
        group.send(0, ASK, &[])?;
        let status = group.recv_region(0, BLOCK, &region)?;
        if status.len == 0 {
            return Ok(());
        }
        region.read(0, &mut block).map_err(Error::from)?;
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        group.send(0, ANSWER, &sum.to_le_bytes())?;
    }
}

fn main() -> Result<(), Error> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse().unwrap());
    let blocks = numbers.next().unwrap_or(64);
    let bytes = numbers.next().unwrap_or(1 << 20);
    let group = Group::from_env()?;
    assert!(group.size() > 1 && bytes > 0, "one rank hands out, and others work");
    if group.rank() == 0 {
        let total = hand_out(&group, blocks, bytes)?;
        println!("{blocks} blocks of {bytes} bytes, their bytes together {total}");
    } else {
        work(&group, bytes)?;
        let read = group.counters().messages.read;
        println!("rank {}: {read} blocks, none of them copied on their way", group.rank());
    }
    group.finish()
}
