//! What one repetition of a benchmark saw.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

/// Longest latency that is told apart: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The share of the duration that is run before the measurement.
pub const WARM_UP: f64 = 0.1;

/// Latencies, and how many in which time.
pub struct Sample {
    latency: Histogram<u64>,
    seconds: f64,
    /// Operations that one latency stands for.
    weight: u64,
}

impl Sample {
    /// One that has seen nothing.
    ///
    /// # Errors
    ///
    /// There is no memory for the latencies.
    pub fn new() -> Result<Sample> {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
        Ok(Sample { latency, seconds: 0.0, weight: 1 })
    }

    /// What was measured elsewhere: so many operations in so many seconds.
    pub fn measured(latency: Histogram<u64>, seconds: f64, ops: u64) -> Sample {
        let weight = ops.checked_div(latency.len()).unwrap_or(1);
        Sample { latency, seconds, weight }
    }

    /// Whose latencies are each a batch's of so many operations.
    ///
    /// # Errors
    ///
    /// There is no memory for the latencies.
    pub fn of_batches(batch: usize) -> Result<Sample> {
        Ok(Sample { weight: batch as u64, ..Sample::new()? })
    }

    /// Records one of many under way.
    pub fn record(&mut self, latency: Duration) {
        self.latency.saturating_record(latency.as_nanos() as u64);
    }

    /// Records one that stands alone: the times of all together are the time of the measurement.
    pub fn add(&mut self, latency: Duration) {
        self.record(latency);
        self.seconds += latency.as_secs_f64();
    }

    /// Latencies in nanoseconds, with how often each was recorded.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let recorded = self.latency.iter_recorded();
        recorded.map(|bar| (bar.value_iterated_to(), bar.count_at_value())).collect()
    }

    /// Records what another one has counted.
    pub fn add_counts(&mut self, counts: &[(u64, u64)]) {
        for (latency_ns, count) in counts {
            self.latency.saturating_record_n(*latency_ns, *count);
        }
    }

    /// What several saw at the same time; none if there are none. Who began together is not done at the same moment: the longest
    /// time counts for all.
    pub fn at_once(samples: impl IntoIterator<Item = Sample>) -> Option<Sample> {
        let mut samples = samples.into_iter();
        let mut all = samples.next()?;
        for other in samples {
            all.add_counts(&other.counts());
            all.seconds = all.seconds.max(other.seconds);
        }
        Some(all)
    }

    /// All of it was in this time.
    pub fn took(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
    }

    /// And so much longer.
    pub fn took_more(&mut self, time: Duration) {
        self.seconds += time.as_secs_f64();
    }

    /// A percentile in microseconds; not a number if nothing was recorded.
    pub fn us(&self, percentile: f64) -> f64 {
        if self.latency.is_empty() {
            return f64::NAN;
        }
        self.latency.value_at_percentile(percentile) as f64 / 1e3
    }

    /// The mean in microseconds; not a number if nothing was recorded.
    pub fn mean_us(&self) -> f64 {
        if self.latency.is_empty() { f64::NAN } else { self.latency.mean() / 1e3 }
    }

    /// Operations a second.
    pub fn per_s(&self) -> f64 {
        if self.seconds > 0.0 {
            (self.latency.len() * self.weight) as f64 / self.seconds
        } else {
            0.0
        }
    }
}

/// The time of a measurement, its warm-up in front.
pub struct Clock {
    start: Instant,
    end: Instant,
    duration: Duration,
    warming: bool,
}

impl Clock {
    /// Starts the warm-up.
    pub fn new(duration: Duration) -> Clock {
        let start = Instant::now();
        Clock { start, end: start + duration.mul_f64(WARM_UP), duration, warming: true }
    }

    /// Whether there is more to measure; what was recorded in the warm-up is forgotten at its end.
    #[inline]
    pub fn goes_on(&mut self, sample: &mut Sample) -> bool {
        let now = Instant::now();
        if now < self.end {
            return true;
        }
        if !self.warming {
            // A figure needs one at least.
            return sample.latency.is_empty();
        }
        self.warming = false;
        sample.latency.reset();
        self.start = Instant::now();
        self.end = self.start + self.duration;
        true
    }

    /// The measurement has ended.
    pub fn finish(&self, sample: &mut Sample) {
        sample.seconds = self.start.elapsed().as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_at_once_the_operations_add_up_in_the_longest_time() {
        let sample = |count, seconds| {
            let mut sample = Sample::of_batches(10).unwrap();
            (0..count).for_each(|_| sample.record(Duration::from_micros(5)));
            sample.took(Duration::from_secs(seconds));
            sample
        };
        let all = Sample::at_once([sample(3, 1), sample(5, 2)]).unwrap();
        assert_eq!(all.per_s(), 40.0);
        assert!((all.mean_us() - 5.0).abs() < 0.01, "{}", all.mean_us());
        assert!(Sample::at_once([]).is_none());
    }
}
