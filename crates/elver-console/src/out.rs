//! Standard output: as `println!` writes it, but that whoever reads it has enough is no error, and that
//! it cannot be written ends the program as other errors do.

use std::any::Any;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

/// What unwinds a program whose output cannot be written.
struct Unwritten;

/// Prints a line, as `println!` does; nothing if nobody reads any longer.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::line(format_args!($($text)*)) };
}

/// Prints a line. Nothing if nobody reads any longer.
///
/// # Panics
/// If it cannot be written; [`guarded`] makes an exit code of that.
pub fn line(text: Arguments<'_>) {
    write(format!("{text}\n").as_bytes());
}

/// Writes bytes, likewise. Whether anybody reads.
///
/// # Panics
/// If they cannot be written; [`guarded`] makes an exit code of that.
pub fn write(bytes: &[u8]) -> bool {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => {
            drop(out);
            // Whoever started the program may have closed that too.
            let _ = writeln!(std::io::stderr(), "elver: cannot write the output: {error}");
            // What the program has made is still undone.
            resume_unwind(Box::new(Unwritten))
        }
    }
}

/// Runs a program. If its output cannot be written it has said so, and ends with 1.
pub fn guarded(program: impl FnOnce() -> ExitCode) -> ExitCode {
    catch_unwind(AssertUnwindSafe(program)).unwrap_or_else(|cause: Box<dyn Any + Send>| {
        if cause.is::<Unwritten>() { ExitCode::from(1) } else { resume_unwind(cause) }
    })
}
