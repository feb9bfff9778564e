//! What other processes read of a device that nobody drives.

use std::net::IpAddr;
use std::process::Command;

use elver_soft::{SoftConfig, SoftDevice, now, published};

const NAME: &str = "soft-rests";
const READS: &str = "counters::a_process_reads_what_was_counted";
const SAYS: &str = "counted: ";

/// What the test below starts: nobody reads what he publishes himself.
#[test]
#[ignore = "a process of the other's"]
fn a_process_reads_what_was_counted() {
    let all = published();
    let counters = &all.iter().find(|one| one.name == NAME).unwrap().counters;
    let (_, count) = counters.iter().find(|(name, _)| name == "direct_refused").unwrap();
    println!("\n{SAYS}{count}");
}

#[test]
fn what_was_counted_is_told_before_a_device_rests() {
    let mut config = SoftConfig::for_address(IpAddr::from([127, 0, 78, 1]));
    config.rnic.name = NAME.into();
    let mut device = SoftDevice::open(config).unwrap();
    let told = || {
        let mut reads = Command::new(std::env::current_exe().unwrap());
        let read = reads.args([READS, "--exact", "--ignored", "--nocapture"]).output().unwrap();
        let said = String::from_utf8(read.stdout).unwrap();
        let count = said.lines().find_map(|line| line.strip_prefix(SAYS)).expect(&said);
        count.parse::<u64>().unwrap()
    };
    let start = now();
    device.count_direct_refused(3, 0);
    assert_eq!((device.publish_in_time(start), told()), (None, 3));
    // What comes soon after is told a while later, and nothing is where nothing has come.
    assert_eq!(device.publish_in_time(start), None);
    device.count_direct_refused(4, 0);
    let due = device.publish_in_time(start).unwrap();
    assert!(due > start);
    assert_eq!(told(), 3);
    assert_eq!((device.publish_in_time(due), told()), (None, 7));
    assert_eq!(device.publish_in_time(due.saturating_add_ns(1 << 40)), None);
}
