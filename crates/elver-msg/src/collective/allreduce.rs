//! One of all ranks' elements, for all ranks.

use std::ops::Range;

use super::operation::Operation;
use crate::Error;
use crate::element::{Element, load_all, store_all, stored};

/// Recursive doubling among a power of two of ranks. The others, each beside one of them, give it theirs before and
/// are told behind it.
pub(super) fn doubling<T: Element>(
    operation: &mut Operation<'_>,
    elements: &mut [T],
    combine: &impl Fn(T, T) -> T,
) -> Result<(), Error> {
    let (rank, size) = (operation.rank(), operation.size());
    let power = 1 << size.ilog2();
    // The first 2 × over ranks are pairs, of which the odd one goes on.
    let over = size - power;
    let mut theirs = Theirs::of(elements);
    if rank < 2 * over {
        if rank.is_multiple_of(2) {
            operation.send(rank + 1, &stored(elements))?;
            return theirs.receive(operation, rank + 1, |theirs| elements.copy_from_slice(theirs));
        }
        theirs.receive(operation, rank - 1, |theirs| merge(elements, theirs, combine, true))?;
    }
    let own = if rank < 2 * over { rank / 2 } else { rank - over };
    let rank_of = |own: u32| if own < over { 2 * own + 1 } else { own + over };
    let mut away = 1;
    while away < power {
        let other = own ^ away;
        let peer = rank_of(other);
        let bytes = stored(elements);
        operation.exchange((peer, &bytes), (peer, &mut theirs.bytes))?;
        load_all(&theirs.bytes, &mut theirs.elements);
        // Both do the same, to the bit.
        merge(elements, &theirs.elements, combine, other < own);
        away *= 2;
    }
    if rank < 2 * over {
        operation.send(rank - 1, &stored(elements))?;
    }
    Ok(())
}

/// A ring: first each part is reduced on its way around, so that each rank has one of them, then they go around.
pub(super) fn ring<T: Element>(
    operation: &mut Operation<'_>,
    elements: &mut [T],
    combine: &impl Fn(T, T) -> T,
) -> Result<(), Error> {
    let (rank, size) = (operation.rank(), operation.size());
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let count = elements.len();
    let part = |which: u32| -> Range<usize> {
        let which = (which % size) as usize;
        which * count / size as usize..(which + 1) * count / size as usize
    };
    let longest = count.div_ceil(size as usize);
    let mut bytes = [vec![0; longest * T::BYTES], vec![0; longest * T::BYTES]];
    let mut theirs = vec![T::default(); longest];
    for round in 0..2 * (size - 1) {
        let (out, into) = (part(rank + 2 * size - round), part(rank + 2 * size - round - 1));
        let [sent, received] = &mut bytes;
        let sent = &mut sent[..out.len() * T::BYTES];
        store_all(&elements[out], sent);
        let received = &mut received[..into.len() * T::BYTES];
        operation.exchange((to, sent), (from, received))?;
        if round < size - 1 {
            let theirs = &mut theirs[..into.len()];
            load_all(received, theirs);
            merge(&mut elements[into], theirs, combine, true);
        } else {
            load_all(received, &mut elements[into]);
        }
    }
    Ok(())
}

/// Room for another rank's elements.
struct Theirs<T> {
    bytes: Vec<u8>,
    elements: Vec<T>,
}

impl<T: Element> Theirs<T> {
    fn of(elements: &[T]) -> Theirs<T> {
        Theirs { bytes: vec![0; size_of_val(elements)], elements: elements.to_vec() }
    }

    fn receive(
        &mut self,
        operation: &mut Operation<'_>,
        from: u32,
        take: impl FnOnce(&[T]),
    ) -> Result<(), Error> {
        operation.receive(from, &mut self.bytes)?;
        load_all(&self.bytes, &mut self.elements);
        take(&self.elements);
        Ok(())
    }
}

fn merge<T: Element>(
    own: &mut [T],
    theirs: &[T],
    combine: &impl Fn(T, T) -> T,
    theirs_first: bool,
) {
    for (own, theirs) in own.iter_mut().zip(theirs) {
        *own = if theirs_first { combine(*theirs, *own) } else { combine(*own, *theirs) };
    }
}
