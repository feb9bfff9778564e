//! What the environment says, read once. A program that has more rights than its user is left alone.

use std::env::var_os;
use std::path::PathBuf;
use std::sync::OnceLock;

use elver_hostcache::{file, sysfs};

use crate::real;

/// `off`, `renew`, or anything else for what is usual.
const MODE: &str = "ELVER_FASTVERBS";
/// If set, counters are printed when the program ends.
const LOG: &str = "ELVER_FASTVERBS_LOG";
/// The device to open ahead.
const WARM: &str = "ELVER_FASTVERBS_WARM";
/// By these a user tells libibverbs which providers to load.
const DRIVERS: [&str; 2] = ["RDMAV_DRIVERS", "IBV_DRIVERS"];

pub(crate) struct Settings {
    pub(crate) is_off: bool,
    /// Whether the cache is to be made anew in any case.
    pub(crate) renew: bool,
    pub(crate) log: bool,
    pub(crate) cache: PathBuf,
    pub(crate) sysfs: PathBuf,
    pub(crate) warm: Option<String>,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mode = var_os(MODE).unwrap_or_default();
        let has_more_rights = real::has_more_rights();
        let is_told = DRIVERS.iter().any(|name| var_os(name).is_some());
        Settings {
            is_off: has_more_rights || is_told || mode == "off",
            renew: mode == "renew",
            log: var_os(LOG).is_some_and(|value| value != "0"),
            cache: file::path(var_os(file::VARIABLE).as_deref()),
            sysfs: sysfs::path(var_os(sysfs::VARIABLE).as_deref()),
            warm: var_os(WARM)
                .and_then(|name| name.into_string().ok())
                .filter(|name| !name.is_empty()),
        }
    })
}
