//! What a test tells, in perftest's words.

use elver_console::{Failure, say};
use serde_json::{Value, json};

use crate::peers::{Role, Session};
use crate::perftest::args::PerftestArgs;
use crate::perftest::load::Load;
use crate::perftest::message::{Keys, RateReport};
use crate::perftest::outcome::{Outcome, Setting};

const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// Prints it.
pub(crate) fn print(
    args: &PerftestArgs,
    load: &Load,
    session: &Session,
    setting: &Setting,
    outcome: &Outcome,
) -> Result<(), Failure> {
    if args.json {
        say!("{}", as_json(args, load, session, setting, outcome));
        return Ok(());
    }
    say!("{RULE}");
    say!(" Test            : {:?}, {:?}", load.test, session.role);
    say!(" Connection type : {}", format!("{:?}", args.connection).to_uppercase());
    say!(" Mtu             : {}[B]", setting.mtu.bytes());
    say!(" Peer            : perftest {}", setting.peer_version);
    say!(" local address: {}", shown(&setting.own));
    say!(" remote address: {}", shown(&setting.theirs));
    say!("{RULE}");
    match outcome {
        Outcome::Rate(report) => print_rate(report),
        Outcome::Latency(times) => print_latency(load.size, &Latency::of(times)),
        Outcome::Served => say!(" The client measured; its own report is there."),
    }
    say!("{RULE}");
    Ok(())
}

fn print_rate(report: &RateReport) {
    say!(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]");
    say!(
        " {:<7}    {:<10}       {:<7.2}            {:<7.2}              {:<7.6}",
        report.size,
        report.iters,
        report.peak,
        report.average,
        report.messages
    );
}

fn print_latency(size: u32, latency: &Latency) {
    say!(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
         t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
    );
    say!(
        " {size:<7} {:<10}     {:<7.2}        {:<7.2}      {:<7.2}            {:<7.2}        \
         {:<7.2}         {:<7.2}                {:<7.2}",
        latency.count,
        latency.min,
        latency.max,
        latency.typical,
        latency.mean,
        latency.deviation,
        latency.p99,
        latency.p999
    );
}

/// A latency's shape, in microseconds.
struct Latency {
    count: usize,
    min: f64,
    max: f64,
    typical: f64,
    mean: f64,
    deviation: f64,
    p99: f64,
    p999: f64,
}

impl Latency {
    fn of(times_ns: &[u64]) -> Latency {
        let mut sorted: Vec<f64> = times_ns.iter().map(|ns| *ns as f64 / 1e3).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        let at = |share: f64| {
            let index = ((count as f64 * share) as usize).min(count.saturating_sub(1));
            sorted.get(index).copied().unwrap_or_default()
        };
        let divisor = count.max(1) as f64;
        let mean = sorted.iter().sum::<f64>() / divisor;
        let variance = sorted.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / divisor;
        Latency {
            count,
            min: at(0.0),
            max: at(1.0),
            typical: at(0.5),
            mean,
            deviation: variance.sqrt(),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

fn as_json(
    args: &PerftestArgs,
    load: &Load,
    session: &Session,
    setting: &Setting,
    outcome: &Outcome,
) -> Value {
    let mut object = json!({
        "bench": "perftest",
        "test": load.test,
        "role": session.role,
        "transport": args.connection,
        "size": load.size,
        "iters": load.iters,
        "mtu": setting.mtu.bytes(),
        "peer_version": setting.peer_version,
        "retransmits": session.device.counters().retransmits,
    });
    match outcome {
        Outcome::Rate(report) => {
            object["measured_by"] = json!(Role::Client);
            object["size"] = json!(report.size);
            object["iters"] = json!(report.iters);
            object["mb_per_s"] = json!(report.average);
            object["ops_per_s"] = json!(report.messages * 1e6);
        }
        Outcome::Latency(times) => {
            let latency = Latency::of(times);
            object["lat_us"] = json!({
                "min": latency.min,
                "p50": latency.typical,
                "p99": latency.p99,
                "p999": latency.p999,
                "max": latency.max,
                "mean": latency.mean,
            });
        }
        Outcome::Served => {}
    }
    object
}

/// An address as perftest shows it.
fn shown(keys: &Keys) -> String {
    let gid = std::net::Ipv6Addr::from(keys.remote.gid);
    format!(
        "QPN {:#06x} PSN {:#08x} OUT {:#04x} RKey {:#010x} VAddr {:#018x} GID {gid}",
        keys.remote.qpn, keys.remote.psn, keys.out_reads, keys.rkey, keys.vaddr
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_has_a_shape() {
        let times: Vec<u64> = (1..=1000).rev().map(|us| us * 1000).collect();
        let latency = Latency::of(&times);
        assert_eq!((latency.min, latency.typical, latency.max), (1.0, 501.0, 1000.0));
        assert_eq!((latency.p99, latency.p999, latency.mean), (991.0, 1000.0, 500.5));
        assert_eq!(Latency::of(&[]).max, 0.0);
    }
}
