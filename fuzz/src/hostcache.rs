//! The cache of a host: any bytes as a file, and as the records of one whose header fits. They may be refused; what is
//! read must be what is written again.

use elver_hostcache::format::{self, MAGIC};

/// Takes any bytes.
pub fn run(bytes: &[u8]) {
    // Their own header is right by chance alone.
    let _ = format::decode(bytes);
    let mut file = MAGIC.to_vec();
    file.extend((bytes.len() as u64 + 24).to_le_bytes());
    file.extend(crc32fast::hash(bytes).to_le_bytes());
    file.extend([0; 4]);
    file.extend(bytes);
    if let Ok(cache) = format::decode(&file) {
        let written = format::encode(&cache).expect("what was read can be written");
        assert_eq!(format::decode(&written).as_ref(), Ok(&cache));
        // Whoever asks a cache that was read gets an answer or none.
        let _ = cache.has_answers();
        for device in &cache.devices {
            let index = elver_hostcache::netlink::index(&device.payload);
            let _ = elver_hostcache::netlink::name(&device.payload);
            let _ = index.and_then(|index| cache.chardev(index));
        }
    }
}
