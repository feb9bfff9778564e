//! Taking what the node told of a VQP.

use elver::{Error, Wc};

/// Completions that are taken at once.
pub(crate) const TAKEN: usize = 16;

/// Takes all completions of a VQP that are there.
pub(crate) fn take_completions(vqp: &elver::Vqp, mut came: impl FnMut(&[Wc])) -> Result<(), Error> {
    let mut wcs = [Wc::default(); TAKEN];
    loop {
        let taken = vqp.poll_cq(&mut wcs)?;
        came(&wcs[..taken]);
        if taken < TAKEN {
            return Ok(());
        }
    }
}
