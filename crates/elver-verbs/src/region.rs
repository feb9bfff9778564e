use crate::{AccessFlags, VerbsError};

/// Checks what a region is to be, of which a device allows `length_max` bytes.
///
/// # Errors
///
/// [`VerbsError::OutOfRange`] and [`VerbsError::InvalidArgument`] if rights, address and length do not go
/// together.
pub fn check_region(
    access: AccessFlags,
    base: u64,
    length: u64,
    length_max: u64,
) -> Result<(), VerbsError> {
    if access.intersects(AccessFlags::REMOTE_CHANGES) && !access.contains(AccessFlags::LOCAL_WRITE)
    {
        return Err(VerbsError::InvalidArgument {
            what: "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well",
        });
    }
    if length > length_max {
        let (name, min) = ("MR length", 0);
        return Err(VerbsError::OutOfRange { name, value: length, min, max: length_max });
    }
    if base.checked_add(length).is_none() {
        return Err(VerbsError::InvalidArgument {
            what: "iova + length exceeds the 64-bit address space",
        });
    }
    Ok(())
}
