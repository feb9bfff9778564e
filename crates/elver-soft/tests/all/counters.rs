//! What other processes read of a device that nobody drives.

use std::net::IpAddr;

use elver_soft::{SoftConfig, SoftDevice, now, published};

#[test]
fn what_was_counted_is_told_before_a_device_rests() {
    let mut config = SoftConfig::for_address(IpAddr::from([127, 0, 78, 1]));
    config.rnic.name = "soft-rests".into();
    let mut device = SoftDevice::open(config).unwrap();
    let told = || {
        let all = published();
        let counters = all.into_iter().find(|one| one.name == "soft-rests").unwrap().counters;
        counters.into_iter().find(|(name, _)| name == "direct_refused").unwrap().1
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
