//! Standard output: as `println!` writes it, but that whoever reads it has enough is no error.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};

/// Prints a line, as `println!` does; nothing if nobody reads any longer.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::line(format_args!($($text)*)) };
}

/// Prints a line. Nothing if nobody reads any longer.
///
/// # Panics
/// If it cannot be written, as `println!`.
pub fn line(text: Arguments<'_>) {
    write(format!("{text}\n").as_bytes());
}

/// Writes bytes, likewise.
///
/// # Panics
/// If they cannot be written.
pub fn write(bytes: &[u8]) {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            panic!("cannot write the output: {error}")
        }
        _ => {}
    }
}
