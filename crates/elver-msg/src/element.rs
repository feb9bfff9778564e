//! What collective operations work on, and how two elements become one.

/// A number that goes from rank to rank as little-endian bytes.
pub trait Element: Copy + Default + 'static {
    /// Bytes of it.
    const BYTES: usize;

    /// Writes its bytes, of which there are [`Element::BYTES`].
    fn store(self, into: &mut [u8]);

    /// Reads them.
    fn load(from: &[u8]) -> Self;
}

/// A number with an order.
pub trait Number: Element {
    /// Both together; whole numbers wrap around.
    fn plus(self, other: Self) -> Self;

    /// One times the other; whole numbers wrap around.
    fn times(self, other: Self) -> Self;

    /// The lesser one; of a number and a NaN the number.
    fn lesser(self, other: Self) -> Self;

    /// The greater one; of a number and a NaN the number.
    fn greater(self, other: Self) -> Self;
}

/// A whole number, as its bits.
pub trait Bits: Element {
    /// Bits that both have.
    fn both(self, other: Self) -> Self;

    /// Bits that one of them has.
    fn either(self, other: Self) -> Self;

    /// Bits in which they differ.
    fn differ(self, other: Self) -> Self;
}

macro_rules! element {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const BYTES: usize = size_of::<$type>();

            #[inline]
            fn store(self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn load(from: &[u8]) -> $type {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(from);
                <$type>::from_le_bytes(bytes)
            }
        }
    )*};
}

macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline]
            fn plus(self, other: $type) -> $type {
                self.wrapping_add(other)
            }

            #[inline]
            fn times(self, other: $type) -> $type {
                self.wrapping_mul(other)
            }

            #[inline]
            fn lesser(self, other: $type) -> $type {
                self.min(other)
            }

            #[inline]
            fn greater(self, other: $type) -> $type {
                self.max(other)
            }
        }

        impl Bits for $type {
            #[inline]
            fn both(self, other: $type) -> $type {
                self & other
            }

            #[inline]
            fn either(self, other: $type) -> $type {
                self | other
            }

            #[inline]
            fn differ(self, other: $type) -> $type {
                self ^ other
            }
        }
    )*};
}

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline]
            fn plus(self, other: $type) -> $type {
                self + other
            }

            #[inline]
            fn times(self, other: $type) -> $type {
                self * other
            }

            #[inline]
            fn lesser(self, other: $type) -> $type {
                self.min(other)
            }

            #[inline]
            fn greater(self, other: $type) -> $type {
                self.max(other)
            }
        }
    )*};
}

element!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);
whole!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);
float!(f32, f64);

/// How two elements become one, for [`crate::Group::allreduce`] and [`crate::Group::reduce`]. Any function that is
/// associative and commutative will do.
pub mod ops {
    use super::{Bits, Number};

    /// Their sum (`MPI_SUM`).
    pub fn sum<T: Number>(one: T, other: T) -> T {
        one.plus(other)
    }

    /// Their product (`MPI_PROD`).
    pub fn product<T: Number>(one: T, other: T) -> T {
        one.times(other)
    }

    /// The lesser one (`MPI_MIN`).
    pub fn min<T: Number>(one: T, other: T) -> T {
        one.lesser(other)
    }

    /// The greater one (`MPI_MAX`).
    pub fn max<T: Number>(one: T, other: T) -> T {
        one.greater(other)
    }

    /// Bits that both have (`MPI_BAND`).
    pub fn and<T: Bits>(one: T, other: T) -> T {
        one.both(other)
    }

    /// Bits that one of them has (`MPI_BOR`).
    pub fn or<T: Bits>(one: T, other: T) -> T {
        one.either(other)
    }

    /// Bits in which they differ (`MPI_BXOR`).
    pub fn xor<T: Bits>(one: T, other: T) -> T {
        one.differ(other)
    }
}

/// Elements as bytes.
pub(crate) fn store_all<T: Element>(elements: &[T], into: &mut [u8]) {
    for (element, into) in elements.iter().zip(into.chunks_exact_mut(T::BYTES)) {
        element.store(into);
    }
}

/// As a new vector.
pub(crate) fn stored<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(elements)];
    store_all(elements, &mut bytes);
    bytes
}

/// Bytes as elements.
pub(crate) fn load_all<T: Element>(from: &[u8], elements: &mut [T]) {
    for (element, from) in elements.iter_mut().zip(from.chunks_exact(T::BYTES)) {
        *element = T::load(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_bytes_and_back() {
        let numbers = [1.5_f64, -0.0, f64::INFINITY];
        let bytes = stored(&numbers);
        assert_eq!(bytes[..8], 1.5_f64.to_le_bytes());
        let mut back = [0.0; 3];
        load_all(&bytes, &mut back);
        assert_eq!(back.map(f64::to_bits), numbers.map(f64::to_bits));
    }

    #[test]
    fn each_function_is_itself() {
        assert_eq!((ops::sum(250_u8, 10), ops::product(16_u8, 17)), (4, 16));
        assert_eq!((ops::min(-1_i32, 1), ops::max(-1.0, f64::NAN)), (-1, -1.0));
        assert_eq!((ops::and(6_u16, 3), ops::or(6_u16, 3), ops::xor(6_u16, 3)), (2, 7, 5));
    }
}
