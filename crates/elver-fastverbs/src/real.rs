//! The functions that stand behind those of this library, and loading libraries.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

const LIBIBVERBS: &CStr = c"libibverbs.so.1";
const LIBNL: &CStr = c"libnl-3.so.200";

/// A function of a library that is loaded: the next behind this library, or, where the program loaded that library
/// without showing it to all, the library's own.
fn find(name: &CStr, library: &CStr, kept: &AtomicPtr<c_void>) -> Option<*mut c_void> {
    let known = kept.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    // SAFETY: both are names that end with a zero; nothing is loaded that is not.
    let found = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if next.is_null() {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) }
        } else {
            next
        }
    };
    kept.store(found, Ordering::Relaxed);
    (!found.is_null()).then_some(found)
}

macro_rules! real {
    ($($library:ident $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// The library's own; nothing if that is not loaded.
        ///
        /// # Safety
        /// As its documentation says.
        pub(crate) unsafe fn $name($($arg: $type),*) -> Option<$result> {
            static KEPT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            };
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            let found = find(NAME, $library, &KEPT)?;
            // SAFETY: a function of that name has this type in that library, whose header says so; and the caller's
            // promise is what its documentation asks for.
            Some(unsafe { std::mem::transmute::<*mut c_void, Function>(found)($($arg),*) })
        }
    )*};
}

real! {
    LIBIBVERBS ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    LIBIBVERBS ibv_free_device_list(list: *mut *mut c_void) -> ();
    LIBIBVERBS ibv_get_device_name(device: *mut c_void) -> *const c_char;
    LIBIBVERBS ibv_open_device(device: *mut c_void) -> *mut c_void;
    LIBIBVERBS ibv_close_device(context: *mut c_void) -> c_int;
    LIBIBVERBS ibv_query_qp(qp: *mut c_void, attributes: *mut c_void, mask: c_int, made: *mut c_void) -> c_int;
    LIBIBVERBS ibv_modify_qp(qp: *mut c_void, attributes: *mut c_void, mask: c_int) -> c_int;
    LIBIBVERBS ibv_destroy_qp(qp: *mut c_void) -> c_int;
    LIBIBVERBS ibv_qp_to_qp_ex(qp: *mut c_void) -> *mut c_void;
    LIBIBVERBS ibv_read_sysfs_file(directory: *const c_char, file: *const c_char, to: *mut c_char, size: usize) -> c_int;
    LIBNL nl_connect(socket: *mut c_void, protocol: c_int) -> c_int;
    LIBNL nl_send_simple(socket: *mut c_void, kind: c_int, flags: c_int, bytes: *mut c_void, size: usize) -> c_int;
    LIBNL nl_send_auto(socket: *mut c_void, message: *mut c_void) -> c_int;
    LIBNL nl_recvmsgs_default(socket: *mut c_void) -> c_int;
    LIBNL nl_socket_modify_cb(socket: *mut c_void, kind: c_int, set: c_int, function: *mut c_void, argument: *mut c_void) -> c_int;
    LIBNL nlmsg_hdr(message: *mut c_void) -> *mut c_void;
    LIBNL nlmsg_convert(header: *mut c_void) -> *mut c_void;
    LIBNL nlmsg_free(message: *mut c_void) -> ();
}

/// Where the real list of devices is made.
pub(crate) fn device_list_address() -> Option<*const c_void> {
    static KEPT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    find(c"ibv_get_device_list", LIBIBVERBS, &KEPT).map(<*mut c_void>::cast_const)
}

/// The function of a name that the program itself calls; null if there is none.
pub(crate) fn first(name: &CStr) -> *const c_void {
    // SAFETY: a name that ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Loads a library for good, as libibverbs loads providers; false if it cannot be.
pub(crate) fn load(path: &CStr) -> bool {
    // SAFETY: a path that ends with a zero, of a provider: what it does when it is loaded, libibverbs has it do too.
    !unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null()
}

/// Whether the program has more rights than who started it: then the environment is not believed.
pub(crate) fn has_more_rights() -> bool {
    // SAFETY: it reads what the kernel told the process when that began.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
