//! Threads that drive a device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use elver_verbs::Device;
use rustix::event::{EventfdFlags, eventfd};

use crate::{SoftDevice, SoftError};

/// The longest sleep: a bound on how late a stop is noticed that nobody announced.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// What a thread does while its device has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It keeps looking: lowest latency, a whole core.
    Spin,
    /// It looks so many times, then lets other threads run between looks.
    Yield {
        /// Looks before the first yield.
        spins: u32,
    },
    /// It looks so many times, then sleeps until a packet comes or a timer is due.
    Sleep {
        /// Looks before it sleeps.
        spins: u32,
    },
}

/// Drives a device on the calling thread until `stop` is set or `each`, which runs once a round,
/// returns false. `each` may use the device as it likes; a round in which it did something should
/// be followed by another, so it tells by posting or polling.
///
/// # Errors
///
/// What [`SoftDevice::wait`] says, where `idle` sleeps.
pub fn drive(
    device: &mut SoftDevice,
    idle: Idle,
    stop: &AtomicBool,
    mut each: impl FnMut(&mut SoftDevice) -> bool,
) -> Result<(), SoftError> {
    let mut empty = 0u32;
    while !stop.load(Ordering::Relaxed) {
        if !each(device) {
            return Ok(());
        }
        if device.progress() {
            empty = 0;
            continue;
        }
        empty = empty.saturating_add(1);
        rest(device, idle, empty, None)?;
    }
    Ok(())
}

/// Does what `idle` says after so many empty rounds.
fn rest(
    device: &mut SoftDevice,
    idle: Idle,
    empty: u32,
    wake: Option<&OwnedFd>,
) -> Result<(), SoftError> {
    match idle {
        Idle::Spin => std::hint::spin_loop(),
        Idle::Yield { spins } if empty > spins => std::thread::yield_now(),
        Idle::Sleep { spins } if empty > spins => {
            device.wait_beside(SLEEP_MAX, wake.map(AsFd::as_fd))?;
        }
        Idle::Yield { .. } | Idle::Sleep { .. } => std::hint::spin_loop(),
    }
    Ok(())
}

type Job = Box<dyn FnOnce(&mut SoftDevice) + Send>;

/// A device that a thread of its own owns and drives. Others reach it by [`SoftThread::call`],
/// which is for control, not for the data path: what posts and polls belongs on the thread itself.
pub struct SoftThread {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<SoftDevice, SoftError>>>,
}

impl SoftThread {
    /// Gives a device to a new thread.
    ///
    /// # Errors
    ///
    /// [`SoftError::System`] if there is no descriptor or no thread to be had.
    pub fn spawn(device: SoftDevice, idle: Idle) -> Result<SoftThread, SoftError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags)
            .map_err(|error| SoftError::System { call: "eventfd", reason: error.into() })?;
        let wake = Arc::new(wake);
        let stop = Arc::new(AtomicBool::new(false));
        let (jobs, waiting) = channel();
        let (wake_inside, stop_inside) = (wake.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("elver-soft".into())
            .spawn(move || own(device, idle, &waiting, &wake_inside, &stop_inside))
            .map_err(|reason| SoftError::System { call: "pthread_create", reason })?;
        Ok(SoftThread { jobs, wake, stop, thread: Some(thread) })
    }

    /// Runs `job` on the device's thread and returns its result. Fails if the thread has ended.
    ///
    /// # Errors
    ///
    /// [`SoftError::System`] if it has, or `job` panicked.
    pub fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut SoftDevice) -> R + Send + 'static,
    ) -> Result<R, SoftError> {
        let (answer, result) = channel();
        let ended = || SoftError::System {
            call: "call to the device's thread",
            reason: io::ErrorKind::BrokenPipe.into(),
        };
        let job: Job = Box::new(move |device| {
            // The caller waits for it, so that a send only fails when the caller is gone too.
            let _ = answer.send(job(device));
        });
        self.jobs.send(job).map_err(|_| ended())?;
        self.rouse();
        result.recv().map_err(|_| ended())
    }

    /// Ends the thread and takes the device back.
    ///
    /// # Errors
    ///
    /// [`SoftError::System`] if the thread had ended by a panic; what it had ended for, if it had ended by
    /// itself.
    pub fn stop(mut self) -> Result<SoftDevice, SoftError> {
        let thread = self.end().ok_or_else(|| SoftError::System {
            call: "stop of the device's thread",
            reason: io::ErrorKind::NotFound.into(),
        })?;
        thread.join().unwrap_or_else(|_| {
            Err(SoftError::System {
                call: "join of the device's thread",
                reason: io::Error::other("the thread panicked"),
            })
        })
    }

    fn end(&mut self) -> Option<JoinHandle<Result<SoftDevice, SoftError>>> {
        self.stop.store(true, Ordering::Relaxed);
        self.rouse();
        self.thread.take()
    }

    fn rouse(&self) {
        // It fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for SoftThread {
    fn drop(&mut self) {
        if let Some(thread) = self.end() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// The body of the thread.
fn own(
    mut device: SoftDevice,
    idle: Idle,
    jobs: &Receiver<Job>,
    wake: &OwnedFd,
    stop: &AtomicBool,
) -> Result<SoftDevice, SoftError> {
    let mut empty = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let mut busy = false;
        while let Ok(job) = jobs.try_recv() {
            job(&mut device);
            busy = true;
        }
        busy |= device.progress();
        if busy {
            empty = 0;
            continue;
        }
        empty = empty.saturating_add(1);
        rest(&mut device, idle, empty, Some(wake))?;
        if matches!(idle, Idle::Sleep { .. }) {
            let mut counter = [0; 8];
            // Nothing to read means that a packet or a timer ended the sleep.
            let _ = rustix::io::read(wake, &mut counter);
        }
    }
    Ok(device)
}
