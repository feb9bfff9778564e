//! The kernel and the processors, as far as what libibverbs finds follows from them.

use std::fs;

/// Release and version of the kernel that runs: one system call.
pub fn kernel() -> Vec<u8> {
    let about = rustix::system::uname();
    [about.release().to_bytes(), b" ", about.version().to_bytes()].concat()
}

/// The id of the kernel's boot, which no other boot has; empty where it is not shown.
pub fn boot() -> Vec<u8> {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_ascii().to_vec()
}

/// The processors' model, and which are online.
pub fn processors() -> Vec<u8> {
    let online = fs::read("/sys/devices/system/cpu/online").unwrap_or_default();
    [format!("{:x} ", signature()).as_bytes(), online.trim_ascii()].concat()
}

/// Whether the processor is one for which mlx5 stalls its polling: it looks for family 6 and the models 42 and 45 among
/// all lines of /proc/cpuinfo. The processor says it without a file.
pub fn is_sandy_bridge() -> bool {
    is_sandy_bridge_signature(signature())
}

/// Intel's manual, volume 2, CPUID: the model's upper half counts for families 6 and 15.
fn is_sandy_bridge_signature(signature: u32) -> bool {
    let family = (signature >> 8) & 0xf;
    let model = (signature >> 4) & 0xf | (signature >> 12) & 0xf0;
    family == 6 && (model == 0x2a || model == 0x2d)
}

/// Family, model and stepping, as the processor tells them; 0 where none does.
fn signature() -> u32 {
    #[cfg(target_arch = "x86_64")]
    return core::arch::x86_64::__cpuid(1).eax;
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandy_bridge_is_told_from_its_successors() {
        // Core i7-2600, Xeon E5-2670; then Ivy Bridge, Haswell, Sapphire Rapids, an EPYC, and none.
        assert!([0x206a7, 0x206d7].into_iter().all(is_sandy_bridge_signature));
        let others = [0x306a9, 0x306c3, 0x806f8, 0xa20f10, 0];
        assert!(!others.into_iter().any(is_sandy_bridge_signature));
    }

    #[test]
    fn the_kernel_has_a_name() {
        let release = fs::read("/proc/sys/kernel/osrelease").unwrap();
        assert!(kernel().starts_with(release.trim_ascii()));
    }
}
