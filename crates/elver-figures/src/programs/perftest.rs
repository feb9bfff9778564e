//! perftest's programs, and what they print.

use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use elver_console::Failure;

use super::pair::{self, Opens, Part, Way};
use crate::report::rows::Target;

/// Of connections by which the two ends tell each other of their QPs.
const PORT: u16 = 18_523;
/// Operations of a round where one is small, and where one is a mebibyte.
const SMALL: u32 = 20_000;
const LARGE: u32 = 1_000;

/// A program with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Test {
    ReadLat,
    WriteLat,
    SendLat,
    /// WRITEs of a mebibyte.
    WriteBw,
    /// WRITEs of 64 bytes in lists of 16.
    WriteRate,
}

impl Test {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// The program, and what it is told of sizes.
    pub(super) fn words(self) -> &'static str {
        match self {
            Test::ReadLat => "ib_read_lat -s 8",
            Test::WriteLat => "ib_write_lat -s 8",
            Test::SendLat => "ib_send_lat -s 8",
            Test::WriteBw => "ib_write_bw -s 1048576",
            Test::WriteRate => "ib_write_bw -s 64 -l 16",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Test::ReadLat | Test::WriteLat | Test::SendLat => "µs",
            Test::WriteBw => "GB/s",
            Test::WriteRate => "M/s",
        }
    }

    /// What two processes of one user should reach on one host.
    pub(super) fn target(self) -> Target {
        match self {
            Test::ReadLat => Target::AtMost(0.6),
            Test::WriteLat => Target::AtMost(1.0),
            Test::SendLat => Target::AtMost(1.5),
            Test::WriteBw => Target::AtLeast(10.0),
            Test::WriteRate => Target::AtLeast(3.0),
        }
    }

    /// One run of server and client.
    pub(super) fn measure(self, way: Way, elver: &Path) -> Result<f64, Failure> {
        let count = if self == Test::WriteBw { LARGE } else { SMALL };
        let words = format!("{} -n {count} -p {PORT}", self.words());
        let words: Vec<&str> = words.split(' ').collect();
        let part = Part {
            elver: Some(elver),
            words: &words,
            client: &[],
            opens: Opens::Socket,
            port: PORT,
            package: "perftest",
        };
        let said = pair::run(way, part)?;
        Ok(self.figure(&said).with_context(|| format!("`{}` said:\n{said}", self.words()))?)
    }

    /// The figure in what it printed: of the line that begins with the size.
    fn figure(self, said: &str) -> Result<f64> {
        let bytes = match self {
            Test::ReadLat | Test::WriteLat | Test::SendLat => "8",
            Test::WriteBw => "1048576",
            Test::WriteRate => "64",
        };
        let mut lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|line| line.first() == Some(&bytes) && line.len() >= COLUMNS_MIN);
        let line = line.context("no line of figures")?;
        // Bytes, iterations, and: least, most, typical time; or most and average MB/s, and M messages a second.
        let (column, factor) = match self {
            Test::ReadLat | Test::WriteLat | Test::SendLat => (4, 1.0),
            Test::WriteBw => (3, f64::from(1 << 20) / 1e9),
            Test::WriteRate => (4, 1.0),
        };
        let value: f64 =
            line[column].parse().with_context(|| format!("figure {:?}", line[column]))?;
        Ok(value * factor)
    }
}

const COLUMNS_MIN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// As perftest 4.5 prints them.
    const LATENCY: &str = "
 local address: LID 0000 QPN 0x4a57 PSN 0x63c5a5
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       20000          0.35           14.32        0.38     	       0.40    	0.11   		0.55    		1.20   
";
    const BANDWIDTH: &str = "
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 64         20000          300.10             250.00   		   4.096000
 1048576    1000           12000.10           10000.00		   0.010000
";

    #[test]
    fn figures_are_found() {
        assert_eq!(Test::SendLat.figure(LATENCY).unwrap(), 0.38);
        assert_eq!(Test::WriteRate.figure(BANDWIDTH).unwrap(), 4.096);
        assert!((Test::WriteBw.figure(BANDWIDTH).unwrap() - 10.485_76).abs() < 1e-9);
        assert!(Test::ReadLat.figure(BANDWIDTH).is_err());
        assert!(Test::ReadLat.figure("8 20000 a b c d").is_err());
    }
}
