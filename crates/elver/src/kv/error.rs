use elver_kv::{DescriptorError, LayoutError, LookupError, TableError};
use thiserror::Error;

/// Why a call on a store or a reader failed. Each says itself what helps.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The session, the VQP, or a READ.
    #[error(transparent)]
    Session(#[from] crate::Error),
    /// A layout that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The table refused a change.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A look-up without an outcome.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// Bytes that are no descriptor.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
}
