//! Ends of a process that run none of its handlers: `_exit`, as children of `fork` mostly end. What its device counted is
//! told all the same.

use std::ffi::c_int;

use crate::engine::last_words;
use crate::guard;

macro_rules! ends {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(code: c_int) -> ! {
            guard((), || last_words());
            loop {
                // SAFETY: it takes a number, and nothing of this process is touched after it.
                unsafe { libc::syscall(libc::SYS_exit_group, code) };
            }
        }
    )*};
}

ends! { _exit _Exit }
