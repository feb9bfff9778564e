//! All ranks' bytes to all ranks.

use super::operation::Operation;
use crate::Error;

/// Bruck's algorithm: in round k each rank has the bytes of the 2^k ranks from its own on, and sends them down.
pub(super) fn bruck(operation: &mut Operation<'_>, own: &[u8]) -> Result<Vec<u8>, Error> {
    let (rank, size, each) = (operation.rank(), operation.size(), own.len());
    let mut all = vec![0; each * size as usize];
    all[..each].copy_from_slice(own);
    let mut has = 1;
    while has < size {
        let (to, from) = ((rank + size - has) % size, (rank + has) % size);
        let count = has.min(size - has) as usize;
        let (mine, theirs) = all.split_at_mut(each * has as usize);
        operation.exchange((to, &mine[..each * count]), (from, &mut theirs[..each * count]))?;
        has *= 2;
    }
    all.rotate_right(each * rank as usize);
    Ok(all)
}

/// In a ring: each rank passes on what it got last.
pub(super) fn ring(operation: &mut Operation<'_>, own: &[u8]) -> Result<Vec<u8>, Error> {
    let (rank, size, each) = (operation.rank(), operation.size(), own.len());
    let mut all = vec![0; each * size as usize];
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut passed = own.to_vec();
    let mut whose = rank;
    loop {
        let at = each * whose as usize;
        all[at..at + each].copy_from_slice(&passed);
        whose = (whose + size - 1) % size;
        if whose == rank {
            return Ok(all);
        }
        let at = each * whose as usize;
        operation.exchange((to, &passed), (from, &mut all[at..at + each]))?;
        passed.copy_from_slice(&all[at..at + each]);
    }
}
