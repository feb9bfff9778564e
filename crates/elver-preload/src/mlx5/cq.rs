//! CQs as libmlx5 makes them (`mlx5dv_create_cq`(3)): of what it adds, only sizes can be asked for.

use crate::cq_ex::create_cq_ex;
use crate::errno::object;
use crate::layout::{Context, CqEx, CqInitAttrEx};
use crate::mlx5::layout::CqInitAttr;

/// `enum mlx5dv_cq_init_attr_mask`.
const COMPRESSED: u64 = 1;
const FLAGS: u64 = 1 << 1;
const SIZE: u64 = 1 << 2;
/// Bytes that the hardware writes for a completion.
const SIZES: [u32; 2] = [64, 128];

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_cq(
    context: *mut Context,
    init: *mut CqInitAttrEx,
    attr: *mut CqInitAttr,
) -> *mut CqEx {
    object(|| {
        // SAFETY: the verbs contract: the second may be null.
        let attr = unsafe { attr.as_ref() };
        let has = |flag| attr.is_some_and(|attr| attr.comp_mask & flag != 0);
        let size = match attr {
            Some(attr) if has(SIZE) => Some(attr.cqe_size.into()),
            // As libmlx5 reads it.
            _ => std::env::var("MLX5_CQE_SIZE").ok().map(|text| text.parse().unwrap_or(0)),
        };
        let flags = attr.map_or(0, |attr| if has(FLAGS) { attr.flags } else { 0 });
        // Nothing is compressed or padded, of whatever size.
        if has(!(COMPRESSED | FLAGS | SIZE))
            || has(COMPRESSED)
            || flags != 0
            || size.is_some_and(|size| !SIZES.contains(&size))
        {
            return Err(libc::EINVAL);
        }
        // If it is null its reason stands in errno.
        // SAFETY: the verbs contract.
        Ok(unsafe { create_cq_ex(context, init) })
    })
}
