//! A program that makes calls of libibverbs in a given order, each timed: a process of its own, whose caches are cold.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use elver_random::Rng;
use serde::{Deserialize, Serialize};

use crate::verbs::Verbs;

/// A call of the control path, as figure 2 of the paper has them, and the first READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// `ibv_get_device_list`.
    List,
    /// `ibv_open_device`.
    Open,
    /// `ibv_query_port` and `ibv_query_gid`.
    Query,
    /// `ibv_alloc_pd`.
    Pd,
    /// `ibv_reg_mr` of 4 KB.
    Mr,
    /// `ibv_create_cq`.
    Cq,
    /// `ibv_create_qp`.
    Qp,
    /// `ibv_modify_qp` to INIT.
    Init,
    /// To RTR.
    Rtr,
    /// To RTS.
    Rts,
    /// A READ of 8 bytes of its own memory.
    Read,
}

impl Call {
    /// All, in the order in which a program makes them.
    pub const ALL: [Call; 11] = [
        Call::List,
        Call::Open,
        Call::Query,
        Call::Pd,
        Call::Mr,
        Call::Cq,
        Call::Qp,
        Call::Init,
        Call::Rtr,
        Call::Rts,
        Call::Read,
    ];

    /// Its name in plans and rows.
    pub fn name(self) -> &'static str {
        ["list", "open", "query", "pd", "mr", "cq", "qp", "init", "rtr", "rts", "read"]
            [self as usize]
    }

    /// What must have been called before.
    fn needs(self) -> &'static [Call] {
        match self {
            Call::List => &[],
            Call::Open => &[Call::List],
            Call::Query | Call::Pd | Call::Cq => &[Call::Open],
            Call::Mr => &[Call::Pd],
            Call::Qp => &[Call::Pd, Call::Cq],
            Call::Init => &[Call::Qp],
            Call::Rtr => &[Call::Init, Call::Query],
            Call::Rts => &[Call::Rtr],
            Call::Read => &[Call::Rts, Call::Mr],
        }
    }

    /// Whether it can be called again without spoiling what stands.
    fn can_repeat(self) -> bool {
        matches!(self, Call::List | Call::Query | Call::Pd | Call::Mr | Call::Cq | Call::Read)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Calls in an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan(pub Vec<Call>);

impl Plan {
    /// Each once, as a program makes them.
    pub fn usual() -> Plan {
        Plan(Call::ALL.to_vec())
    }

    /// Some, in an order in which they can be called, some of them again. Only the list where no device is.
    pub fn random(rng: &mut Rng, has_devices: bool) -> Plan {
        let mut calls = Vec::new();
        let length = if has_devices { 4 + rng.next_u64() % 21 } else { 1 + rng.next_u64() % 3 };
        while calls.len() < length as usize {
            let possible: Vec<Call> = Call::ALL
                .into_iter()
                .filter(|call| has_devices || *call == Call::List)
                .filter(|call| call.needs().iter().all(|needed| calls.contains(needed)))
                .filter(|call| call.can_repeat() || !calls.contains(call))
                // What was not called yet comes sooner, so that some plans reach the end.
                .flat_map(|call| {
                    std::iter::repeat_n(call, if calls.contains(&call) { 1 } else { 6 })
                })
                .collect();
            calls.push(possible[rng.next_u64() as usize % possible.len()]);
        }
        // A queue pair takes the domain and the queue that there are when it is made; memory of a later domain is not
        // its own.
        Plan(calls).without_strange_memory()
    }

    fn without_strange_memory(mut self) -> Plan {
        let made = self.0.iter().position(|call| *call == Call::Qp).unwrap_or(self.0.len());
        let mut at = 0;
        self.0.retain(|call| {
            at += 1;
            at <= made || !matches!(call, Call::Pd | Call::Cq)
        });
        // And a region is of the domain that was there when it was registered.
        let last_pd = self.0.iter().rposition(|call| *call == Call::Pd);
        let has_region = self.0.iter().rposition(|call| *call == Call::Mr) > last_pd;
        self.0.retain(|call| has_region || *call != Call::Read);
        let first_read = self.0.iter().position(|call| *call == Call::Read);
        let first_own = last_pd.and_then(|pd| {
            self.0[pd..].iter().position(|call| *call == Call::Mr).map(|at| pd + at)
        });
        if first_read < first_own {
            self.0.retain(|call| *call != Call::Read);
        }
        self
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|call| call.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        let call = |name: &str| {
            Call::ALL
                .into_iter()
                .find(|call| call.name() == name)
                .ok_or(format!("no call {name:?}"))
        };
        text.split(',').map(call).collect::<Result<_, _>>().map(Plan)
    }
}

/// What such a process measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    /// From the call that started it to its first line, if it was told when that was.
    pub start_us: Option<f64>,
    /// Loading libibverbs and what that needs.
    pub load_us: f64,
    /// Each call, in its order.
    pub calls: Vec<(Call, f64)>,
    /// Devices that the list had.
    pub devices: usize,
    /// The library that drives the open device.
    pub provider: Option<String>,
    /// Counters of the fast library, if that was loaded.
    pub counts: Option<Vec<u64>>,
}

/// Makes the calls, in this process.
///
/// # Errors
/// One fails.
pub fn make(plan: &Plan, device: Option<&str>, since_ns: Option<u64>) -> Result<Made> {
    let start_us = since_ns.map(|since| now_ns().saturating_sub(since) as f64 / 1e3);
    let begun = Instant::now();
    let mut verbs = Verbs::load()?;
    let load_us = us(begun);
    let mut devices = 0;
    let mut calls = Vec::with_capacity(plan.0.len());
    for call in &plan.0 {
        let begun = Instant::now();
        let done = match call {
            Call::List => verbs.list().map(|count| devices = count),
            Call::Open => verbs.open(device),
            Call::Query => verbs.query(),
            Call::Pd => verbs.alloc_pd(),
            Call::Mr => verbs.reg_mr(),
            Call::Cq => verbs.create_cq(),
            Call::Qp => verbs.create_qp(),
            Call::Init => verbs.make_init(),
            Call::Rtr => verbs.make_rtr(),
            Call::Rts => verbs.make_rts(),
            Call::Read => verbs.read(),
        };
        let took = us(begun);
        if let Err(error) = done {
            bail!("{call} in {plan}: {error:#}");
        }
        calls.push((*call, took));
    }
    let provider = verbs.provider().and_then(elver_hostcache::loaded::at);
    let provider = provider.map(|library| String::from_utf8_lossy(&library.path).into_owned());
    Ok(Made { start_us, load_us, calls, devices, provider, counts: verbs.counts() })
}

/// A clock that processes share.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1e3
}

/// What a process printed.
///
/// # Errors
/// It printed something else.
pub fn parse(output: &[u8]) -> Result<Made> {
    serde_json::from_slice(output)
        .with_context(|| format!("not what calls measured: {}", String::from_utf8_lossy(output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_plans_keep_the_order_that_calls_need() {
        let mut rng = Rng::new(7);
        let mut lengths = std::collections::BTreeSet::new();
        let mut reads = 0;
        for _ in 0..2_000 {
            let plan = Plan::random(&mut rng, true);
            for (at, call) in plan.0.iter().enumerate() {
                let before = &plan.0[..at];
                assert!(call.needs().iter().all(|needed| before.contains(needed)), "{plan}");
                assert!(call.can_repeat() || !before.contains(call), "{plan}");
                if *call == Call::Read {
                    let last = |wanted| before.iter().rposition(|call| *call == wanted);
                    assert!(last(Call::Mr) > last(Call::Pd), "{plan}");
                    reads += 1;
                }
            }
            lengths.insert(plan.0.len());
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        assert!(lengths.len() > 8 && reads > 50, "{lengths:?}, {reads}");
        assert_eq!(Plan::random(&mut Rng::new(1), true), Plan::random(&mut Rng::new(1), true));
        assert!(Plan::random(&mut rng, false).0.iter().all(|call| *call == Call::List));
    }

    #[test]
    fn plans_are_read() {
        assert_eq!("list,open".parse(), Ok(Plan(vec![Call::List, Call::Open])));
        assert!("list,close".parse::<Plan>().unwrap_err().contains("close"));
    }
}
