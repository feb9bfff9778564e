//! What `elver run` asks of the device for who tests a program: faults, and a record of its packets.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use elver_soft::{Faults, Loss, SoftConfig};

use crate::faults::Shares;
use crate::outage::Plan;

/// The version of the `elver run` that says so: another one may ask for what is not known here.
const RUN: &str = "ELVER_RUN_VERSION";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Packets lost of a million.
const LOSS: &str = "ELVER_LOSS_PER_MILLION";
/// Microseconds that packets are taken later.
const DELAY: &str = "ELVER_DELAY_US";
/// Milliseconds after which the device hears nobody.
const PEERS_DIE: &str = "ELVER_PEERS_DIE_AFTER_MS";
/// READs, WRITEs and atomics of a million that are posted with a wrong key.
const WRONG_KEYS: &str = "ELVER_WRONG_KEYS_PER_MILLION";
/// Posts of a million after which the queue pair fails.
const FAILURES: &str = "ELVER_QP_FAILURES_PER_MILLION";
/// Milliseconds after which the port goes down, and after which it comes up again.
const DOWN: &str = "ELVER_PORT_DOWN_AFTER_MS";
const UP: &str = "ELVER_PORT_UP_AFTER_MS";
/// Which packets are lost, and which posts suffer.
const SEED: &str = "ELVER_SEED";
/// The file of the record.
const CAPTURE: &str = "ELVER_CAPTURE";

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    faults: Faults,
    /// What befalls posts.
    pub(crate) posts: Shares,
    /// What befalls the port.
    pub(crate) outage: Option<Plan>,
    capture: Option<PathBuf>,
}

impl Wishes {
    /// By the environment of this process.
    pub(crate) fn told() -> Result<Wishes, String> {
        Wishes::read(|name| std::env::var_os(name), std::process::id())
    }

    fn read(told: impl Fn(&str) -> Option<OsString>, process: u32) -> Result<Wishes, String> {
        if let Some(theirs) = told(RUN).filter(|theirs| theirs != VERSION) {
            let theirs = theirs.to_string_lossy();
            return Err(format!(
                "`elver run` is of version {theirs}, and this library of {VERSION}, which may not know what it asks for; \
                 install both of one version, or name a library of {theirs} by --library"
            ));
        }
        let seed = number(&told, SEED)?.unwrap_or(1);
        let faults = Faults {
            loss: share(&told, LOSS)?.map(|per_million| Loss { per_million, seed }),
            delay: number(&told, DELAY)?.map(Duration::from_micros).unwrap_or_default(),
            peers_die_after: number(&told, PEERS_DIE)?.map(Duration::from_millis),
        };
        let wrong_keys = share(&told, WRONG_KEYS)?.unwrap_or(0);
        let failures = share(&told, FAILURES)?.unwrap_or(0);
        let any = wrong_keys > 0 || failures > 0;
        let posts = if any { Shares { wrong_keys, failures, seed } } else { Shares::default() };
        // A program may start others, each with a device of its own.
        let capture = told(CAPTURE).map(|mut name| {
            name.push(format!(".{process}"));
            name.into()
        });
        let after = |name| Ok::<_, String>(number(&told, name)?.map(Duration::from_millis));
        let up_after = after(UP)?;
        let outage = after(DOWN)?.map(|down_after| Plan { down_after, up_after });
        if outage.is_none() && up_after.is_some() {
            return Err(format!("{UP} is there, but nothing has the port go down; set {DOWN}"));
        }
        Ok(Wishes { faults, posts, outage, capture })
    }

    /// Whether anything is asked for that concerns packets or posts.
    pub(crate) fn is_any(&self) -> bool {
        *self != Wishes::default()
    }

    pub(crate) fn apply(&self, config: &mut SoftConfig) {
        config.faults = self.faults;
        config.capture.clone_from(&self.capture);
    }
}

/// A number of a million.
fn share(told: impl Fn(&str) -> Option<OsString>, name: &str) -> Result<Option<u32>, String> {
    match number(told, name)? {
        Some(share @ 1_000_001..) => Err(format!("{name} is {share}; give 0 to 1000000")),
        share => Ok(share.map(|share| share as u32)),
    }
}

fn number(told: impl Fn(&str) -> Option<OsString>, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = told(name) else { return Ok(None) };
    let parsed = value.to_str().and_then(|text| u64::from_str(text).ok());
    parsed.map(Some).ok_or_else(|| format!("{name} is {value:?}; give a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(told: &[(&str, &str)]) -> Result<Wishes, String> {
        let find = |name: &str| told.iter().find(|(other, _)| *other == name);
        Wishes::read(|name| find(name).map(|(_, value)| value.into()), 77)
    }

    #[test]
    fn nothing_is_asked_for_by_default() {
        assert_eq!(read(&[]), Ok(Wishes::default()));
    }

    #[test]
    fn another_version_of_elver_run_is_refused() {
        assert_eq!(read(&[(RUN, VERSION)]), Ok(Wishes::default()));
        let refused = read(&[(RUN, "0.0.9"), (LOSS, "10000")]).unwrap_err();
        assert!(refused.contains("of version 0.0.9, and this library of"), "{refused}");
    }

    #[test]
    fn all_of_it_is_understood() {
        let told =
            [(LOSS, "10000"), (SEED, "5"), (DELAY, "50"), (PEERS_DIE, "3000"), (CAPTURE, "a")];
        let faults = Faults {
            loss: Some(Loss { per_million: 10_000, seed: 5 }),
            delay: Duration::from_micros(50),
            peers_die_after: Some(Duration::from_secs(3)),
        };
        let posts = Shares::default();
        assert_eq!(
            read(&told),
            Ok(Wishes { faults, posts, outage: None, capture: Some("a.77".into()) })
        );
        let plan =
            Plan { down_after: Duration::from_secs(3), up_after: Some(Duration::from_millis(500)) };
        let outage = Some(plan);
        let told = [(DOWN, "3000"), (UP, "500")];
        assert_eq!(read(&told), Ok(Wishes { outage, ..Wishes::default() }));
        let outage = Some(Plan { up_after: None, ..plan });
        assert_eq!(read(&told[..1]), Ok(Wishes { outage, ..Wishes::default() }));
        assert!(read(&told[1..]).unwrap_err().contains(DOWN));
        let told = [(WRONG_KEYS, "5"), (FAILURES, "6"), (SEED, "7")];
        let posts = Shares { wrong_keys: 5, failures: 6, seed: 7 };
        assert_eq!(read(&told), Ok(Wishes { posts, ..Wishes::default() }));
    }

    #[test]
    fn what_is_no_number_is_named() {
        assert_eq!(read(&[(DELAY, "5us")]), Err("ELVER_DELAY_US is \"5us\"; give a number".into()));
        let too_much = read(&[(LOSS, "1000001")]);
        assert_eq!(too_much, Err("ELVER_LOSS_PER_MILLION is 1000001; give 0 to 1000000".into()));
    }
}
