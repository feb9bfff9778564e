//! Checks of the workspace that cargo itself does not make, and the lab: `cargo xtask CHECK`, `cargo xtask lab …`.

mod advisories;
mod arrows;
mod beliefs;
mod circles;
mod client;
mod conformance;
mod counts;
mod deps;
mod lab;
mod limits;
mod metadata;
mod no_std;
mod preload;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHECK

  advisories DIR
           nothing is known against a crate, by a checkout of RustSec's database
  arrows   no crate depends on one of its own floor or above (ARCHITECTURE.md)
  circles  no files of a crate import one another, or call one another's methods, in a
           circle
  client   the client library takes in few crates, and no node
  deps     every crate has a licence and a source that deny.toml allows
  no-std   the crates that a kernel could host use nothing of std
  preload  makes the libraries for unmodified programs, for `elver run`
  conformance  runs rdma-core's own tests and Debian's programs over that library, and
           writes docs/conformance.md; --check compares with it and writes nothing, and
           with --quick runs the part that takes two minutes; --only TEXT runs those
           whose names have the text, and renews their rows; --large downloads and runs
           large programs (Mooncake, NIXL, QEMU, MPI, caches)
  test     installs what the tests need, where it may, and runs them with the
           arguments of cargo test that follow
  lab      runs scenarios against the kernel's RDMA stack (cargo xtask lab --help)
  counts   counts the instructions of the hot paths under valgrind, and writes
           docs/instruction-counts.md; --check tells the drift from it and writes
           nothing, --json prints the counts
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let check = arguments.next();
    let result = match check.as_deref() {
        Some("counts") => counts::run(&arguments.collect::<Vec<_>>()),
        Some("advisories") => advisories::check(&arguments.collect::<Vec<_>>()),
        Some("arrows") => arrows::check(),
        Some("circles") => circles::check(&arguments.collect::<Vec<_>>()),
        Some("client") => client::check(),
        Some("deps") => deps::check(),
        Some("no-std") => no_std::check(),
        Some("preload") => preload::run(),
        Some("conformance") => conformance::run(&arguments.collect::<Vec<_>>()),
        Some("test") => test::run(&arguments.collect::<Vec<_>>()),
        Some("lab") => return lab::main(std::env::args().skip(1)),
        Some("--help" | "-h" | "help") => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
