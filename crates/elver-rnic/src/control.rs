//! Making, changing and destroying objects.

mod dc;
mod handles;
mod memory;
mod modify;
mod queue_pairs;
mod queues;

use elver_verbs::{ObjectKind, VerbsError};

pub(crate) fn in_range(
    name: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), VerbsError> {
    if value < min || value > max {
        return Err(VerbsError::OutOfRange { name, value, min, max });
    }
    Ok(())
}

fn refuse_if_used(kind: ObjectKind, handle: u32, users: u32) -> Result<(), VerbsError> {
    if users > 0 {
        return Err(VerbsError::InUse { kind, handle, users });
    }
    Ok(())
}
