//! Threads beside the engine's: each has an owner, and ends with what it belongs to.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

/// A thread that ends when it is dropped.
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(
        name: &str,
        body: impl FnOnce(&AtomicBool, &OwnedFd) + Send + 'static,
    ) -> io::Result<Worker> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, wakes) = (stop.clone(), wake.clone());
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || body(&stops, &wakes))?;
        Ok(Worker { stop, wake, thread: Some(thread) })
    }

    /// Whether the thread has nothing more to do.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}
