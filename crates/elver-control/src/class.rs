//! How urgent the work of a VQP is, as all nodes name it.

/// Priority of a VQP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Has QPs reserved and is never slowed for others.
    High,
    /// Shares QPs, and yields to the high class.
    #[default]
    Low,
}
