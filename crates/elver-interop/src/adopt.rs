//! Descriptors that this program was started with.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result, ensure};
use rustix::fd::BorrowedFd;
use rustix::io::{FdFlags, fcntl_setfd};

/// Takes over the descriptor of this number.
pub(crate) fn adopt(number: RawFd) -> Result<OwnedFd> {
    ensure!(number > 2, "descriptor {number} is one of the standard ones");
    // SAFETY: the number is only asked about; if it is not open, that is the answer.
    let open = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
    open.with_context(|| format!("descriptor {number} was not handed to this program"))?;
    // SAFETY: it is open, whoever started this program opened it for this use, and the two numbers
    // on the command line are taken over once each.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
