//! Making the cache anew from the list that libibverbs made by itself.

use std::ffi::c_void;

use elver_hostcache::loaded::{self, Library};
use elver_hostcache::{file, record};

use crate::counts::{Count, count};
use crate::plan;
use crate::settings::settings;

/// `struct ibv_device` has 664 bytes, and the `verbs_device` that it is the first member of has its provider's operations
/// behind it, since rdma-core 17. They are believed only where they stand in a provider's library.
const OPERATIONS: usize = 664;

/// Writes a cache of the host as this list shows it, if this process may.
///
/// # Safety
/// The list is one of libibverbs, with that many devices.
pub(crate) unsafe fn renew(list: *mut *mut c_void, count_of: usize) {
    let mut providers: Vec<Library> = Vec::new();
    for at in 0..count_of {
        // SAFETY: the list has that many devices, each the first member of a larger structure.
        let operations =
            unsafe { (*list.add(at)).byte_add(OPERATIONS).cast::<*const c_void>().read() };
        match loaded::at(operations).filter(is_provider) {
            Some(provider) if providers.contains(&provider) => {}
            Some(provider) => providers.push(provider),
            None => return fail("a device's provider is not known"),
        }
    }
    let Some(library) = plan::libibverbs() else { return fail("libibverbs is not known") };
    let settings = settings();
    let recorded = record::record(&settings.sysfs, &library, &providers);
    let written = recorded.map_err(|error| error.to_string()).and_then(|cache| {
        file::write(&settings.cache, &cache).map_err(|error| error.to_string()).map(|()| cache)
    });
    match written {
        Ok(cache) => {
            count(Count::Renewed);
            plan::remember(cache);
        }
        Err(error) => fail(&error),
    }
}

fn is_provider(library: &Library) -> bool {
    let name = library.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    library.path.starts_with(b"/") && name.windows(6).any(|part| part == b"-rdmav")
}

fn fail(why: &str) {
    count(Count::NotRenewed);
    if settings().log {
        eprintln!("elver-fastverbs: {} is not made anew: {why}", settings().cache.display());
    }
}
