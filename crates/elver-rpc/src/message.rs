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
    /// the bytes cannot hold: a type without any, as `()`, does not build.
    ///
    /// # Errors
    /// [`Malformed`].
    fn decode_all(count: usize, from: &mut Decoder<'_>) -> Result<Vec<Self>, Malformed> {
        const { assert!(size_of::<Self>() > 0, "an element has a byte at least") };
        if count > from.left() {
            return Err(Malformed::Short { needed: count, left: from.left() });
        }
        from.take_room(count, size_of::<Self>())?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(Self::decode(from)?);
        }
        Ok(items)
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
    /// Messages stand in messages, too many of them.
    #[error("messages stand in each other more than {max} deep")]
    Deep {
        /// How many may.
        max: u8,
    },
    /// What is made of them takes more memory than a message of their length may.
    #[error(
        "{needed} bytes of memory are needed for {elements} elements, and the message may take {left} more"
    )]
    Large {
        /// Elements that there are.
        elements: usize,
        /// Bytes for these.
        needed: usize,
        /// Bytes that it may take yet.
        left: usize,
    },
}

/// Messages of [`message!`](crate::message!) that may stand in each other: each takes some of the stack of who reads.
const DEPTH_MAX: u8 = 100;
/// What elements may take in memory, in bytes: so much, and some times what the message is long.
const MEMORY_MIN: usize = 64 << 20;
const MEMORY_TIMES: usize = 4;

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

/// Where a message is read from. Lengths are checked before anything is made of them; messages stand in each other 100
/// deep at most, and their elements take at most 64 MiB and four times the message's bytes.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    /// How much deeper it may go.
    depth: u8,
    /// What elements may take yet.
    memory: usize,
}

impl<'a> Decoder<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        let memory = bytes.len().saturating_mul(MEMORY_TIMES).saturating_add(MEMORY_MIN);
        Decoder { bytes, depth: DEPTH_MAX, memory }
    }

    /// Reads what stands behind its length and is a message of its own, as those of [`message!`](crate::message!) do.
    /// What is left of it is passed over. A message of your own that may have itself in it is to be read by this.
    ///
    /// # Errors
    /// [`Malformed::Short`], [`Malformed::Deep`], and `read`'s.
    pub fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'a>) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        let len = self.take_len()?;
        let bytes = self.take(len)?;
        let depth = self.depth.checked_sub(1).ok_or(Malformed::Deep { max: DEPTH_MAX })?;
        let mut inner = Decoder { bytes, depth, memory: self.memory };
        let message = read(&mut inner)?;
        self.memory = inner.memory;
        Ok(message)
    }

    /// Room in memory for elements.
    fn take_room(&mut self, elements: usize, of: usize) -> Result<(), Malformed> {
        let (needed, left) = (elements.saturating_mul(of), self.memory);
        self.memory =
            left.checked_sub(needed).ok_or(Malformed::Large { elements, needed, left })?;
        Ok(())
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
                from.nested(|#[allow(unused_variables)] fields| {
                    ::core::result::Result::Ok($name {
                        $($field: $crate::message!(@field fields $(, $default)?),)*
                    })
                })
            }
        }
    };
    (@is_optional) => { false };
    (@is_optional $default:expr) => { true };
    (@field $fields:ident) => { $crate::Message::decode($fields)? };
    (@field $fields:ident, $default:expr) => {
        if $fields.left() == 0 { $default } else { $crate::Message::decode($fields)? }
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

    crate::message! {
        #[derive(Clone, Debug, PartialEq)]
        struct Tree { value: u8, children: Vec<Tree> = Vec::new() }
    }

    /// Who reads has no more stack than others.
    #[test]
    fn messages_stand_in_each_other_as_deep_as_they_may() {
        let deep = |levels| {
            let leaf = Tree { value: 7, children: Vec::new() };
            (1..levels).fold(leaf, |tree, _| Tree { value: 1, children: vec![tree] })
        };
        for levels in [1, 50, DEPTH_MAX.into()] {
            assert_eq!(decode(&encode(&deep(levels))), Ok(deep(levels)));
        }
        // Written by hand: who writes has no bound either.
        let mut bytes = encode(&deep(1));
        for _ in 0..100_000 {
            let mut outer = Vec::with_capacity(bytes.len() + 9);
            outer.extend((bytes.len() as u32 + 5).to_le_bytes());
            outer.extend([1, 1, 0, 0, 0]);
            outer.append(&mut bytes);
            bytes = outer;
            if bytes.len() > 20_000 {
                break;
            }
        }
        assert_eq!(decode::<Tree>(&bytes), Err(Malformed::Deep { max: DEPTH_MAX }));
    }

    /// A byte that stands for nothing may stand for much memory.
    #[test]
    fn elements_take_no_more_memory_than_their_message_may() {
        let count = 1_u32 << 20;
        let mut bytes = count.to_le_bytes().to_vec();
        bytes.resize(4 + count as usize, 0);
        assert_eq!(decode::<Vec<Option<u64>>>(&bytes).unwrap().len(), 1 << 20);
        let refused = decode::<Vec<Option<[u8; 4096]>>>(&bytes);
        assert!(matches!(refused, Err(Malformed::Large { elements: 1048576, .. })), "too large");
        // Also in pieces, in messages of their own.
        let piece: Vec<u8> = [1000_u32.to_le_bytes().to_vec(), vec![0; 1000]].concat();
        let pieces = [1000_u32.to_le_bytes().to_vec(), piece.repeat(1000)].concat();
        let refused = decode::<Vec<Vec<Option<[u8; 4096]>>>>(&pieces);
        assert!(matches!(refused, Err(Malformed::Large { elements: 1000, .. })), "too large");
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
        assert_eq!(decode::<First>(&huge), Err(short));
    }
}
