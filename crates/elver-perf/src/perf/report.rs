//! What a measurement tells.

use elver_console::{Failure, say};
use elver_testbed::pair::Placement;
use serde_json::json;

use crate::perf::client::Measured;
use crate::perf::load::Load;

impl Measured {
    /// Operations a second.
    pub fn ops_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.ops as f64 / self.seconds } else { 0.0 }
    }

    /// Payload, in 10^9 bits a second.
    pub fn gbps(&self, size: u32) -> f64 {
        self.ops_per_s() * f64::from(size) * 8.0 / 1e9
    }

    /// A percentile of the latency, in microseconds.
    pub fn latency_us(&self, percentile: f64) -> f64 {
        self.latency.value_at_percentile(percentile) as f64 / 1e3
    }
}

/// Prints it; a failed operation fails the command.
pub(crate) fn print(
    load: &Load,
    placement: Placement,
    measured: &Measured,
    as_json: bool,
) -> Result<(), Failure> {
    let (min, max) = (measured.latency.min() as f64 / 1e3, measured.latency.max() as f64 / 1e3);
    let mean = measured.latency.mean() / 1e3;
    let percentile = |p| measured.latency_us(p);
    if as_json {
        let mut object = json!({
            "bench": "perf",
            "op": load.op,
            "transport": load.transport,
            "size": load.size,
            "mode": load.mode,
            "placement": placement,
            "ops_per_s": measured.ops_per_s(),
            "gbps": measured.gbps(load.size),
            "lat_us": {
                "min": min,
                "p50": percentile(50.0),
                "p99": percentile(99.0),
                "p999": percentile(99.9),
                "max": max,
                "mean": mean,
            },
            "retransmits": measured.retransmits,
            "errors": measured.errors,
        });
        if let Some(delivered) = measured.delivered {
            object["delivered"] = json!(delivered);
        }
        say!("{object}");
    } else {
        say!(
            "{:?} {:?} of {} bytes, {:?}, {:?}",
            load.transport,
            load.op,
            load.size,
            load.mode,
            placement
        );
        say!(
            "  rate        {:>14.0} ops/s   {:.3} Gbit/s",
            measured.ops_per_s(),
            measured.gbps(load.size)
        );
        say!(
            "  latency µs  {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "min",
            "p50",
            "p99",
            "p99.9",
            "max",
            "mean"
        );
        say!(
            "              {min:>10.3} {:>10.3} {:>10.3} {:>10.3} {max:>10.3} {mean:>10.3}",
            percentile(50.0),
            percentile(99.0),
            percentile(99.9)
        );
        say!("  retransmits {:>14}   errors {}", measured.retransmits, measured.errors);
        if let Some(delivered) = measured.delivered {
            say!("  delivered   {delivered:>14}");
        }
    }
    if measured.errors > 0 {
        return Err(Failure::Failed(anyhow::anyhow!("{} operations failed", measured.errors)));
    }
    Ok(())
}
