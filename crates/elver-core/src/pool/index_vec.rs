//! Vectors whose places have names of a type of their own.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

/// A place in an [`IndexVec`].
pub(crate) trait Ix: Copy {
    fn new(at: usize) -> Self;

    fn at(self) -> usize;
}

/// A vector that is indexed by `I` alone.
#[derive(Debug)]
pub(crate) struct IndexVec<I, T> {
    all: Vec<T>,
    by: PhantomData<fn() -> I>,
}

impl<I: Ix, T> IndexVec<I, T> {
    pub(crate) fn new() -> IndexVec<I, T> {
        IndexVec { all: Vec::new(), by: PhantomData }
    }

    /// Puts one behind the others.
    pub(crate) fn push(&mut self, item: T) -> I {
        self.all.push(item);
        I::new(self.all.len() - 1)
    }

    /// The place behind the last one.
    pub(crate) fn end(&self) -> I {
        I::new(self.all.len())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.all.iter().enumerate().map(|(at, item)| (I::new(at), item))
    }

    /// Bytes of the vector itself.
    pub(crate) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<T>()
    }
}

impl<I: Ix, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, at: I) -> &T {
        &self.all[at.at()]
    }
}

impl<I: Ix, T> IndexMut<I> for IndexVec<I, T> {
    #[inline]
    fn index_mut(&mut self, at: I) -> &mut T {
        &mut self.all[at.at()]
    }
}
