//! UCX's own shared memory, as `ucx_perftest` measures it: what programs would take on one host that know it.

use anyhow::{Context, Result};
use clap::ValueEnum;
use elver_console::Failure;

use super::pair::{self, Opens, Part, Way};

const PORT: u16 = 18_524;
const PORT_WORD: &str = "18524";

/// A test of its transport `posix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Rival {
    Put,
    Get,
    Am,
}

impl Rival {
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| format!("ucx-{}", value.get_name()))
    }

    /// Microseconds, as the median of one run.
    pub(super) fn measure(self) -> Result<f64, Failure> {
        // A get copies at once: there is no short one.
        let (test, layout) = match self {
            Rival::Put => ("put_lat", "short"),
            Rival::Get => ("get", "bcopy"),
            Rival::Am => ("am_lat", "short"),
        };
        let words = [
            "ucx_perftest",
            "-d",
            "memory",
            "-x",
            "posix",
            "-s",
            "8",
            "-n",
            "20000",
            "-w",
            "1000",
            "-f",
            "-v",
            "-p",
            PORT_WORD,
            "-t",
            test,
            "-D",
            layout,
        ];
        let part = Part {
            elver: None,
            words: &words,
            client: &[],
            opens: Opens::Socket,
            port: PORT,
            package: "ucx-utils",
        };
        let said = pair::run(Way::Memory, part)?;
        Ok(median_us(&said).with_context(|| format!("`ucx_perftest -t {test}` said:\n{said}"))?)
    }
}

/// The second column of the last line: `iterations,50.0_percentile_lat,avg_lat,…`.
fn median_us(said: &str) -> Result<f64> {
    let line =
        said.lines().rev().find(|line| !line.trim().is_empty()).context("it said nothing")?;
    let median = line.split(',').nth(1).context("no figures")?;
    median.trim().parse().with_context(|| format!("figure {median:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_found() {
        let said = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    2000,0.023,0.024,0.024,318.41,318.41,41755235,41755235\n";
        assert_eq!(median_us(said).unwrap(), 0.023);
        assert!(median_us("").is_err());
        assert!(median_us("iterations,50.0_percentile_lat\n").is_err());
    }
}
