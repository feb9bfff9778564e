use thiserror::Error;

/// Entries in a cluster, as in DrTM-KV.
pub const SLOTS: usize = 8;
/// Longest key in bytes.
pub const KEY_LEN_MAX: usize = 32;
/// Longest value in bytes.
pub const VALUE_LEN_MAX: usize = 64;

/// Bytes of a cluster in front of its entries.
pub(crate) const HEAD_BYTES: usize = 32;
/// Bytes of the largest cluster.
pub(crate) const CLUSTER_BYTES_MAX: usize = HEAD_BYTES + SLOTS * (KEY_LEN_MAX + VALUE_LEN_MAX);

/// Entries a bucket at the recommended load: half of its head cluster. One in 120 keys then stands
/// in a second cluster, and one bucket in a million has a third.
const RECOMMENDED_PER_BUCKET: u32 = 4;
/// Most clusters of one kind; their indices then fit 32 bits with room for marks.
const CLUSTERS_MAX: u32 = 1 << 30;

/// The geometry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    buckets: u32,
    indirect: u32,
    key_len: u8,
    value_len_max: u8,
}

impl Layout {
    /// A layout in which `capacity` entries are the recommended load, or a little less. Keys have
    /// `key_len` bytes, values at most `value_len_max`.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] that names the number that is too small or too large.
    pub fn for_capacity(
        capacity: u32,
        key_len: usize,
        value_len_max: usize,
    ) -> Result<Layout, LayoutError> {
        LayoutError::check("capacity", u64::from(capacity), 1, u64::from(u32::MAX))?;
        let buckets = capacity.div_ceil(RECOMMENDED_PER_BUCKET);
        // One bucket in 50 overflows at this load; small tables need more in proportion.
        Layout::new(buckets, buckets / 16 + 8, key_len, value_len_max)
    }

    /// A layout with numbers of the caller's: `buckets` of [`SLOTS`] entries and `indirect` clusters
    /// of as many for those that overflow.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] that names the number that is too small or too large.
    pub fn new(
        buckets: u32,
        indirect: u32,
        key_len: usize,
        value_len_max: usize,
    ) -> Result<Layout, LayoutError> {
        LayoutError::check("buckets", u64::from(buckets), 1, u64::from(CLUSTERS_MAX))?;
        LayoutError::check("indirect", u64::from(indirect), 0, u64::from(CLUSTERS_MAX))?;
        LayoutError::check("key_len", key_len as u64, 1, KEY_LEN_MAX as u64)?;
        LayoutError::check("value_len_max", value_len_max as u64, 0, VALUE_LEN_MAX as u64)?;
        let (key_len, value_len_max) = (key_len as u8, value_len_max as u8);
        Ok(Layout { buckets, indirect, key_len, value_len_max })
    }

    /// Entries at the recommended load. More go in; look-ups then take more READs.
    pub fn capacity(&self) -> u64 {
        u64::from(self.buckets) * u64::from(RECOMMENDED_PER_BUCKET)
    }

    /// Buckets, each with a cluster at its own place.
    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    /// Clusters for buckets that overflow.
    pub fn indirect(&self) -> u32 {
        self.indirect
    }

    /// Clusters of both kinds.
    pub fn clusters(&self) -> u32 {
        self.buckets + self.indirect
    }

    /// Bytes of every key.
    pub fn key_len(&self) -> usize {
        usize::from(self.key_len)
    }

    /// Most bytes of a value.
    pub fn value_len_max(&self) -> usize {
        usize::from(self.value_len_max)
    }

    /// Bytes of a cluster, which is what one READ fetches; a multiple of 8.
    pub fn cluster_bytes(&self) -> usize {
        (HEAD_BYTES + SLOTS * self.entry_bytes()).next_multiple_of(8)
    }

    /// Bytes of the whole table.
    pub fn table_bytes(&self) -> u64 {
        u64::from(self.clusters()) * self.cluster_bytes() as u64
    }

    /// Bytes of an entry.
    pub(crate) fn entry_bytes(&self) -> usize {
        self.key_len() + self.value_len_max()
    }

    /// First byte of a cluster in the table.
    pub(crate) fn offset(&self, index: u32) -> u64 {
        u64::from(index) * self.cluster_bytes() as u64
    }
}

/// A number of a [`Layout`] that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{name} is {value}, but must lie in {min}..={max}")]
pub struct LayoutError {
    /// Name of the parameter.
    pub name: &'static str,
    /// The value given.
    pub value: u64,
    /// Smallest value allowed.
    pub min: u64,
    /// Largest value allowed.
    pub max: u64,
}

impl LayoutError {
    fn check(name: &'static str, value: u64, min: u64, max: u64) -> Result<(), LayoutError> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(LayoutError { name, value, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn sizes() {
        let dct = Layout::for_capacity(1_000, 16, 12).unwrap();
        assert_eq!((dct.buckets(), dct.indirect(), dct.cluster_bytes()), (250, 23, 256));
        assert_eq!((dct.capacity(), dct.table_bytes()), (1_000, 273 * 256));
        let odd = Layout::new(1, 0, 3, 2).unwrap();
        assert_eq!(odd.cluster_bytes(), 72);
        let largest = Layout::new(1 << 30, 1 << 30, KEY_LEN_MAX, VALUE_LEN_MAX).unwrap();
        assert_eq!(largest.cluster_bytes(), CLUSTER_BYTES_MAX);
        assert_eq!(CLUSTER_BYTES_MAX, 800);
        assert_eq!(largest.table_bytes(), 800 << 31);
    }

    #[test]
    fn what_cannot_be_is_told() {
        assert!(Layout::for_capacity(u32::MAX, 8, 8).is_ok());
        let name = |layout: Result<Layout, LayoutError>| layout.unwrap_err().name;
        assert_eq!(name(Layout::for_capacity(0, 8, 8)), "capacity");
        assert_eq!(name(Layout::new(0, 0, 8, 8)), "buckets");
        assert_eq!(name(Layout::new(1, u32::MAX, 8, 8)), "indirect");
        assert_eq!(name(Layout::new(1, 0, 0, 8)), "key_len");
        let error = Layout::new(1, 0, 8, 65).unwrap_err();
        assert!(error.to_string().contains("value_len_max is 65, but must lie in 0..=64"));
    }
}
