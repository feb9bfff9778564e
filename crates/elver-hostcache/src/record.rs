//! Making a cache of what there is now, and telling whether one is still right.

use std::path::Path;

use crate::loaded::Library;
use crate::netlink::{self, Kernel};
use crate::{HostCache, Message, Provider, Stale, machine, sysfs};

/// Why no cache can be made.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// A library has no build id, so that another one could not be told from it.
    #[error("{0} has no build id")]
    Build(String),
    /// There is nothing to remember.
    #[error("there is no RDMA device with a provider")]
    Empty,
    /// Nobody could tell whether the cache is of an earlier boot.
    #[error("the id of the boot is not known: /proc/sys/kernel/random/boot_id cannot be read")]
    Boot,
}

/// All that the kernel tells, with the libraries that are in use and what is fixed below `sysfs`.
///
/// # Errors
/// There is no device, or a library or the boot cannot be known again.
pub fn record(
    sysfs: &Path,
    library: &Library,
    providers: &[Library],
) -> Result<HostCache, Unknown> {
    let kernel = Kernel::open();
    let devices = devices(&kernel, sysfs);
    if devices.is_empty() || providers.is_empty() {
        return Err(Unknown::Empty);
    }
    if let Some(unknown) = providers.iter().chain([library]).find(|one| one.build.is_empty()) {
        return Err(Unknown::Build(String::from_utf8_lossy(&unknown.path).into_owned()));
    }
    // Before 5.1 the kernel does not answer this by netlink: then libibverbs reads it from sysfs.
    let chardev =
        |device: &Message| kernel.as_ref().ok()?.chardev(netlink::index(&device.payload)?).ok();
    let boot = machine::boot();
    if boot.is_empty() {
        return Err(Unknown::Boot);
    }
    Ok(HostCache {
        kernel: machine::kernel(),
        boot,
        processors: machine::processors(),
        library: library.build.clone(),
        chardevs: devices.iter().filter_map(chardev).collect(),
        devices,
        providers: providers
            .iter()
            .map(|one| Provider { path: one.path.clone(), build: one.build.clone() })
            .collect(),
        attributes: sysfs::attributes(sysfs),
    })
}

/// By netlink, or as sysfs shows them.
fn devices(kernel: &rustix::io::Result<Kernel>, sysfs: &Path) -> Vec<Message> {
    let told = kernel.as_ref().ok().and_then(|kernel| kernel.devices().ok());
    told.unwrap_or_else(|| sysfs::devices(sysfs))
}

impl HostCache {
    /// Whether the cache is one of this boot of this kernel, these processors and this libibverbs, and the kernel shows the
    /// devices that it has. Its providers are checked when they are loaded.
    ///
    /// # Errors
    /// What has changed.
    pub fn check(&self, sysfs: &Path, library: &Library) -> Result<(), Stale> {
        if self.kernel != machine::kernel() {
            return Err(Stale::Kernel);
        }
        // What the kernel shows of devices does not have the numbers of their character devices, which each boot gives anew.
        if self.boot.is_empty() || self.boot != machine::boot() {
            return Err(Stale::Boot);
        }
        if self.processors != machine::processors() {
            return Err(Stale::Processors);
        }
        if self.library != library.build {
            return Err(Stale::Library);
        }
        if self.devices != devices(&Kernel::open(), sysfs) { Err(Stale::Devices) } else { Ok(()) }
    }

    /// Whether the cache has all that the kernel answers to who asks for devices.
    pub fn has_answers(&self) -> bool {
        self.devices.iter().all(|device| {
            let index = netlink::index(&device.payload);
            device.kind == netlink::GET && index.is_some_and(|index| self.chardev(index).is_some())
        })
    }

    /// What the kernel says of a device's character device.
    pub fn chardev(&self, index: u32) -> Option<&Message> {
        self.chardevs.iter().find(|chardev| chardev.index == index).map(|chardev| &chardev.answer)
    }

    /// An attribute in sysfs.
    pub fn attribute(&self, path: &[u8]) -> Option<&[u8]> {
        self.attributes.iter().find(|one| one.path == path).map(|one| &*one.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaded;

    const NOWHERE: &str = "/nowhere";

    fn library() -> Library {
        loaded::named("libc.so").unwrap()
    }

    #[test]
    fn what_changed_is_named() {
        let library = library();
        let current = HostCache {
            kernel: machine::kernel(),
            boot: machine::boot(),
            processors: machine::processors(),
            library: library.build.clone(),
            devices: vec![Message { kind: 1, flags: 2, payload: b"no such device".to_vec() }],
            ..HostCache::default()
        };
        let changed = |change: fn(&mut HostCache)| {
            let mut cache = current.clone();
            change(&mut cache);
            cache.check(Path::new(NOWHERE), &library)
        };
        assert_eq!(changed(|cache| cache.kernel.push(b'x')), Err(Stale::Kernel));
        assert_eq!(changed(|cache| cache.boot[0] ^= 1), Err(Stale::Boot), "of an earlier boot");
        assert_eq!(
            changed(|cache| cache.boot.clear()),
            Err(Stale::Boot),
            "of a boot that nobody knows"
        );
        assert_eq!(changed(|cache| cache.processors.push(b'x')), Err(Stale::Processors));
        assert_eq!(changed(|cache| cache.library.push(0)), Err(Stale::Library));
        assert_eq!(changed(|_| ()), Err(Stale::Devices));
    }

    #[test]
    fn nothing_is_recorded_without_devices() {
        assert!(record(Path::new(NOWHERE), &library(), &[]).is_err());
    }
}
