//! The types that messages are made of.

use super::{Decoder, Encoder, Malformed, Message};

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Message for $type {
            #[inline]
            fn encoded_len(&self) -> usize {
                size_of::<$type>()
            }

            #[inline]
            fn encode(&self, to: &mut Encoder<'_>) {
                to.put(&self.to_le_bytes());
            }

            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<$type, Malformed> {
                Ok(<$type>::from_le_bytes(<[u8; size_of::<$type>()]>::decode(from)?))
            }
        }
    )*};
}

number! { u16, u32, u64, i8, i16, i32, i64, f32, f64 }

impl Message for u8 {
    #[inline]
    fn encoded_len(&self) -> usize {
        1
    }

    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.put(&[*self]);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<u8, Malformed> {
        Ok(from.take(1)?[0])
    }

    #[inline]
    fn encoded_len_of(items: &[u8]) -> usize {
        items.len()
    }

    #[inline]
    fn encode_all(items: &[u8], to: &mut Encoder<'_>) {
        to.put(items);
    }

    #[inline]
    fn decode_all(count: usize, from: &mut Decoder<'_>) -> Result<Vec<u8>, Malformed> {
        Ok(from.take(count)?.to_vec())
    }
}

impl Message for bool {
    fn encoded_len(&self) -> usize {
        1
    }

    fn encode(&self, to: &mut Encoder<'_>) {
        to.put(&[u8::from(*self)]);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<bool, Malformed> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::Bool { value }),
        }
    }
}

impl<const N: usize> Message for [u8; N] {
    #[inline]
    fn encoded_len(&self) -> usize {
        N
    }

    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.put(self);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<[u8; N], Malformed> {
        Ok(from.take(N)?.try_into().expect("so many were taken"))
    }
}

impl<T: Message> Message for Vec<T> {
    #[inline]
    fn encoded_len(&self) -> usize {
        4 + T::encoded_len_of(self)
    }

    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.put_len(self.len());
        T::encode_all(self, to);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Vec<T>, Malformed> {
        let count = from.take_len()?;
        T::decode_all(count, from)
    }
}

impl Message for String {
    fn encoded_len(&self) -> usize {
        4 + self.len()
    }

    fn encode(&self, to: &mut Encoder<'_>) {
        to.put_len(self.len());
        to.put(self.as_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<String, Malformed> {
        let len = from.take_len()?;
        let text = std::str::from_utf8(from.take(len)?).map_err(|_| Malformed::Text)?;
        Ok(text.to_string())
    }
}

impl<T: Message> Message for Option<T> {
    fn encoded_len(&self) -> usize {
        1 + self.as_ref().map_or(0, Message::encoded_len)
    }

    fn encode(&self, to: &mut Encoder<'_>) {
        self.is_some().encode(to);
        if let Some(item) = self {
            item.encode(to);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Option<T>, Malformed> {
        if bool::decode(from)? { T::decode(from).map(Some) } else { Ok(None) }
    }
}

macro_rules! tuple {
    ($($part:ident $at:tt),*) => {
        impl<$($part: Message),*> Message for ($($part,)*) {
            fn encoded_len(&self) -> usize {
                0 $(+ self.$at.encoded_len())*
            }

            #[allow(unused_variables)]
            fn encode(&self, to: &mut Encoder<'_>) {
                $(self.$at.encode(to);)*
            }

            #[allow(unused_variables, clippy::unused_unit)]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
                Ok(($($part::decode(from)?,)*))
            }
        }
    };
}

tuple! {}
tuple! { A 0 }
tuple! { A 0, B 1 }
tuple! { A 0, B 1, C 2 }
tuple! { A 0, B 1, C 2, D 3 }
