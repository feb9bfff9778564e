//! What libibverbs always finds on a host: its RDMA devices, as the kernel tells of them, the provider library that
//! drives each, attributes in sysfs (Swift, section 3.3: the cached map, one a host).
//!
//! `elver verbs-profile` writes the file, `libelver_fastverbs.so` reads it. [`HostCache`] is what stands in it and
//! [`format`](mod@format) its bytes, which are believed only after every length was checked; [`file`](mod@file) refuses files that
//! somebody else could have written. [`Stale`] says what has changed since it was made: the boot, the kernel, its devices,
//! the library, the processors. [`netlink`] asks the kernel which devices there are in five system calls, and
//! [`record`](mod@record) makes a cache of what is there now.

pub mod file;
pub mod format;
pub mod loaded;
pub mod machine;
pub mod netlink;
pub mod record;
pub mod sysfs;

use std::fmt;

/// All that a cache says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCache {
    /// Release and version of the kernel.
    pub kernel: Vec<u8>,
    /// The id of its boot: nothing else tells that the numbers of character devices are still those of the same devices.
    pub boot: Vec<u8>,
    /// The processors' model, and which are online.
    pub processors: Vec<u8>,
    /// The build id of libibverbs.
    pub library: Vec<u8>,
    /// The kernel's answer to who asks for all devices: messages without the asker's numbers.
    pub devices: Vec<Message>,
    /// What it says of each device's character device, by the device's index.
    pub chardevs: Vec<Chardev>,
    /// The libraries that drive these devices.
    pub providers: Vec<Provider>,
    /// Attributes of the devices in sysfs that cannot change while they are there.
    pub attributes: Vec<Attribute>,
}

/// A netlink message: its type, and what follows its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// Its attributes.
    pub payload: Vec<u8>,
}

/// The answer about one device's character device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chardev {
    /// Whose: `RDMA_NLDEV_ATTR_DEV_INDEX`.
    pub index: u32,
    /// What the kernel says.
    pub answer: Message,
}

/// A provider's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its file.
    pub path: Vec<u8>,
    /// Its build id.
    pub build: Vec<u8>,
}

/// A file below a device's directory in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its path.
    pub path: Vec<u8>,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// What of a cache is no longer so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Another kernel runs.
    Kernel,
    /// The processors are others.
    Processors,
    /// libibverbs is another one.
    Library,
    /// The kernel has other devices, or shows others to this network namespace.
    Devices,
    /// A provider's library is another one, or not there.
    Provider,
    /// The host was booted since, or does not say whether it was.
    Boot,
}

impl Stale {
    /// All of them, in the order of their counters.
    pub const ALL: [Stale; 6] = [
        Stale::Kernel,
        Stale::Processors,
        Stale::Library,
        Stale::Devices,
        Stale::Provider,
        Stale::Boot,
    ];
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stale::Kernel => "another kernel runs",
            Stale::Processors => "the processors are others",
            Stale::Library => "libibverbs is another one",
            Stale::Devices => "the kernel shows other devices",
            Stale::Provider => "a provider's library is another one, or not there",
            Stale::Boot => "the host was booted since it was made, or its boot is not known",
        })
    }
}
