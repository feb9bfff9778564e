//! What belongs to the thread that made it, behind objects that Python frees in any: its garbage collector runs in whichever
//! thread is at it. Such an object has a number alone. What that stands for stays with its thread, which lets go of it there, when
//! it is next in a call that looks whether a session is open ([`take_back`]). What a thread has that has ended stays: a view of
//! its memory may be used in another one, and Python's objects among it must not go while the system ends the thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

thread_local! {
    // Never dropped: where the thread has ended, a view of memory may be used in another one.
    static KEPT: &'static Kept = Box::leak(Box::default());
}

/// What a thread has.
#[derive(Default)]
struct Kept {
    values: RefCell<HashMap<u64, Rc<dyn Any>>>,
    last: Cell<u64>,
    freed: Arc<Freed>,
}

/// The numbers of those that were freed in other threads.
#[derive(Default)]
struct Freed(Mutex<Vec<u64>>);

/// Something of its thread's.
pub(crate) struct Own<T> {
    number: u64,
    thread: ThreadId,
    freed: Arc<Freed>,
    what: PhantomData<fn() -> T>,
}

impl<T: 'static> Own<T> {
    pub(crate) fn new(value: Rc<T>) -> Own<T> {
        let (number, freed) = KEPT.with(|kept| {
            kept.last.set(kept.last.get() + 1);
            kept.values.borrow_mut().insert(kept.last.get(), value);
            (kept.last.get(), kept.freed.clone())
        });
        Own { number, thread: thread::current().id(), freed, what: PhantomData }
    }

    /// What it is.
    ///
    /// # Panics
    /// In another thread, which is an exception in Python.
    pub(crate) fn get(&self) -> Rc<T> {
        let name = std::any::type_name::<T>();
        assert_eq!(self.thread, thread::current().id(), "{name} belongs to another thread");
        let value = KEPT.with(|kept| kept.values.borrow().get(&self.number).cloned());
        let value = value.and_then(|value| value.downcast().ok());
        value.unwrap_or_else(|| unreachable!("{name} is kept as long as its object is there"))
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.thread == thread::current().id() {
            let_go(self.number);
        } else {
            self.freed.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        }
    }
}

/// Lets go of what was freed in other threads. No state may be borrowed here: where memory goes, code of the program may run.
pub(crate) fn take_back() {
    let freed = KEPT.with(|kept| kept.freed.clone());
    let numbers = std::mem::take(&mut *freed.0.lock().unwrap_or_else(PoisonError::into_inner));
    numbers.into_iter().for_each(let_go);
}

fn let_go(number: u64) {
    let value = KEPT.with(|kept| kept.values.borrow_mut().remove(&number));
    drop(value);
}
