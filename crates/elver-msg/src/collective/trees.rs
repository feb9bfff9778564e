//! From one rank to all, or from all to one, over binomial trees. Ranks are counted from the root on.

use super::operation::Operation;
use crate::Error;
use crate::element::{Element, load_all, stored};

/// A rank's place in the tree.
struct Place {
    root: u32,
    size: u32,
    /// From the root on.
    own: u32,
}

impl Place {
    fn of(operation: &Operation<'_>, root: u32) -> Place {
        let (rank, size) = (operation.rank(), operation.size());
        Place { root, size, own: (rank + size - root) % size }
    }

    fn rank(&self, place: u32) -> u32 {
        (place + self.root) % self.size
    }

    /// How far the parent is: the lowest bit of the place. Of the root more than any.
    fn span(&self) -> u32 {
        match self.own {
            0 => self.size.next_power_of_two(),
            own => own & own.wrapping_neg(),
        }
    }

    /// How many ranks stand at this place and below it.
    fn below(&self, place: u32, span: u32) -> u32 {
        span.min(self.size - place)
    }
}

pub(super) fn broadcast(
    operation: &mut Operation<'_>,
    root: u32,
    bytes: &mut [u8],
) -> Result<(), Error> {
    let place = Place::of(operation, root);
    if place.own > 0 {
        operation.receive(place.rank(place.own - place.span()), bytes)?;
    }
    let mut away = place.span() / 2;
    while away > 0 {
        if place.own + away < place.size {
            operation.send(place.rank(place.own + away), bytes)?;
        }
        away /= 2;
    }
    Ok(())
}

/// All ranks' bytes at the root, by rank.
pub(super) fn gather(
    operation: &mut Operation<'_>,
    root: u32,
    own: &[u8],
) -> Result<Option<Vec<u8>>, Error> {
    let (place, each) = (Place::of(operation, root), own.len());
    let mut all = vec![0; each * place.below(place.own, place.span()) as usize];
    all[..each].copy_from_slice(own);
    let mut away = 1;
    while away < place.span() {
        let child = place.own + away;
        if child < place.size {
            let (from, len) = (each * away as usize, each * place.below(child, away) as usize);
            operation.receive(place.rank(child), &mut all[from..from + len])?;
        }
        away *= 2;
    }
    if place.own > 0 {
        operation.send(place.rank(place.own - place.span()), &all)?;
        return Ok(None);
    }
    all.rotate_right(each * root as usize);
    Ok(Some(all))
}

/// What all ranks' elements become, at the root.
pub(super) fn reduce<T: Element>(
    operation: &mut Operation<'_>,
    root: u32,
    elements: &mut [T],
    combine: &impl Fn(T, T) -> T,
) -> Result<(), Error> {
    let place = Place::of(operation, root);
    let mut bytes = vec![0; size_of_val(elements)];
    let mut theirs = elements.to_vec();
    let mut away = 1;
    while away < place.span() {
        if place.own + away < place.size {
            operation.receive(place.rank(place.own + away), &mut bytes)?;
            load_all(&bytes, &mut theirs);
            for (own, theirs) in elements.iter_mut().zip(&theirs) {
                *own = combine(*own, *theirs);
            }
        }
        away *= 2;
    }
    if place.own > 0 {
        operation.send(place.rank(place.own - place.span()), &stored(elements))?;
    }
    Ok(())
}
