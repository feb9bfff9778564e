//! The functions that this library stands before. Each does what the function of that name does whose documentation
//! states the contract: rdma-core's manual pages, and libnl's. The SAFETY reasons refer to it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, null_mut};

use crate::counts::{Count, all, count};
use crate::{list, plan, real, warm, window};

/// What libnl answers where it is not there.
const NLE_FAILURE: c_int = 1;
/// `NL_CB_VALID`: the kind of who receives messages that are right.
const VALID: c_int = 0;
/// Length, and then type, of a netlink message's header.
const HEADER: usize = 16;

/// ibv_get_device_list(3).
///
/// # Safety
/// As its manual page says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut c_void {
    // SAFETY: the caller keeps the manual's contract.
    unsafe { list::device_list(number) }
}

/// ibv_open_device(3).
///
/// # Safety
/// As its manual page says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_open_device(device: *mut c_void) -> *mut c_void {
    // SAFETY: the caller keeps the manual's contract.
    if let Some(context) = unsafe { warm::take(device) } {
        return context;
    }
    let cache = plan::current();
    // SAFETY: likewise.
    let open = || unsafe { real::ibv_open_device(device) };
    let context = window::with(cache.clone(), open).unwrap_or(null_mut());
    if !context.is_null() || cache.is_none() {
        return context;
    }
    // Whatever the reason is: the real thing, and a list without the cache, which is made anew from that for whoever comes.
    count(Count::OpenFailed);
    plan::doubt();
    let context = open().unwrap_or(null_mut());
    let kept = list::errno_now();
    list::renew();
    list::set_errno(kept);
    context
}

/// `ibv_read_sysfs_file` of libibverbs, by which it and its providers read attributes: their length without the end of
/// the line, or -1.
///
/// # Safety
/// Two strings, and room for so many bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller gives strings.
    let [above, name] =
        unsafe { [CStr::from_ptr(directory), CStr::from_ptr(file)] }.map(CStr::to_bytes);
    let known = window::attribute(&[above, b"/", name].concat());
    if let Some(value) = known.filter(|value| value.len() < size) {
        count(Count::Attributes);
        let line = value.strip_suffix(b"\n").unwrap_or(&value);
        // SAFETY: the caller has room for more than that many bytes.
        unsafe {
            ptr::copy_nonoverlapping(line.as_ptr().cast(), to, line.len());
            to.add(line.len()).write(0);
        }
        return line.len() as c_int;
    }
    // SAFETY: as the caller promises.
    unsafe { real::ibv_read_sysfs_file(directory, file, to, size) }.unwrap_or(-1)
}

/// `nl_connect` of libnl: libibverbs's socket needs none where the cache has the answers.
///
/// # Safety
/// As libnl says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nl_connect(socket: *mut c_void, protocol: c_int) -> c_int {
    if window::take_socket(socket, protocol) {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { real::nl_connect(socket, protocol) }.unwrap_or(-NLE_FAILURE)
}

/// `nl_send_simple` of libnl.
///
/// # Safety
/// As libnl says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nl_send_simple(
    socket: *mut c_void,
    kind: c_int,
    flags: c_int,
    bytes: *mut c_void,
    size: usize,
) -> c_int {
    if window::is_taken(socket) {
        // Only the question for all devices is sent so, and it has no bytes.
        let is_asked = size == 0 && u16::try_from(kind).is_ok_and(|kind| window::ask(kind, &[]));
        return if is_asked { HEADER as c_int } else { -NLE_FAILURE };
    }
    // SAFETY: as the caller promises.
    unsafe { real::nl_send_simple(socket, kind, flags, bytes, size) }.unwrap_or(-NLE_FAILURE)
}

/// `nl_send_auto` of libnl.
///
/// # Safety
/// As libnl says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nl_send_auto(socket: *mut c_void, message: *mut c_void) -> c_int {
    if window::is_taken(socket) {
        // SAFETY: libnl's message has a header, which says how long it is.
        return unsafe { ask(message) }.unwrap_or(-NLE_FAILURE);
    }
    // SAFETY: as the caller promises.
    unsafe { real::nl_send_auto(socket, message) }.unwrap_or(-NLE_FAILURE)
}

/// Keeps the question that is in a message; its length.
///
/// # Safety
/// It is a message of libnl's.
unsafe fn ask(message: *mut c_void) -> Option<c_int> {
    // SAFETY: by the caller's promise; the header's first fields are its length, and type.
    unsafe {
        let header = real::nlmsg_hdr(message)?;
        let length = header.cast::<u32>().read() as usize;
        let kind = header.byte_add(4).cast::<u16>().read();
        let payload = header.byte_add(HEADER).cast::<u8>();
        let payload = std::slice::from_raw_parts(payload, length.checked_sub(HEADER)?);
        window::ask(kind, payload).then_some(length as c_int)
    }
}

/// `nl_recvmsgs_default` of libnl.
///
/// # Safety
/// As libnl says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nl_recvmsgs_default(socket: *mut c_void) -> c_int {
    if !window::is_taken(socket) {
        // SAFETY: as the caller promises.
        return unsafe { real::nl_recvmsgs_default(socket) }.unwrap_or(-NLE_FAILURE);
    }
    let Some(delivery) = window::deliver() else { return -NLE_FAILURE };
    let (function, argument) = delivery.receiver;
    if function == 0 {
        return -NLE_FAILURE;
    }
    type Receive = unsafe extern "C" fn(message: *mut c_void, argument: *mut c_void) -> c_int;
    // SAFETY: libibverbs gave this function to libnl as one of this type, with its argument.
    let receive = unsafe { std::mem::transmute::<usize, Receive>(function) };
    for mut bytes in delivery.messages {
        count(Count::Answers);
        // SAFETY: the bytes are a message with its header; libnl copies them, and frees its copy.
        let told = unsafe {
            let message = real::nlmsg_convert(bytes.as_mut_ptr().cast()).unwrap_or(null_mut());
            if message.is_null() {
                return -NLE_FAILURE;
            }
            let told = receive(message, argument as *mut c_void);
            real::nlmsg_free(message);
            told
        };
        if told < 0 {
            return told;
        }
    }
    0
}

/// `nl_socket_modify_cb` of libnl.
///
/// # Safety
/// As libnl says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nl_socket_modify_cb(
    socket: *mut c_void,
    kind: c_int,
    set: c_int,
    function: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    if window::is_taken(socket) && kind == VALID {
        window::set_receiver((function as usize, argument as usize));
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { real::nl_socket_modify_cb(socket, kind, set, function, argument) }
        .unwrap_or(-NLE_FAILURE)
}

/// The counters of this process, so many as there is room for; how many there are. `Count` in
/// `counts.rs` says which.
///
/// # Safety
/// Room for so many numbers.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_fastverbs_counts(to: *mut u64, room: usize) -> usize {
    let counts = all();
    let told = counts.len().min(if to.is_null() { 0 } else { room });
    // SAFETY: the caller has that much room.
    unsafe { ptr::copy_nonoverlapping(counts.as_ptr(), to, told) };
    counts.len()
}
