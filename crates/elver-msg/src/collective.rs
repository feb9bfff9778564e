//! Operations that all ranks call, in one order.

mod allreduce;
mod gathering;
mod operation;
mod trees;

use operation::{Operation, What};

use crate::element::{Element, load_all, stored};
use crate::{Error, Group};

/// From so many bytes on elements are reduced in a ring, where each rank sends and receives twice their bytes,
/// whatever the number of ranks; below, in ⌈lg n⌉ rounds.
const RING_REDUCE_BYTES: usize = 64 << 10;
/// From so many bytes together on elements are gathered in a ring (MPICH's threshold; Thakur et al., section 4.1).
const RING_GATHER_BYTES: usize = 80 << 10;

impl Group {
    /// Returns when all ranks have called it. A dissemination barrier: ⌈lg n⌉ rounds (Hensgen, Finkel and Manber, "Two
    /// algorithms for barrier synchronization", 1988).
    ///
    /// # Errors
    /// [`Error::Lost`] if any rank has died, or one that is needed has left; [`Error::Disagree`] if a rank calls
    /// something else; [`Error::GaveUp`] if a rank met one that does, or cannot go on for another reason.
    pub fn barrier(&self) -> Result<(), Error> {
        let mut operation = Operation::begin(self, What::Barrier)?;
        let (rank, size) = (self.rank(), self.size());
        let mut away = 1;
        while away < size {
            let (to, from) = ((rank + away) % size, (rank + size - away) % size);
            operation.exchange((to, &[]), (from, &mut []))?;
            away *= 2;
        }
        Ok(())
    }

    /// Gives all ranks the root's elements, of which each has as many. A binomial tree: ⌈lg n⌉ rounds.
    ///
    /// # Errors
    /// As [`Group::barrier`]; [`Error::Rank`]; [`Error::Length`] if a rank has another number of elements.
    pub fn broadcast<T: Element>(&self, root: u32, elements: &mut [T]) -> Result<(), Error> {
        self.check_rank(root)?;
        let mut operation = Operation::begin(self, What::Broadcast)?;
        let mut bytes = stored(elements);
        trees::broadcast(&mut operation, root, &mut bytes)?;
        if self.rank() != root {
            load_all(&bytes, elements);
        }
        Ok(())
    }

    /// Gives the root all ranks' elements, by rank; of each as many. A binomial tree: ⌈lg n⌉ rounds.
    ///
    /// # Errors
    /// As [`Group::broadcast`].
    pub fn gather<T: Element>(&self, root: u32, elements: &[T]) -> Result<Option<Vec<T>>, Error> {
        self.check_rank(root)?;
        let mut operation = Operation::begin(self, What::Gather)?;
        let all = trees::gather(&mut operation, root, &stored(elements))?;
        Ok(all.map(|all| self.loaded(&all, elements.len())))
    }

    /// Gives all ranks all ranks' elements, by rank; of each as many. Bruck's algorithm, ⌈lg n⌉ rounds (Bruck et al.,
    /// "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997); of many
    /// bytes a ring, n − 1 rounds.
    ///
    /// # Errors
    /// As [`Group::broadcast`]; [`Error::Disagree`] if by a rank's elements all together are 80 KiB and more, and by
    /// another's they are not.
    pub fn allgather<T: Element>(&self, elements: &[T]) -> Result<Vec<T>, Error> {
        let own = stored(elements);
        let all = if own.len() * self.size() as usize >= RING_GATHER_BYTES {
            let mut operation = Operation::begin(self, What::AllgatherRing)?;
            gathering::ring(&mut operation, &own)?
        } else {
            let mut operation = Operation::begin(self, What::Allgather)?;
            gathering::bruck(&mut operation, &own)?
        };
        Ok(self.loaded(&all, elements.len()))
    }

    /// Makes one of all ranks' elements, each with those at its place, and gives it to the root. The function is
    /// associative and commutative ([`crate::ops`]). A binomial tree: ⌈lg n⌉ rounds.
    ///
    /// # Errors
    /// As [`Group::broadcast`].
    pub fn reduce<T: Element>(
        &self,
        root: u32,
        elements: &[T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<Option<Vec<T>>, Error> {
        self.check_rank(root)?;
        let mut operation = Operation::begin(self, What::Reduce)?;
        let mut all = elements.to_vec();
        trees::reduce(&mut operation, root, &mut all, &combine)?;
        Ok((self.rank() == root).then_some(all))
    }

    /// The same, and gives it to all ranks: the same to each, to the bit. Recursive doubling, ⌈lg n⌉ rounds and two
    /// more where the number of ranks is no power of two (Thakur, Rabenseifner and Gropp, "Optimization of collective
    /// communication operations in MPICH", 2005, section 4.5); of 64 KiB and more a ring, 2(n − 1) rounds (Patarasuk and
    /// Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
    ///
    /// # Errors
    /// As [`Group::broadcast`]; [`Error::Disagree`] if a rank has 64 KiB and more, and one has not.
    pub fn allreduce<T: Element>(
        &self,
        elements: &mut [T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), Error> {
        if size_of_val(elements) >= RING_REDUCE_BYTES {
            let mut operation = Operation::begin(self, What::AllreduceRing)?;
            allreduce::ring(&mut operation, elements, &combine)
        } else {
            let mut operation = Operation::begin(self, What::Allreduce)?;
            allreduce::doubling(&mut operation, elements, &combine)
        }
    }

    /// Bytes of all ranks as elements.
    fn loaded<T: Element>(&self, bytes: &[u8], each: usize) -> Vec<T> {
        let mut all = vec![T::default(); each * self.size() as usize];
        load_all(bytes, &mut all);
        all
    }
}
