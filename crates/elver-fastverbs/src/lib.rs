//! The control path of the host's own libibverbs, faster (Swift, section 3.3): `libelver_fastverbs.so`, preloaded or
//! linked. docs/swift.md has what it does and what that brings.
//!
//! It stands before libibverbs and libnl. When a program asks for the list of devices, it loads the one right provider
//! first, so that libibverbs does not load all that there are, and answers what libibverbs asks the kernel and sysfs
//! from the host's cache; once by five system calls of its own it has made sure that the kernel shows the devices that the
//! cache has. Whatever is not as the cache says, libibverbs does all by itself, and the cache is made anew if the process
//! may write it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `calls` | the functions of libibverbs and libnl that it stands before |
//! | `list` | the list of devices |
//! | `plan` | whether the cache is believed, and loading providers |
//! | `window` | what the thread that is inside of such a call answers |
//! | `renew` | making the cache anew |
//! | `warm` | a device that is opened before it is asked for |
//! | `start` | what happens when the library is loaded, and when the program ends |
//! | `lending` | queue pairs for the children of a process (section 3.4) |
//! | `settings`, `counts`, `real` | the environment, counters, the functions behind |
//!
//! `unsafe` stands in `calls`, `list`, `real`, `start`, `warm`, in `renew` for one pointer, and in `lending`.
// In a program of tests the functions have no names, so that its own calls go to the libraries.
#![cfg_attr(test, allow(dead_code))]

mod calls;
mod counts;
mod lending;
mod list;
mod plan;
mod real;
mod renew;
mod settings;
mod start;
mod warm;
mod window;
