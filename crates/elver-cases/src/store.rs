//! A database that is asked for a value by its key: redb, in memory.

use redb::backends::InMemoryBackend;
use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};

/// Bytes of a key, which is a whole request.
pub const KEY: usize = 16;
/// Bytes of a value, which is a whole response.
pub const VALUE: usize = 128;

/// A request.
pub type Key = [u8; KEY];
/// A response. The value of a key begins with the key; all zeros where there is none.
pub type Value = [u8; VALUE];

const TABLE: TableDefinition<'_, &Key, &Value> = TableDefinition::new("usertable");

/// The database, as one snapshot of it that is read.
#[derive(Debug)]
pub struct Store {
    table: ReadOnlyTable<&'static Key, &'static Value>,
    /// The snapshot can be read as long as this is open.
    _database: Database,
}

/// Why a store could not be made or read.
#[derive(Debug, thiserror::Error)]
#[error("the database: {0}")]
pub struct Error(#[from] redb::Error);

/// redb has an error for each of its calls, which all are its one.
fn any(error: impl Into<redb::Error>) -> Error {
    Error(error.into())
}

impl Store {
    /// One with records of the keys `key(0)` to `key(records - 1)`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn with_records(records: u32) -> Result<Store, Error> {
        let database =
            Database::builder().create_with_backend(InMemoryBackend::new()).map_err(any)?;
        let writing = database.begin_write().map_err(any)?;
        {
            let mut table = writing.open_table(TABLE).map_err(any)?;
            for key in (0..records).map(key) {
                table.insert(&key, &value(&key)).map_err(any)?;
            }
        }
        writing.commit().map_err(any)?;
        let reading = database.begin_read().map_err(any)?;
        let table = reading.open_table(TABLE).map_err(any)?;
        Ok(Store { table, _database: database })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The database is damaged.
    pub fn answer(&self, key: &Key) -> Result<Value, Error> {
        let found = self.table.get(key).map_err(any)?;
        Ok(found.map_or([0; VALUE], |value| *value.value()))
    }
}

/// The key of the record with this number.
pub fn key(number: u32) -> Key {
    let mut key = *b"user000000000000";
    let mut left = number;
    for digit in key[4..KEY].iter_mut().rev() {
        *digit += (left % 10) as u8;
        left /= 10;
    }
    key
}

/// What the record of a key holds: the key again and again.
fn value(key: &Key) -> Value {
    std::array::from_fn(|at| key[at % KEY])
}

/// Whether this is the answer for a key that there is.
pub fn is_value_of(answer: &Value, key: &Key) -> bool {
    *answer == value(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbers_in_decimal() {
        assert_eq!(&key(0), b"user000000000000");
        assert_eq!(&key(4_294_967_295), b"user004294967295");
    }

    #[test]
    fn each_record_is_found_and_no_other() {
        let store = Store::with_records(100).unwrap();
        for number in 0..100 {
            let key = key(number);
            assert!(is_value_of(&store.answer(&key).unwrap(), &key));
        }
        let (absent, other) = (key(100), key(0));
        assert_eq!(store.answer(&absent).unwrap(), [0; VALUE]);
        assert!(!is_value_of(&store.answer(&other).unwrap(), &absent));
    }
}
