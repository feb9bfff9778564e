//! [`elver_handler`] for functions in C: `include/elver_handler.h` has what each call promises.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use elver_handler::elver::RemoteAddr;
use elver_handler::{Context, Error};

/// A handler in C: 0 if it succeeded.
type Handler = unsafe extern "C" fn(*const c_char, usize, *mut CContext<'_, '_>) -> c_int;

/// What a handler in C has of its request.
pub struct CContext<'a, 'b> {
    context: &'b mut Context<'a>,
    answer: Vec<u8>,
    error: CString,
}

impl CContext<'_, '_> {
    fn note(&mut self, outcome: Result<(), Error>) -> c_int {
        match outcome {
            Ok(()) => 0,
            Err(error) => {
                self.error = text(&error.to_string());
                -1
            }
        }
    }
}

fn text(of: &str) -> CString {
    CString::new(of.replace('\0', " ")).unwrap_or_default()
}

/// # Safety
/// `handler` keeps to what the header says: it does not unwind, and uses its arguments only until it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_serve(handler: Option<Handler>) -> c_int {
    let Some(handler) = handler else { return -1 };
    let served = elver_handler::serve(|event, context| {
        let mut c = CContext { context, answer: b"null".to_vec(), error: CString::default() };
        let given: *mut CContext<'_, '_> = &mut c;
        // SAFETY: both are there until it returns, and nothing else uses them; the caller vouches for it.
        let code = unsafe { handler(event.as_ptr().cast(), event.len(), given) };
        match code {
            0 => Ok(c.answer),
            code if c.error.is_empty() => Err(format!("the handler returned {code}").into()),
            _ => Err(c.error.to_string_lossy().into()),
        }
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("elver-handler: {error}");
            -1
        }
    }
}

/// # Safety
/// `context` is the handler's, and `answer` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_answer(
    context: *mut CContext<'_, '_>,
    answer: *const c_void,
    length: usize,
) {
    // SAFETY: as the caller promises; an answer of no bytes may be null.
    let (context, answer) = unsafe {
        let bytes = match length {
            0 => &[],
            _ => std::slice::from_raw_parts(answer.cast::<u8>(), length),
        };
        (&mut *context, bytes)
    };
    context.answer = answer.to_vec();
}

/// # Safety
/// `context` is the handler's, and `what` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_fail(context: *mut CContext<'_, '_>, what: *const c_char) {
    // SAFETY: as the caller promises.
    let (context, what) = unsafe { (&mut *context, CStr::from_ptr(what)) };
    context.error = what.to_owned();
}

/// # Safety
/// `context` is the handler's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_error(context: *const CContext<'_, '_>) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { (*context).error.as_ptr() }
}

/// # Safety
/// `context` is the handler's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_time_left_ms(context: *const CContext<'_, '_>) -> u64 {
    // SAFETY: as the caller promises.
    let left = unsafe { (*context).context.time_left() };
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

/// # Safety
/// `context` is the handler's, and `length` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_memory(
    context: *mut CContext<'_, '_>,
    length: *mut usize,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let context = unsafe { &mut *context };
    match context.context.rdma() {
        Ok(rdma) => {
            if !length.is_null() {
                // SAFETY: as the caller promises.
                unsafe { *length = rdma.mr.len() as usize };
            }
            rdma.mr.as_ptr().cast()
        }
        Err(error) => {
            context.note(Err(error));
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `context` is the handler's, and `destination` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_read(
    context: *mut CContext<'_, '_>,
    destination: *const c_char,
    offset: u64,
    length: u32,
    address: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: as the caller promises.
    let (context, destination) = unsafe { (&mut *context, CStr::from_ptr(destination)) };
    let from = RemoteAddr { addr: address, rkey };
    let destination = destination.to_string_lossy();
    let outcome = context.context.rdma();
    let outcome = outcome.and_then(|rdma| rdma.read(&destination, offset, length, from));
    context.note(outcome)
}

/// # Safety
/// `context` is the handler's, and `destination` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elver_write(
    context: *mut CContext<'_, '_>,
    destination: *const c_char,
    offset: u64,
    length: u32,
    address: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: as the caller promises.
    let (context, destination) = unsafe { (&mut *context, CStr::from_ptr(destination)) };
    let to = RemoteAddr { addr: address, rkey };
    let destination = destination.to_string_lossy();
    let outcome = context.context.rdma();
    let outcome = outcome.and_then(|rdma| rdma.write(&destination, offset, length, to));
    context.note(outcome)
}
