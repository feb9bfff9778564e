//! What happens when the library is loaded, before the program's first function, and when the program ends.

use elver_hostcache::machine;

use crate::counts;
use crate::settings::settings;
use crate::warm;

/// If it is set, mlx5 does not read /proc/cpuinfo, a line for each processor's each feature, to find out whether it runs
/// on Sandy Bridge; 0 is what it finds on any other.
const STALL: &str = "MLX5_STALL_CQ_POLL";

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls what stands there once, when all that this library needs is loaded.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
// SAFETY: likewise when the program ends.
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    let settings = settings();
    if settings.is_off {
        return;
    }
    if !machine::is_sandy_bridge() && std::env::var_os(STALL).is_none() {
        // SAFETY: the library is loaded before the program's first function runs, when there is one thread. Who loads it
        // later into a process whose other threads change the environment has been told not to in docs/swift.md.
        unsafe { std::env::set_var(STALL, "0") };
    }
    if let Some(name) = &settings.warm {
        warm::begin(name.clone());
    }
}

extern "C" fn end() {
    if settings().log {
        eprintln!("elver-fastverbs: {}", counts::text());
    }
}
