//! Looking whether a piece of a process's memory is there, without waiting for it.

use std::io;
use std::sync::{Arc, OnceLock};

use crate::copier::Ended;
use crate::error::MapError;
use crate::foreign::Foreign;
use crate::process::{Guard, ProcessMemory, Waits};

/// Memory of a process that somebody has looked at: see [`crate::SoftMemory::of_process_later`].
#[derive(Debug)]
pub struct Sought {
    foreign: Foreign,
    /// That the process's memory could not be opened.
    refused: Option<MapError>,
    ended: Ended,
}

impl Sought {
    /// Has the copier open the process's memory, if nobody has, and look whether both ends can be read.
    pub(crate) fn seek(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
        told: impl FnOnce(Sought) + Send + 'static,
    ) -> Result<(), MapError> {
        let foreign = Foreign::unseen(process.clone(), addr, len)?;
        let busy = foreign.refused(io::ErrorKind::WouldBlock.into());
        let Some(Guard { copier, account, .. }) = process.guard.clone() else {
            return Err(busy);
        };
        let ends = [foreign.check(0, 1), foreign.check(len - 1, 1)];
        let waits = Waits::of(&process);
        let refused = Arc::new(OnceLock::new());
        let refusal = refused.clone();
        let look = move || {
            let _held = waits;
            if let Err(error) = process.opened() {
                let _ = refusal.set(error);
                return None;
            }
            for at in ends {
                let mut byte = 0;
                // SAFETY: the byte is ours alone.
                unsafe { process.read(at.ok()?, &raw mut byte, 1) }?;
            }
            Some(Vec::new())
        };
        let told = Box::new(move |ended| {
            // Who looked has gone.
            let refused = Arc::into_inner(refused).and_then(OnceLock::into_inner);
            told(Sought { foreign, refused, ended });
        });
        copier.submit(account, Box::new(look), told).map(drop).ok_or(busy)
    }

    /// The piece, if it is there.
    pub(crate) fn found(self) -> Result<Foreign, MapError> {
        let Sought { foreign, refused, ended } = self;
        if let Some(Guard { copier, .. }) = &foreign.process.guard {
            copier.end(&ended);
        }
        match (ended.bytes, refused) {
            (Some(_), _) => Ok(foreign),
            (None, Some(refused)) => Err(refused),
            (None, None) => Err(foreign.refused(rustix::io::Errno::FAULT.into())),
        }
    }
}
