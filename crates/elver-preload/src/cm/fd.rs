//! Descriptors of event channels: what a program opens, writes to and closes. They are readable
//! as long as there is an event, and look like the character device to `fstat`.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use elver_soft::now;

use crate::cm::abi::{GetEvent, Header};
use crate::cm::command::{Command, put};
use crate::cm::parting::Parting;
use crate::cm::state::Cm;
use crate::engine::Engine;
use crate::errno::{guard, last, set, whole};
use crate::fork::generation;
use crate::ring::{be_cancelled, sleep_on, wait};
use crate::rung::Rung;

/// Descriptors that can be an event channel: the generation of the process that opened each, or 0. Calls
/// look here first, and signal handlers may make them.
static CHANNELS: [AtomicU32; 1 << 16] = [const { AtomicU32::new(0) }; 1 << 16];
/// Whether there was one.
static HAS_CHANNELS: AtomicBool = AtomicBool::new(false);
/// The name that is answered for.
pub(crate) const NAME: &[u8] = b"/dev/infiniband/rdma_cm";
/// GET_EVENT.
const GET_EVENT: u32 = 12;
/// The misc major, which the kernel's has, and the first dynamic minor.
const MISC: (u32, u32) = (10, 58);

fn is_channel(fd: c_int) -> bool {
    usize::try_from(fd)
        .ok()
        .and_then(|fd| CHANNELS.get(fd))
        .is_some_and(|it| it.load(Ordering::Relaxed) != 0)
}

/// Whether this process's parent opened a channel, whose events and answers are its alone.
fn is_inherited(fd: c_int) -> bool {
    is_channel(fd) && CHANNELS[fd as usize].load(Ordering::Relaxed) != generation()
}

/// Opens an event channel.
pub(crate) fn open(flags: c_int) -> Result<RawFd, c_int> {
    let engine = Engine::open()?;
    let mut state = engine.lock();
    let state = &mut *state;
    let cm = match &mut state.cm {
        Some(cm) => cm,
        none => none.insert(Box::new(Cm::new(&mut state.device)?)),
    };
    engine.watch_ends(cm.ends_fd())?;
    cm.sweep();
    let (fd, events) = Rung::new(flags).map_err(|error| error.raw_os_error())?;
    let fd = fd.into_raw_fd();
    let Some(channel) = CHANNELS.get(fd as usize) else {
        // SAFETY: it was just made, and nobody knows it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        return Err(libc::EMFILE);
    };
    cm.open(fd, events);
    channel.store(generation(), Ordering::Relaxed);
    HAS_CHANNELS.store(true, Ordering::Relaxed);
    static LEAVING: Once = Once::new();
    LEAVING.call_once(|| {
        // SAFETY: the function takes nothing.
        unsafe { libc::atexit(leave) };
    });
    Ok(fd)
}

/// Ends what is connected, as the kernel does when a process ends.
extern "C" fn leave() {
    guard((), || {
        let Ok(engine) = Engine::get() else { return };
        let Some(mut state) = engine.lock_at_last() else { return };
        let state = &mut *state;
        if let Some(cm) = &mut state.cm {
            cm.end_all(now());
            cm.step(&mut state.device, now());
            elver_verbs::Device::progress(&mut state.device);
        }
    });
}

/// What becomes of what a program writes to an event channel.
enum Answer {
    Done,
    /// It wants an event, and waits for one.
    None,
    /// It wants one of a channel that has ended since it was written.
    Ended,
}

/// Answers what a program writes to an event channel.
///
/// # Safety
/// `bytes` is what librdmacm writes: addresses in it are of room that it has.
unsafe fn answer(fd: RawFd, bytes: &[u8], ring: Option<u64>) -> Result<Answer, c_int> {
    const HEADER: usize = size_of::<Header>();
    let header: &[u8; HEADER] = bytes.first_chunk().ok_or(libc::EINVAL)?;
    let number = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let length = usize::from(u16::from_ne_bytes([header[4], header[5]]));
    let room = usize::from(u16::from_ne_bytes([header[6], header[7]]));
    let body = bytes.get(HEADER..HEADER + length).ok_or(libc::EINVAL)?;
    if is_inherited(fd) {
        return Err(libc::ENODEV);
    }
    let engine = Engine::get()?;
    if number == GET_EVENT {
        let wanted: &[u8; size_of::<GetEvent>()] = body.first_chunk().ok_or(libc::EINVAL)?;
        let mut state = engine.lock();
        let cm = state.cm.as_mut().ok_or(libc::EBADF)?;
        let event = match cm.next(fd, ring) {
            // As long as nobody else has this in hand the descriptor is the channel's.
            Err(libc::EAGAIN) if !is_nonblocking(fd) => return Ok(Answer::None),
            Err(libc::EBADF) => return Ok(Answer::Ended),
            event => event?,
        };
        return put(u64::from_ne_bytes(*wanted), room, event).map(|()| Answer::Done);
    }
    let mut state = engine.lock();
    let state = &mut *state;
    let cm = state.cm.as_mut().filter(|cm| cm.has(fd)).ok_or(libc::EBADF)?;
    let command = Command { channel: fd, number, bytes: body, room, now: now() };
    let done = cm.call(&command);
    cm.step(&mut state.device, now());
    elver_verbs::Device::progress(&mut state.device);
    state.tell();
    done.map(|()| Answer::Done)
}

/// Whether a program made a descriptor nonblocking.
fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: it is asked for flags, and may be no descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags != -1 && flags & libc::O_NONBLOCK != 0
}

/// Whether what a program writes asks for an event.
fn asks_for_event(bytes: &[u8]) -> bool {
    bytes.first_chunk() == Some(&GET_EVENT.to_ne_bytes())
}

/// What becomes of who waits for an event of a channel that another thread has closed; an errno. The kernel's call holds its file, and
/// waits on for what nobody tells any more.
#[cold]
fn bereft(fd: RawFd) -> c_int {
    let parting = whole(None, || Engine::get().ok()?.lock().cm.as_ref()?.parting(fd));
    match parting {
        Some(Parting::Nonblocking) => libc::EAGAIN,
        // A signal has ended the wait, which began again (`SA_RESTART`) where there is no descriptor any more.
        Some(Parting::Awaited) => libc::EBADF,
        // It was about to wait.
        Some(Parting::Unawaited) | None => sleep_on(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    if !is_channel(fd) {
        // SAFETY: the contract of `write`(2).
        return unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as isize };
    }
    if bytes.is_null() {
        set(libc::EFAULT);
        return -1;
    }
    // SAFETY: the contract of `write`(2).
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(bytes.cast(), count) };
    if asks_for_event(bytes) {
        be_cancelled();
    }
    let mut ring = None;
    let error = loop {
        // SAFETY: the contract of the device.
        let done = whole(Err(libc::EIO), || unsafe { answer(fd, bytes, ring) });
        let waited = match done {
            Ok(Answer::Done) => return count as isize,
            Ok(Answer::None) => wait(fd),
            Ok(Answer::Ended) => Err(libc::EBADF),
            Err(error) => break error,
        };
        match waited {
            Ok(rang) => ring = Some(rang),
            Err(libc::EBADF) => break bereft(fd),
            Err(error) => break error,
        }
    };
    set(error);
    -1
}

/// Ends a channel, whose descriptor a call is to close or to make another file's; what that comes to. Nobody finds the one without the
/// other.
#[cold]
fn end(fd: c_int, call: impl Fn() -> c_int) -> c_int {
    whole(-1, || {
        let inherited = is_inherited(fd);
        let engine = Engine::get();
        if engine.is_ok_and(|engine| !engine.is_of_this_process()) {
            // A child of `vfork` has its parent's memory, and descriptors of its own.
            return call();
        }
        let mut state = engine.ok().filter(|_| !inherited).map(Engine::lock);
        let mut closing = None;
        if let Some(state) = &mut state {
            let state = &mut **state;
            if let Some(cm) = &mut state.cm {
                closing = cm.close(now(), fd);
                cm.step(&mut state.device, now());
                elver_verbs::Device::progress(&mut state.device);
            }
        }
        CHANNELS[fd as usize].store(0, Ordering::Relaxed);
        let nonblocking = is_nonblocking(fd);
        let called = call();
        let error = last();
        if let Some(cm) = state.as_mut().and_then(|state| state.cm.as_mut())
            && let Some(closing) = closing
        {
            cm.part(fd, closing, nonblocking);
        }
        set(error);
        called
    })
}

/// Closes a descriptor.
fn close_one(fd: c_int) -> c_int {
    // SAFETY: the contract of `close`(2).
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_channel(fd) { end(fd, || close_one(fd)) } else { close_one(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With flags none is closed, or none of other threads'.
    if flags == 0 && HAS_CHANNELS.load(Ordering::Relaxed) {
        let most = last.min(CHANNELS.len() as c_uint - 1);
        let all = (first..=most).map(|fd| fd as c_int).filter(|fd| is_channel(*fd));
        all.for_each(|fd| _ = end(fd, || close_one(fd)));
        // What the call closes as well is not to be closed once more behind it: its number may be another file's by then.
        whole((), || {
            let engine = Engine::get().ok().filter(|engine| engine.is_of_this_process());
            if let Some(cm) = engine.map(Engine::lock).as_mut().and_then(|state| state.cm.as_mut())
            {
                cm.wake_sleepers(|fd| (first..=last).contains(&(fd as c_uint)));
            }
        });
    }
    // SAFETY: the contract of `close_range`(2).
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: as above.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Makes a descriptor a copy of another, by `call`, and ends the channel that it was.
fn copied(from: c_int, to: c_int, call: impl Fn() -> c_int) -> c_int {
    // SAFETY: it is asked for flags, and may be no descriptor.
    let copies = || from != to && unsafe { libc::fcntl(from, libc::F_GETFD) } != -1;
    if is_channel(to) && copies() { end(to, call) } else { call() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the contract of `dup3`(2).
    let call = || unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) as c_int };
    if flags & !libc::O_CLOEXEC == 0 { copied(from, to, call) } else { call() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // Not every machine has a call for it.
    if from == to {
        // SAFETY: it is asked for flags, and may be no descriptor.
        return if unsafe { libc::fcntl(from, libc::F_GETFD) } == -1 { -1 } else { to };
    }
    // SAFETY: the contract of `dup2`(2).
    copied(from, to, || unsafe { libc::syscall(libc::SYS_dup3, from, to, 0) as c_int })
}

/// Makes what `fstat` says of a channel what it says of the device.
///
/// # Safety
/// `to` is what `fstat`(2) takes.
unsafe fn told(fd: c_int, to: *mut c_void) -> c_int {
    // SAFETY: the caller's word; on machines of 64 bits the kernel's structure is libc's.
    unsafe {
        let result = libc::syscall(libc::SYS_fstat, fd, to) as c_int;
        if result == 0 && is_channel(fd) {
            let stat = to.cast::<libc::stat>();
            (*stat).st_mode = libc::S_IFCHR | 0o666;
            (*stat).st_rdev = device_number();
        }
        result
    }
}

/// The kernel's number of the device, if it has one: librdmacm asks it too.
fn device_number() -> libc::dev_t {
    let kernels = rustix::fs::statat(rustix::fs::CWD, NAME, rustix::fs::AtFlags::empty());
    kernels.map_or(libc::makedev(MISC.0 as c_uint, MISC.1 as c_uint), |stat| stat.st_rdev)
}

macro_rules! told {
    ($($name:ident($($version:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($version: c_int,)? fd: c_int, to: *mut c_void) -> c_int {
            $(let _ = $version;)?
            // SAFETY: the contract of `fstat`(2).
            unsafe { told(fd, to) }
        }
    )*};
}

told! {
    fstat();
    fstat64();
    __fxstat(version);
    __fxstat64(version);
}
