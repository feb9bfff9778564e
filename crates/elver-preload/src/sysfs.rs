//! What libibverbs reads from sysfs for others: of our device the tree's files, and of the host its own.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use crate::errno::{minus_one, set};
use crate::tree::place;

/// The text of a file, without the end of its line, into `size` bytes: how long it is.
fn read(directory: &CStr, file: &CStr, to: &mut [u8]) -> Result<usize, c_int> {
    let path = [directory.to_bytes(), b"/", file.to_bytes()].concat();
    let ours = place(&path);
    let path = ours.as_ref().map_or(&path[..], |ours| ours.to_bytes());
    let error = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let mut file = File::open(OsStr::from_bytes(path)).map_err(error)?;
    let mut len = file.read(to).map_err(error)?;
    if len > 0 && to[len - 1] == b'\n' {
        len -= 1;
    }
    if len < to.len() {
        to[len] = 0;
    } else if len > 0 {
        // It would have no end.
        return Err(libc::EOVERFLOW);
    }
    Ok(len)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    size: usize,
) -> c_int {
    let mut len = 0;
    let failed = minus_one(|| {
        if directory.is_null() || file.is_null() || to.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: two strings, and room for `size` bytes, which now say something.
        let found = unsafe {
            to.write_bytes(0, size);
            let to = std::slice::from_raw_parts_mut(to.cast(), size);
            read(CStr::from_ptr(directory), CStr::from_ptr(file), to)?
        };
        len = c_int::try_from(found).map_err(|_| libc::EOVERFLOW)?;
        Ok(())
    });
    if failed == 0 { len } else { failed }
}

/// A provider's, of a device that it serves: there is none.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file() -> c_int {
    set(libc::ENOENT);
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
