//! librdmacm's `rstream`: streams through its rsockets by `elver run`, and the same program over the kernel's TCP.

use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use elver_console::Failure;

use super::pair::{self, Opens, Part, Way};

const PORT: u16 = 18_525;

/// What goes through a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Bytes {
    /// 64 bytes there, and as many back.
    Lat,
    /// Eight chunks of a mebibyte there, and as many back.
    Bw,
}

impl Bytes {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Bytes::Lat => "µs",
            Bytes::Bw => "GB/s",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Bytes::Lat => "-S 64 -C 1 -I 10000",
            Bytes::Bw => "-S 1048576 -C 8 -I 16",
        }
    }

    /// The figure in what the client printed: half of a round trip, or both ways' bytes in the time.
    fn figure(self, said: &str) -> Result<f64> {
        let line = said.lines().rev().find(|line| line.starts_with("custom"));
        let line = line.context("no line of figures")?;
        let mut last = line.split_whitespace().rev();
        let (us, gbit) = (last.next(), last.next());
        let (word, factor) = match self {
            Bytes::Lat => (us, 1.0),
            Bytes::Bw => (gbit, 0.125),
        };
        let word = word.context("too few figures")?;
        Ok(word.parse::<f64>().with_context(|| format!("figure {word:?}"))? * factor)
    }
}

/// What carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) bytes: Bytes,
    /// The kernel's TCP, and not rsockets.
    pub(super) tcp: bool,
}

impl Stream {
    pub(super) fn name(self) -> String {
        format!("{}-{}", if self.tcp { "tcp" } else { "rsocket" }, self.bytes.name())
    }

    /// One run of server and client.
    pub(super) fn measure(self, way: Way, elver: &Path) -> Result<f64, Failure> {
        let kernel = if self.tcp { " -T s" } else { "" };
        let words = format!("rstream -p {PORT}{kernel} {}", self.bytes.words());
        let words: Vec<&str> = words.split(' ').collect();
        let part = Part {
            elver: (!self.tcp).then_some(elver),
            words: &words,
            client: &["-s"],
            opens: if self.tcp { Opens::Socket } else { Opens::Unseen },
            port: PORT,
            package: "rdmacm-utils",
        };
        let said = pair::run(way, part)?;
        Ok(self.bytes.figure(&said).with_context(|| format!("`rstream` said:\n{said}"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As rdma-core 44 prints it.
    const SAID: &str = "\
name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer
custom    64      1       20k     2.4m        0.29s      0.07       7.26
";

    #[test]
    fn figures_are_found() {
        assert_eq!(Bytes::Lat.figure(SAID).unwrap(), 7.26);
        assert_eq!(Bytes::Bw.figure(SAID).unwrap(), 0.07 / 8.0);
        assert!(Bytes::Lat.figure("rpoll: Connection refused\n").is_err());
    }
}
