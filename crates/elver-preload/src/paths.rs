//! Look-ups of names in libc: those that [`place`] answers for go to its files, and all others to the
//! system as they came. Calls that are one system call are made as such: a program may make them
//! before this library could ask the loader for libc's own.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW};

use crate::cm::fd;
use crate::guard;
use crate::tree::place;

/// A name, and where it is if it is one of ours.
struct Name {
    given: *const c_char,
    ours: Option<CString>,
}

impl Name {
    fn get(&self) -> *const c_char {
        self.ours.as_ref().map_or(self.given, |ours| ours.as_ptr())
    }
}

/// # Safety
/// `path` is null or a string, as each of these calls asks for.
unsafe fn name(path: *const c_char) -> Name {
    let mut ours = None;
    if !path.is_null() {
        // SAFETY: the caller's word.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        // Nearly no name is one of ours, and nothing is done for those.
        if bytes.starts_with(b"/sys/class/infiniband") || bytes.starts_with(b"/dev/infiniband/") {
            let error = std::io::Error::last_os_error().raw_os_error();
            ours = guard(None, || place(bytes));
            crate::errno::set(error.unwrap_or(0));
        }
    }
    Name { given: path, ours }
}

/// The same, with nothing in it to be dropped: what libc calls of the program's may throw, jump or be cancelled past it.
struct Laid {
    given: *const c_char,
    bytes: [MaybeUninit<u8>; libc::PATH_MAX as usize],
    is_ours: bool,
}

impl Laid {
    /// # Safety
    /// As [`name`].
    unsafe fn new(path: *const c_char) -> Laid {
        let bytes = [MaybeUninit::uninit(); libc::PATH_MAX as usize];
        let mut laid = Laid { given: path, bytes, is_ours: false };
        // SAFETY: the caller's word.
        if let Some(ours) = unsafe { name(path) }.ours {
            let ours = ours.as_bytes_with_nul();
            // The system takes no longer one: there is no such file under the name that was given.
            if let Some(to) = laid.bytes.get_mut(..ours.len()) {
                to.iter_mut().zip(ours).for_each(|(to, byte)| _ = to.write(*byte));
                laid.is_ours = true;
            }
        }
        laid
    }

    fn get(&self) -> *const c_char {
        if self.is_ours { self.bytes.as_ptr().cast() } else { self.given }
    }
}

/// Opens rdma_cm's device, if that is what is named; -1 if it cannot be had.
///
/// # Safety
/// As [`name`].
unsafe fn event_channel(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's word.
    if path.is_null() || unsafe { CStr::from_ptr(path) }.to_bytes() != fd::NAME {
        return None;
    }
    Some(guard(Err(libc::EIO), || fd::open(flags)).unwrap_or_else(|error| {
        crate::errno::set(error);
        -1
    }))
}

macro_rules! opened {
    ($($name:ident($($at:ident: $of:ty,)? ; $($mode:ident)?) => $dir:expr;)*) => {$(
        // The mode stands where a variable argument does, which a caller without one leaves as it is.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($at: $of,)? path: *const c_char, flags: c_int $(, $mode: c_uint)?) -> c_int {
            // SAFETY: the contract of `open`(2).
            unsafe {
                if let Some(fd) = event_channel(path, flags) {
                    return fd;
                }
                let path = name(path);
                let mode = opened!(@mode $($mode)?);
                libc::syscall(libc::SYS_openat, $dir, path.get(), flags, mode) as c_int
            }
        }
    )*};
    (@mode) => { 0 };
    (@mode $mode:ident) => { $mode };
}

opened! {
    open(; mode) => AT_FDCWD;
    open64(; mode) => AT_FDCWD;
    openat(at: c_int, ; mode) => at;
    openat64(at: c_int, ; mode) => at;
    __open_2(;) => AT_FDCWD;
    __open64_2(;) => AT_FDCWD;
    __openat_2(at: c_int, ;) => at;
    __openat64_2(at: c_int, ;) => at;
}

macro_rules! looked_at {
    ($($name:ident($($at:ident: $of:ty,)*; $($more:ident)?) => $dir:expr, $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($at: $of,)* path: *const c_char, to: *mut c_void $(, $more: c_int)?) -> c_int {
            // SAFETY: the contract of `stat`(2); the kernel's structure is libc's on machines of 64 bits.
            unsafe {
                let path = name(path);
                libc::syscall(libc::SYS_newfstatat, $dir, path.get(), to, $flags) as c_int
            }
        }
    )*};
}

looked_at! {
    stat(;) => AT_FDCWD, 0;
    stat64(;) => AT_FDCWD, 0;
    lstat(;) => AT_FDCWD, AT_SYMLINK_NOFOLLOW;
    lstat64(;) => AT_FDCWD, AT_SYMLINK_NOFOLLOW;
    fstatat(at: c_int,; flags) => at, flags;
    fstatat64(at: c_int,; flags) => at, flags;
    __xstat(_version: c_int,;) => AT_FDCWD, 0;
    __xstat64(_version: c_int,;) => AT_FDCWD, 0;
    __lxstat(_version: c_int,;) => AT_FDCWD, AT_SYMLINK_NOFOLLOW;
    __lxstat64(_version: c_int,;) => AT_FDCWD, AT_SYMLINK_NOFOLLOW;
    __fxstatat(_version: c_int, at: c_int,; flags) => at, flags;
    __fxstatat64(_version: c_int, at: c_int,; flags) => at, flags;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut c_void,
) -> c_int {
    // SAFETY: the contract of `statx`(2).
    unsafe {
        let path = name(path);
        libc::syscall(libc::SYS_statx, at, path.get(), flags, mask, to) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the contract of `access`(2).
    unsafe {
        let path = name(path);
        libc::syscall(libc::SYS_faccessat, AT_FDCWD, path.get(), mode) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: the contract of `chdir`(2).
    unsafe {
        let path = name(path);
        libc::syscall(libc::SYS_chdir, path.get()) as c_int
    }
}

macro_rules! links {
    ($($name:ident($($at:ident: $of:ty,)?; $($room:ident)?) => $dir:expr;)*) => {$(
        // The last argument of those that have it is how much room there is, which the kernel is told as well.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($at: $of,)? path: *const c_char, to: *mut c_char, len: usize $(, $room: usize)?) -> isize {
            // SAFETY: the contract of `readlink`(2).
            unsafe {
                let path = name(path);
                $(let len = len.min($room);)?
                libc::syscall(libc::SYS_readlinkat, $dir, path.get(), to, len) as isize
            }
        }
    )*};
}

links! {
    readlink(;) => AT_FDCWD;
    readlinkat(at: c_int,;) => at;
    __readlink_chk(; room) => AT_FDCWD;
    __readlinkat_chk(at: c_int,; room) => at;
}

/// libc's own call of a name, which stands behind this library's.
fn next(own: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let found = own.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: a look-up by a name that ends.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    own.store(found, Ordering::Relaxed);
    found
}

/// What a call returns that libc does not have.
trait Failure {
    const FAILED: Self;
}

impl<T> Failure for *mut T {
    const FAILED: Self = ptr::null_mut();
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

// Some of them call the program, and are left by what it throws; others wait, and can be cancelled there.
macro_rules! handed_on {
    ($($name:ident($($at:ident: $before:ty,)?; $($arg:ident: $of:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($at: $before,)? path: *const c_char $(, $arg: $of)*) -> $result {
            static OWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("it ends with its only zero"),
            };
            let own = next(&OWN, NAME);
            if own.is_null() {
                crate::errno::set(libc::ENOSYS);
                return Failure::FAILED;
            }
            // SAFETY: libc's call of this name has this form; the contract is its own.
            unsafe {
                let own: unsafe extern "C-unwind" fn($($before,)? *const c_char $(, $of)*) -> $result = std::mem::transmute(own);
                let path = Laid::new(path);
                own($($at,)? path.get() $(, $arg)*)
            }
        }
    )*};
}

handed_on! {
    fopen(; mode: *const c_char) -> *mut c_void;
    fopen64(; mode: *const c_char) -> *mut c_void;
    opendir(;) -> *mut c_void;
    realpath(; to: *mut c_char) -> *mut c_char;
    __realpath_chk(; to: *mut c_char, room: usize) -> *mut c_char;
    canonicalize_file_name(;) -> *mut c_char;
    scandir(; to: *mut c_void, chosen: *mut c_void, order: *mut c_void) -> c_int;
    scandir64(; to: *mut c_void, chosen: *mut c_void, order: *mut c_void) -> c_int;
    faccessat(at: c_int,; mode: c_int, flags: c_int) -> c_int;
    eaccess(; mode: c_int) -> c_int;
    euidaccess(; mode: c_int) -> c_int;
}
