//! A node's metrics in the text form of OpenMetrics.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::Status;
use crate::status::LatencyStatus;

/// What HTTP calls the text form.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What of the engine's can become less.
const ENGINE_GAUGES: [&str; 5] =
    ["asides_standing", "asides_waiting", "heirs_free", "mappings", "memory_bytes_waiting"];

/// The metrics as text.
pub(crate) fn encode(status: &Status) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(status.clone())));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode_text(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Metrics(Status);

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = &self.0;
        for (name, help, value) in [
            ("elver_sessions", "Sessions", status.sessions.len() as u64),
            (
                "elver_sessions_active",
                "Sessions that did something a moment ago",
                status.sessions.iter().filter(|session| session.active).count() as u64,
            ),
            ("elver_vqps", "Virtual queue pairs", status.vqps_total),
            (
                "elver_vqps_going",
                "Virtual queue pairs that nobody has any longer",
                status.vqps_going,
            ),
            ("elver_peers", "Peers whose metadata is remembered", status.peers_total),
            (
                "elver_connection_bytes",
                "Bytes that connections take: pool, peers, caches",
                status.connection_bytes,
            ),
            (
                "elver_registered",
                "Meta servers that have this node in their table",
                u64::from(status.registered),
            ),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        latencies(&mut encoder, &status.latencies)?;
        counters(&mut encoder, "core", &status.core, elver_core::Stats::GAUGES)?;
        counters(&mut encoder, "engine", &status.engine, &ENGINE_GAUGES)?;
        counters(&mut encoder, "device", &status.device, &[])?;
        counters(&mut encoder, "registry", &status.registry, &[])
    }
}

/// Gauges by operation and quantile: the sample is of all the node's time.
fn latencies(
    encoder: &mut DescriptorEncoder<'_>,
    latencies: &[LatencyStatus],
) -> Result<(), fmt::Error> {
    if latencies.is_empty() {
        return Ok(());
    }
    let help = "How long send work requests took, of a sample, in nanoseconds";
    let name = "elver_wr_latency_nanoseconds";
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for one in latencies {
        for (quantile, ns) in
            [("0.5", one.p50_ns), ("0.99", one.p99_ns), ("0.999", one.p999_ns), ("1", one.max_ns)]
        {
            let labels = [("op", one.op.as_str()), ("quantile", quantile)];
            let gauge = ConstGauge::new(i64::try_from(ns).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    part: &str,
    counters: &BTreeMap<String, u64>,
    gauges: &[&str],
) -> Result<(), fmt::Error> {
    for (name, value) in counters {
        let full = format!("elver_{part}_{name}");
        let help = format!("{} of the {part}", name.replace('_', " "));
        if gauges.contains(&name.as_str()) {
            gauge(encoder, &full, &help, *value)?;
        } else {
            let counter = ConstCounter::new(*value);
            counter.encode(encoder.encode_descriptor(
                &full,
                &help,
                None,
                counter.metric_type(),
            )?)?;
        }
    }
    Ok(())
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_gauges_are_told_apart() {
        let mut status = Status { connection_bytes: 77, ..Status::default() };
        status.core.insert("lookups".to_string(), 3);
        status.core.insert("vqps".to_string(), 4);
        status.core.insert("dcis_down".to_string(), 1);
        status.engine.insert("asides_standing".to_string(), 5);
        status.engine.insert("asides_put_off".to_string(), 6);
        let (samples, p50_ns, p99_ns, p999_ns, max_ns) = (9, 1_000, 2_000, 3_000, 4_000);
        let op = "read".to_string();
        status.latencies = vec![LatencyStatus { op, samples, p50_ns, p99_ns, p999_ns, max_ns }];
        let text = encode(&status);
        let line = "elver_wr_latency_nanoseconds{op=\"read\",quantile=\"0.99\"} 2000\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("# TYPE elver_core_lookups counter"), "{text}");
        assert!(text.contains("elver_core_lookups_total 3"), "{text}");
        assert!(text.contains("# TYPE elver_core_vqps gauge"), "{text}");
        assert!(text.contains("elver_core_dcis_down 1\n"), "no counter either: {text}");
        assert!(text.contains("elver_engine_asides_standing 5\n"), "{text}");
        assert!(text.contains("elver_engine_asides_put_off_total 6\n"), "{text}");
        assert!(text.contains("elver_connection_bytes 77"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
