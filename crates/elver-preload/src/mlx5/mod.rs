//! libmlx5's calls for DC, on our device (`mlx5dv_create_qp`(3)). Programs bind to them by the versions of
//! libmlx5, which this library exports beside libibverbs'. The device is no mlx5 device otherwise: it names no
//! such vendor, and calls that would reach hardware are refused.

mod absent;
mod cq;
mod device;
pub mod layout;
mod qp;
