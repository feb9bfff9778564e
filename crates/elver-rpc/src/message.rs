//! What requests and responses are made of, as bytes: little-endian, without padding, without names.
//!
//! | type | bytes |
//! | --- | --- |
//! | integers, `f32`, `f64` | their own, little-endian |
//! | `bool` | one, 0 or 1 |
//! | `[u8; N]` | N |
//! | `Vec<T>`, `String` | how many elements (`u32`), and those; a string is UTF-8 |
//! | `Option<T>` | one, 0 or 1, and then what it has |
//! | `()` and tuples | their parts |
//! | what [`message!`](crate::message!) makes | how many bytes follow (`u32`), and its fields |

mod types;

use thiserror::Error;

/// A request or a response, or a part of one.
pub trait Message: Sized {
    /// Bytes that [`Message::encode`] writes.
    fn encoded_len(&self) -> usize;

    /// Writes it.
    fn encode(&self, to: &mut Encoder<'_>);

    /// Reads one.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong with the bytes.
    fn decode(from: &mut Decoder<'_>) -> Result<Self, Malformed>;

    /// As [`Message::encoded_len`], of many.
    fn encoded_len_of(items: &[Self]) -> usize {
        items.iter().map(Message::encoded_len).sum()
    }

    /// As [`Message::encode`], of many.
    fn encode_all(items: &[Self], to: &mut Encoder<'_>) {
        items.iter().for_each(|item| item.encode(to));
    }

    /// As [`Message::decode`], of so many. Each takes a byte at least, so that no count is believed that
    /// the bytes cannot hold.
    ///
    /// # Errors
    /// [`Malformed`].
    fn decode_all(count: usize, from: &mut Decoder<'_>) -> Result<Vec<Self>, Malformed> {
        if count > from.left() {
            return Err(Malformed::Short { needed: count, left: from.left() });
        }
        (0..count).map(|_| Self::decode(from)).collect()
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// They end too early.
    #[error("{needed} bytes are needed, and {left} are left")]
    Short {
        /// Bytes of what was to be read.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// There are more than are read.
    #[error("{left} bytes are left over")]
    Long {
        /// Bytes that nobody reads.
        left: usize,
    },
    /// A byte that is 0 or 1 is neither.
    #[error("a byte is {value} where 0 or 1 is meant")]
    Bool {
        /// What it is.
        value: u8,
    },
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    Text,
}

/// Where a message is written: as many bytes as it said.
#[derive(Debug)]
pub struct Encoder<'a> {
    room: &'a mut [u8],
    at: usize,
}

impl<'a> Encoder<'a> {
    /// Writes into these bytes, from the first on.
    pub fn new(room: &'a mut [u8]) -> Encoder<'a> {
        Encoder { room, at: 0 }
    }

    /// Bytes as they are.
    ///
    /// # Panics
    /// If a message writes more than its [`Message::encoded_len`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.room[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }

    /// A length.
    ///
    /// # Panics
    /// If it is not less than 2³²: such a message is beyond every limit.
    #[inline]
    pub fn put_len(&mut self, len: usize) {
        self.put(&u32::try_from(len).expect("a message is shorter than 4 GiB").to_le_bytes());
    }
}

/// Where a message is read from. Lengths are checked before anything is made of them.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// So many bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let short = Malformed::Short { needed: len, left: self.bytes.len() };
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// A length, that of what follows or a number of elements.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    #[inline]
    pub fn take_len(&mut self) -> Result<usize, Malformed> {
        Ok(u32::decode(self)? as usize)
    }
}

/// A whole message of these bytes.
///
/// # Errors
/// [`Malformed`]; [`Malformed::Long`] if it ends before they do.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let message = M::decode(&mut decoder)?;
    match decoder.left() {
        0 => Ok(message),
        left => Err(Malformed::Long { left }),
    }
}

/// A message as bytes.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = vec![0; message.encoded_len()];
    message.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// Makes a struct that is a [`Message`], and that later versions may add to.
///
/// Its bytes begin with how many they are. A field with `=` may be absent, and is then what stands there:
/// such fields come last, and new ones behind them. Who does not know the last fields passes over them.
///
/// ```
/// elver_rpc::message! {
///     /// Puts a value in place.
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct Put {
///         /// Where.
///         pub key: u64,
///         /// What.
///         pub value: Vec<u8>,
///         /// For how many seconds; since the second version.
///         pub ttl_s: u32 = 0,
///     }
/// }
/// let put = Put { key: 7, value: vec![1, 2], ttl_s: 60 };
/// let bytes = elver_rpc::encode(&put);
/// assert_eq!(elver_rpc::decode::<Put>(&bytes).unwrap(), put);
/// ```
///
/// A field that must be there does not stand behind one that may be absent:
///
/// ```compile_fail
/// elver_rpc::message! { struct Wrong { one: u8 = 0, other: u8, } }
/// ```
#[macro_export]
macro_rules! message {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty $(= $default:expr)?),* $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $crate::Message for $name {
            fn encoded_len(&self) -> usize {
                4 $(+ $crate::Message::encoded_len(&self.$field))*
            }

            fn encode(&self, to: &mut $crate::Encoder<'_>) {
                to.put_len($crate::Message::encoded_len(self) - 4);
                $($crate::Message::encode(&self.$field, to);)*
            }

            fn decode(
                from: &mut $crate::Decoder<'_>,
            ) -> ::core::result::Result<Self, $crate::Malformed> {
                const _: () = $crate::assert_optional_last(&[
                    $($crate::message!(@is_optional $($default)?)),*
                ]);
                let len = from.take_len()?;
                #[allow(unused_mut, unused_variables)]
                let mut fields = $crate::Decoder::new(from.take(len)?);
                Ok($name {
                    $($field: $crate::message!(@field fields $(, $default)?),)*
                })
            }
        }
    };
    (@is_optional) => { false };
    (@is_optional $default:expr) => { true };
    (@field $fields:ident) => { $crate::Message::decode(&mut $fields)? };
    (@field $fields:ident, $default:expr) => {
        if $fields.left() == 0 { $default } else { $crate::Message::decode(&mut $fields)? }
    };
}

/// Stops the build if a field that must be there stands behind one that may be absent.
#[doc(hidden)]
pub const fn assert_optional_last(optional: &[bool]) {
    let mut at = 1;
    while at < optional.len() {
        assert!(
            optional[at] || !optional[at - 1],
            "a field that may be absent comes after all that must be there"
        );
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::message! {
        #[derive(Clone, Debug, PartialEq)]
        struct First { key: u64, name: String }
    }

    crate::message! {
        #[derive(Clone, Debug, PartialEq)]
        struct Second { key: u64, name: String, flags: u16 = 9, list: Vec<(u32, bool)> = Vec::new() }
    }

    #[test]
    fn what_is_encoded_decodes() {
        fn same<M: Message + PartialEq + std::fmt::Debug>(message: M) {
            let bytes = encode(&message);
            assert_eq!(bytes.len(), message.encoded_len());
            assert_eq!(decode::<M>(&bytes), Ok(message));
            for len in 0..bytes.len() {
                assert!(decode::<M>(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
            }
            let mut longer = bytes;
            longer.push(0);
            assert_eq!(decode::<M>(&longer), Err(Malformed::Long { left: 1 }));
        }
        same((1_u8, 2_u16, 3_u32, 4_u64));
        same((-1_i8, -2_i16, -3_i32, -4_i64));
        same((1.5_f32, -0.25_f64, true));
        same((vec![1_u8, 2, 3], vec![1_u64 << 40], String::from("öl")));
        same((Some(7_u32), None::<u8>, [9_u8; 5]));
        same(First { key: 3, name: "a".into() });
        same(Second { key: 3, name: "a".into(), flags: 1, list: vec![(5, true), (6, false)] });
    }

    #[test]
    fn versions_read_each_other() {
        let first = First { key: 3, name: "a".into() };
        let second: Second = decode(&encode(&first)).unwrap();
        assert_eq!(second, Second { key: 3, name: "a".into(), flags: 9, list: Vec::new() });
        let newer = Second { flags: 4, list: vec![(1, true)], ..second };
        assert_eq!(decode::<First>(&encode(&newer)), Ok(first));
        // Within others as well: what follows is found.
        let pair = (newer.clone(), 77_u32);
        let (old, behind): (First, u32) = decode(&encode(&pair)).unwrap();
        assert_eq!((old.key, behind), (3, 77));
    }

    #[test]
    fn nonsense_is_named_and_makes_nothing() {
        assert_eq!(decode::<bool>(&[2]), Err(Malformed::Bool { value: 2 }));
        assert_eq!(decode::<String>(&[1, 0, 0, 0, 0xff]), Err(Malformed::Text));
        let most = u32::MAX as usize;
        let huge = [0xff; 5];
        let short = Malformed::Short { needed: most, left: 1 };
        assert_eq!(decode::<Vec<u8>>(&huge), Err(short));
        assert_eq!(decode::<Vec<u64>>(&huge), Err(short));
        assert_eq!(decode::<Vec<()>>(&huge), Err(short));
        assert_eq!(decode::<First>(&huge), Err(short));
    }
}
