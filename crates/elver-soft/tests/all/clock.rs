//! The clock counts what a machine was suspended for.

use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

/// Set in the process that has another time.
const VARIABLE: &str = "ELVER_TEST_CLOCK";
/// What the machine is taken to have slept, in seconds.
const SLEPT_S: u64 = 100_000;

/// Seconds by which the clock is ahead of one that stands still in suspend.
#[allow(clippy::disallowed_methods, reason = "it is compared with")]
fn ahead_s() -> u64 {
    let still = clock_gettime(ClockId::Monotonic).tv_sec as u64;
    elver_soft::now().0 / 1_000_000_000 - still
}

/// In a time namespace the machine has been suspended as long as one likes.
#[test]
fn time_in_suspend_counts() {
    if std::env::var_os(VARIABLE).is_some() {
        println!("ahead {}", ahead_s());
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a time namespace takes root");
        return;
    }
    let output = Command::new("unshare")
        .args(["--time", "--fork", "--boottime", &SLEPT_S.to_string(), "--monotonic", "0"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "clock::time_in_suspend_counts", "--nocapture"])
        .env(VARIABLE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let ahead = said.lines().find_map(|line| line.split_once("ahead ")).map(|(_, ahead)| ahead);
    let ahead: u64 = ahead.unwrap_or_else(|| panic!("{output:?}")).parse().unwrap();
    assert!(ahead.abs_diff(ahead_s() + SLEPT_S) <= 1, "{ahead} s");
}
