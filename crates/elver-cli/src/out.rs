//! Standard output: as `println!` writes it, but that whoever reads it has enough is no error.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};

/// Prints a line.
macro_rules! say {
    ($($text:tt)*) => { crate::out::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Prints a line. Nothing if nobody reads any longer.
///
/// # Panics
/// If it cannot be written, as `println!`.
pub(crate) fn line(text: Arguments<'_>) {
    write(format!("{text}\n").as_bytes());
}

/// Writes bytes, likewise.
pub(crate) fn write(bytes: &[u8]) {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            panic!("cannot write the output: {error}")
        }
        _ => {}
    }
}
