use std::cell::{Ref, RefCell, RefMut};
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Session;
use crate::inner::Held;

/// A `RefCell` for what calls a session while it is borrowed. A task that such a call wakes is woken when the borrow ends: a
/// waker may run its task at once, which may come back here.
pub struct SessionCell<T> {
    session: Session,
    value: RefCell<T>,
}

/// A [`SessionCell`]'s value, borrowed to be looked at.
pub struct SessionRef<'a, T> {
    value: Ref<'a, T>,
    // Behind the value, as fields go in their order.
    _held: Held<'a>,
}

/// A [`SessionCell`]'s value, borrowed to be changed.
pub struct SessionRefMut<'a, T> {
    value: RefMut<'a, T>,
    _held: Held<'a>,
}

impl<T> SessionCell<T> {
    /// A value that calls this session.
    pub fn new(session: &Session, value: T) -> SessionCell<T> {
        SessionCell { session: session.clone(), value: RefCell::new(value) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// As [`RefCell::borrow`].
    ///
    /// # Panics
    /// If it is borrowed to be changed.
    #[inline]
    pub fn borrow(&self) -> SessionRef<'_, T> {
        SessionRef { value: self.value.borrow(), _held: self.session.inner.hold() }
    }

    /// As [`RefCell::borrow_mut`].
    ///
    /// # Panics
    /// If it is borrowed.
    #[inline]
    pub fn borrow_mut(&self) -> SessionRefMut<'_, T> {
        SessionRefMut { value: self.value.borrow_mut(), _held: self.session.inner.hold() }
    }
}

impl<T> Deref for SessionRef<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for SessionRefMut<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for SessionRefMut<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for SessionCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
