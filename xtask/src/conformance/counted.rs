//! What the devices of a run counted: proof that a program went over them, and not by a way of its own.
//!
//! Each device has a file of its counters, which stays when its process is gone (`elver_soft::published`): a magic
//! number, a version and the number of counters, then the values, 8 bytes each, then a line for the device's name, its
//! address and each counter's name.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

const MAGIC: &[u8] = b"elvercnt";
const HEADER: usize = 24;

/// The sum over all devices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) devices: usize,
    counters: BTreeMap<String, u64>,
}

impl Counted {
    /// Forgets what earlier runs left.
    pub(super) fn forget(told: &Path) -> Result<()> {
        match fs::remove_dir_all(told) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{}", told.display()));
            }
            _ => {}
        }
        let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(told);
        made.with_context(|| format!("{}", told.display()))
    }

    /// Of all devices since.
    pub(super) fn read(told: &Path) -> Result<Counted> {
        let mut counted = Counted::default();
        let Ok(files) = fs::read_dir(told.join("elver")) else { return Ok(counted) };
        for file in files {
            if let Some(counters) = parsed(&fs::read(file?.path())?) {
                counted.devices += 1;
                for (name, value) in counters {
                    *counted.counters.entry(name).or_default() += value;
                }
            }
        }
        Ok(counted)
    }

    fn of(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Bytes that reached another process, in packets and without.
    pub(super) fn moved(&self) -> u64 {
        self.of("rx_bytes") + self.of("direct_bytes")
    }

    /// At least so many bytes went between at least two devices.
    pub(super) fn prove(&self, bytes: u64) -> Result<()> {
        let (devices, moved) = (self.devices, self.moved());
        ensure!(
            devices >= 2 && moved >= bytes,
            "it did not go over Elver: {devices} devices counted {moved} bytes, and {bytes} were moved"
        );
        Ok(())
    }
}

fn parsed(bytes: &[u8]) -> Option<Vec<(String, u64)>> {
    let word = |at: usize| {
        let word = bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(word.try_into().ok()?))
    };
    if !bytes.starts_with(MAGIC) {
        return None;
    }
    let count = usize::try_from(word(16)?).ok().filter(|count| *count <= bytes.len() / 8)?;
    let names = std::str::from_utf8(bytes.get(HEADER + count * 8..)?).ok()?;
    let values = (0..count).map(|at| word(HEADER + at * 8).unwrap_or_default());
    Some(names.lines().skip(2).map(str::to_string).zip(values).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(counters: &[(&str, u64)]) -> Vec<u8> {
        let numbers = [1, counters.len() as u64].into_iter().chain(counters.iter().map(|c| c.1));
        let names: String = counters.iter().map(|(name, _)| format!("{name}\n")).collect();
        let numbers = numbers.flat_map(u64::to_ne_bytes);
        let text = format!("elver0\n127.0.0.1\n{names}");
        MAGIC.iter().copied().chain(numbers).chain(text.into_bytes()).collect()
    }

    #[test]
    fn two_devices_prove_what_they_moved() {
        let told = std::env::temp_dir().join(format!("elver-counted-{}", std::process::id()));
        Counted::forget(&told).unwrap();
        assert!(Counted::read(&told).unwrap().prove(0).is_err());
        fs::create_dir(told.join("elver")).unwrap();
        fs::write(told.join("elver/device-1-0"), file(&[("rx_bytes", 5), ("timeouts", 9)]))
            .unwrap();
        assert!(Counted::read(&told).unwrap().prove(1).is_err(), "one device alone");
        fs::write(told.join("elver/device-2-0"), file(&[("direct_bytes", 6)])).unwrap();
        fs::write(told.join("elver/device-3-0"), b"elvercnt nonsense").unwrap();
        let counted = Counted::read(&told).unwrap();
        assert_eq!((counted.devices, counted.moved()), (2, 11));
        counted.prove(11).unwrap();
        assert!(counted.prove(12).unwrap_err().to_string().contains("11 bytes"));
        Counted::forget(&told).unwrap();
        assert_eq!(Counted::read(&told).unwrap(), Counted::default());
        fs::remove_dir(&told).unwrap();
    }
}
