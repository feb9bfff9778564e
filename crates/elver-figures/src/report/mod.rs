//! What benchmarks tell: rows of figures, what was counted beside, what the machine was like, and
//! the two forms in which it is told.

pub(crate) mod contract;
pub(crate) mod counted;
pub(crate) mod frame;
mod load;
pub(crate) mod machine;
pub(crate) mod rows;
mod siblings;
