//! Whether the cache is believed, and loading the providers that it names.

use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use elver_hostcache::file::{self, Refused};
use elver_hostcache::loaded::{self, Library};
use elver_hostcache::{HostCache, Provider, Stale};

use crate::counts::{Count, count, count_stale};
use crate::real;
use crate::settings::{Settings, settings};

/// What is known of the cache.
enum Known {
    /// Its file was not read yet, or is to be read again.
    Nothing,
    /// It was read.
    Cache(Arc<HostCache>),
    /// There is none that could be believed.
    None,
    /// An error pointed at it.
    Doubted,
}

static KNOWN: Mutex<Known> = Mutex::new(Known::Nothing);

/// What a call should do.
pub(crate) enum Plan {
    /// Answer from the cache.
    Answer(Arc<HostCache>),
    /// Let libibverbs do it alone.
    Alone,
    /// Likewise, and make the cache anew from what it finds.
    Renew,
}

/// What to do when the list of devices is asked for. Loads the providers if the cache is right.
pub(crate) fn plan() -> Plan {
    let settings = settings();
    if settings.is_off {
        return Plan::Alone;
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*known, Known::Doubted) || settings.renew && matches!(*known, Known::Nothing) {
        // Once: later calls have the new one, if it could be made.
        *known = Known::None;
        return Plan::Renew;
    }
    if matches!(*known, Known::Nothing) {
        *known = read(settings);
    }
    let Known::Cache(cache) = &*known else { return Plan::Alone };
    let right = match libibverbs() {
        Some(library) => {
            cache.check(&settings.sysfs, &library).and_then(|()| load(&cache.providers))
        }
        None => Err(Stale::Library),
    };
    match right {
        Ok(()) => Plan::Answer(cache.clone()),
        Err(why) => {
            count_stale(why);
            if settings.log {
                eprintln!("elver-fastverbs: the cache is stale: {why}");
            }
            *known = Known::None;
            Plan::Renew
        }
    }
}

/// The cache that answered before, if there is one.
pub(crate) fn current() -> Option<Arc<HostCache>> {
    match &*KNOWN.lock().unwrap_or_else(PoisonError::into_inner) {
        Known::Cache(cache) => Some(cache.clone()),
        _ => None,
    }
}

/// An error points at the cache: the next list is libibverbs's own, and the cache made anew from it.
pub(crate) fn doubt() {
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Known::Doubted;
}

/// There is a new one.
pub(crate) fn remember(cache: HostCache) {
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Known::Cache(Arc::new(cache));
}

/// The library that has the real list of devices.
pub(crate) fn libibverbs() -> Option<Library> {
    loaded::at(real::device_list_address()?)
}

fn read(settings: &Settings) -> Known {
    match file::read(&settings.cache) {
        Ok(cache) => Known::Cache(Arc::new(cache)),
        Err(refused) => {
            count(if refused.is_absent() { Count::Absent } else { Count::Refused });
            say_once(settings, &refused);
            Known::None
        }
    }
}

/// That there is none is nothing to tell of.
fn say_once(settings: &Settings, refused: &Refused) {
    static SAID: OnceLock<()> = OnceLock::new();
    if !refused.is_absent() && SAID.set(()).is_ok() {
        let path = settings.cache.display();
        eprintln!(
            "elver-fastverbs: {path} is not believed: {refused}. Devices are found without it; \
             `elver verbs-profile` makes a new one"
        );
    }
}

/// Loads each provider, and checks that it is the one that the cache has.
fn load(providers: &[Provider]) -> Result<(), Stale> {
    for provider in providers {
        let path = CString::new(&*provider.path).map_err(|_| Stale::Provider)?;
        let name = provider.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        // Only what is named as libibverbs names providers: a cache is not for running anything else.
        let is_provider =
            name.windows(6).any(|part| part == b"-rdmav") && provider.path.starts_with(b"/");
        if !is_provider || !real::load(&path) {
            return Err(Stale::Provider);
        }
        let now = std::str::from_utf8(name).ok().and_then(loaded::named);
        if now.is_none_or(|library| library.build != provider.build) {
            return Err(Stale::Provider);
        }
    }
    Ok(())
}
