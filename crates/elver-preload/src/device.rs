//! The list of devices: one.

use std::convert::Infallible;
use std::ffi::{OsString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::errno::{object, set};
use crate::fork::Own;
use crate::layout::Device;

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`: what a RoCE NIC says of itself.
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

struct Listed(Box<Device>);

// SAFETY: it is written once, before anybody else sees it, and only read from then on.
unsafe impl Send for Listed {}
// SAFETY: as above.
unsafe impl Sync for Listed {}

static DEVICE: OnceLock<Listed> = OnceLock::new();

const VARIABLE: &str = "ELVER_DEVICE";

/// The device's name: `ELVER_DEVICE`, or `elver0`. It is listed as that too where it is told a name that cannot be, and is
/// not opened then.
pub(crate) fn name() -> String {
    told().unwrap_or_else(|_| "elver0".into())
}

/// What it is told.
pub(crate) fn told() -> Result<String, String> {
    read(std::env::var_os(VARIABLE))
}

fn read(told: Option<OsString>) -> Result<String, String> {
    let Some(told) = told.filter(|told| !told.is_empty()) else { return Ok("elver0".into()) };
    let fits = |name: &&str| name.len() < 64 && !name.contains('/');
    let name = told.to_str().filter(fits).map(str::to_string);
    name.ok_or_else(|| {
        format!("{VARIABLE} is {told:?}; give a name of 1 to 63 bytes without a slash")
    })
}

/// A GUID of this process, with the bit that says that nobody was assigned it.
pub(crate) fn node_guid() -> u64 {
    static GUID: Own<u64> = Own::new();
    let made = GUID.get_or_make(|| {
        let mut bytes = [0; 8];
        if getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {
            bytes = u64::from(std::process::id()).to_ne_bytes();
        }
        Ok::<_, Infallible>((u64::from_ne_bytes(bytes) & 0x00ff_ffff_ffff_ffff) | (2 << 56))
    });
    made.map_or_else(|never| match never {}, |guid| *guid)
}

/// The device, as programs see it; it stays as long as the process does.
pub(crate) fn device() -> *mut Device {
    let listed = DEVICE.get_or_init(|| {
        // SAFETY: integers, and arrays of them, may be zero.
        let mut device: Device = unsafe { std::mem::zeroed() };
        device.node_type = NODE_CA;
        device.transport_type = TRANSPORT_IB;
        write(&mut device.name, &name());
        write(&mut device.dev_name, "uverbs0");
        write(&mut device.dev_path, "/sys/class/infiniband_verbs/uverbs0");
        write(&mut device.ibdev_path, &format!("/sys/class/infiniband/{}", name()));
        Listed(Box::new(device))
    });
    ptr::from_ref(&*listed.0).cast_mut()
}

/// Writes text and its end; what is too long is cut.
pub(crate) fn write(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut Device {
    object(|| {
        if !num.is_null() {
            // SAFETY: the verbs contract.
            unsafe { *num = 1 };
        }
        // `free`d by `ibv_free_device_list`; the second entry is the null at its end.
        // SAFETY: two pointers, zeroed.
        let list: *mut *mut Device = unsafe { libc::calloc(2, size_of::<*mut Device>()) }.cast();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: it was just allocated.
        unsafe { *list = device() };
        Ok(list)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: the verbs contract: it came from `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: the verbs contract.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(_: *mut Device) -> u64 {
    node_guid().to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(_: *mut Device) -> c_int {
    // As rdma-core where the kernel gave none.
    set(libc::EOPNOTSUPP);
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_is_refused_and_told() {
        let told = |name: &str| read(Some(name.into()));
        assert_eq!([read(None), told("")], [Ok("elver0".into()), Ok("elver0".into())]);
        assert_eq!(told("mine"), Ok("mine".into()));
        for wrong in ["a/b", &"x".repeat(64)] {
            let refused = told(wrong).unwrap_err();
            assert!(refused.contains(wrong) && refused.contains("ELVER_DEVICE"), "{refused}");
        }
    }
}
