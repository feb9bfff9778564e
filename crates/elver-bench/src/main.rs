//! Runs one hot path over and over, for an instruction counter to watch: `cargo xtask counts`
//! starts it under valgrind.
//!
//! Nothing here depends on a clock, on randomness or on the machine's load: the time is a number
//! that the loop moves, and the devices' seeds are fixed.

mod bare;
mod host;
mod local;
mod paths;
mod pipe;
mod remote;
mod ring;
mod sides;
mod step;
mod vqp;
mod vqp_pair;
mod wire;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: elver-bench                    lists the paths: group, name, sides, iterations, operations
                                      an iteration, what an operation is
       elver-bench NAME [ITERATIONS]  runs one, after as many iterations to warm up
       elver-bench --features         tells the processor's features that choose code
";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            for path in paths::ALL {
                println!("{path}");
            }
            Ok(())
        }
        ["--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        ["--features"] => {
            println!("{}", features().join(", "));
            Ok(())
        }
        [name] => run(name, None),
        [name, iterations] => run(name, Some(iterations.parse().context("ITERATIONS")?)),
        _ => bail!("{USAGE}"),
    }
}

/// The features that code of ours, of a library or of libc is chosen by, as far as they are there.
fn features() -> Vec<&'static str> {
    let mut there = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! look {
            ($($feature:tt),+) => {
                $(if std::is_x86_feature_detected!($feature) { there.push($feature) })+
            };
        }
        look!("sse4.2", "pclmulqdq", "avx2", "vpclmulqdq", "avx512f");
    }
    there.push(std::env::consts::ARCH);
    there
}

fn run(name: &str, iterations: Option<u32>) -> Result<()> {
    let path = paths::ALL
        .iter()
        .find(|path| path.name == name)
        .with_context(|| format!("no path is called {name:?}; without arguments I list them"))?;
    let mut step = (path.prepare)()?;
    let iterations = iterations.unwrap_or(path.iterations);
    for _ in 0..iterations {
        step();
    }
    sides::counting_starts();
    for _ in 0..iterations {
        step();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a core asks of its peers changes; a path that no longer gets there is found here, and not
    /// when somebody counts.
    #[test]
    fn every_path_runs() {
        for path in paths::ALL {
            run(path.name, Some(2)).unwrap_or_else(|error| panic!("{}: {error:#}", path.name));
        }
    }
}
