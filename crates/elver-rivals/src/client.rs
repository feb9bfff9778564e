use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use clap::{Args, value_parser};
use hdrhistogram::Histogram;
use http::uri::PathAndQuery;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::codec::Raw;

/// What is asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Load {
    /// Calls under way.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    in_flight: u32,
    /// Seconds, after a tenth of it to warm up.
    #[arg(long, default_value_t = 0.2)]
    duration: f64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    size: usize,
}

/// Longest latency that is told apart: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Measures; a line of JSON.
pub(crate) async fn measure(address: SocketAddr, load: &Load) -> Result<String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
    let channel = endpoint.connect().await?;
    let (start, end) = {
        let start = Instant::now() + Duration::try_from_secs_f64(load.duration * 0.1)?;
        (start, start + Duration::try_from_secs_f64(load.duration)?)
    };
    let latencies = Arc::new(Mutex::new(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?));
    let tasks: Vec<_> = (0..load.in_flight)
        .map(|_| {
            let (channel, latencies) = (channel.clone(), latencies.clone());
            tokio::spawn(call(channel, load.size, start, end, latencies))
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let latencies = latencies.lock().map_err(|_| anyhow!("a task has failed"))?;
    let counts: Vec<_> = latencies
        .iter_recorded()
        .map(|bar| (bar.value_iterated_to(), bar.count_at_value()))
        .collect();
    Ok(serde_json::json!({ "seconds": seconds, "counts": counts }).to_string())
}

/// One call after the other.
async fn call(
    channel: Channel,
    size: usize,
    start: Instant,
    end: Instant,
    latencies: Arc<Mutex<Histogram<u64>>>,
) -> Result<()> {
    let mut grpc = Grpc::new(channel);
    let message = Bytes::from(vec![1; size]);
    let path = PathAndQuery::from_static("/bench.Echo/Echo");
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(());
        }
        grpc.ready().await?;
        let request = Request::new(message.clone());
        let answer = grpc.unary(request, path.clone(), Raw).await?.into_inner();
        ensure!(answer == message, "the answer is another");
        if began >= start {
            let mut latencies = latencies.lock().map_err(|_| anyhow!("a task has failed"))?;
            latencies.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
}
