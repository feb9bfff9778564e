//! The table of `bench connect`, and what its rows must hold.

use elver_console::{say, table};
use elver_testbed::sample::Sample;
use serde_json::{Value, json};

use crate::args::Stage;
use crate::connect::full_verbs::Parts;
use crate::connect::notes;
use crate::report::contract::{self, Figures};
use crate::report::counted::Counted;
use crate::report::rows::{Figure, Row, Target};

/// What the rounds gave: a row for each name, number of clients and number of peers.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<TableRow>,
    pub(crate) read: Figure,
    pub(crate) parts: Parts,
}

struct TableRow {
    name: &'static str,
    clients: u32,
    peers: u32,
    figures: Figures,
    counted: Counted,
}

/// One measurement of a row.
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    pub(crate) counted: Counted,
    pub(crate) peers: u32,
}

impl Measured {
    /// Of what no node has a part in.
    pub(crate) fn without_node(sample: Sample) -> Measured {
        Measured { sample, counted: Counted::default(), peers: 1 }
    }
}

impl Table {
    pub(crate) fn push(&mut self, name: &'static str, clients: u32, measured: &Measured) {
        let Measured { sample, counted, peers } = measured;
        let key = |row: &TableRow| (row.name, row.clients, row.peers) == (name, clients, *peers);
        let at = self.rows.iter().position(key).unwrap_or_else(|| {
            let (figures, counted) = (Figures::default(), Counted::default());
            self.rows.push(TableRow { name, clients, peers: *peers, figures, counted });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.figures.push(sample);
        row.counted = row.counted.and(*counted);
    }

    pub(crate) fn p50(&self, name: &str) -> Option<Figure> {
        let row = self.rows.iter().find(|row| row.name == name && row.clients == 1);
        row.map(|row| row.figures.p50_us.clone())
    }

    pub(crate) fn as_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let mut told = json!({
                "name": row.name,
                "p50_us": contract::us(row.figures.p50_us.median()),
                "p99_us": contract::us(row.figures.p99_us.median()),
                "per_s": row.figures.per_s.median().round(),
                "clients": row.clients,
                "peers": row.peers,
            });
            row.counted.tell(&mut told);
            told["rc_before"] = json!(row.counted.rc_before);
            told
        });
        let read = contract::us(self.read.median());
        json!({
            "read_8b_us": {"p50": read},
            "rows": rows.collect::<Vec<_>>(),
            "verbs_parts_us": self.parts.as_json(),
            "notes": notes::of(self.rows.iter().map(|row| row.name)),
        })
    }

    pub(crate) fn print(&self) {
        say!("8 B READ from the meta server's host: {} µs", self.read.text());
        let rows = self.rows.iter().map(|row| {
            let [p50, p99, per_s] = row.figures.texts();
            let [reads, rpcs, rc, packets] = row.counted.texts();
            let (clients, peers) = (row.clients.to_string(), row.peers.to_string());
            [row.name.to_string(), clients, peers, p50, p99, per_s, reads, rpcs, rc, packets]
        });
        let heads = [
            "connect",
            "clients",
            "peers",
            "p50 µs [min … max]",
            "p99 µs",
            "connects/s",
            "READs",
            "RPCs",
            "RC QPs",
            "packets",
        ];
        table::print(heads, &rows.collect::<Vec<_>>(), 1);
        say!("\nREADs of meta servers, RPCs, RC QPs made and packets sent: of one connect.");
        notes::print(self.rows.iter().map(|row| row.name));
    }
}

/// What is promised, and whether it is held.
pub(crate) fn claims(table: &Table, stage: Stage) -> Vec<Row> {
    let (mut bounds, mut claims) = (Vec::new(), Vec::new());
    let mut claim = |name: &str, over: (&'static str, Option<Figure>), target| {
        let (Some(ours), (under, Some(baseline))) = (table.p50(name), over) else { return };
        let name = format!("{name} / {under}");
        claims.push(Row { name, unit: "µs", ours, baseline: Some((under, baseline)), target });
    };
    let read = || ("8 B READ", Some(table.read.clone()));
    let mut within = |name: &str, most| {
        let Some(ours) = table.p50(name) else { return };
        let (name, target) = (format!("{name} p50"), Target::AtMost(most));
        bounds.push(Row { name, unit: "µs", ours, baseline: None, target });
    };
    within("first-connect", 100.0);
    within("first-connect-host", 60.0);
    if stage == Stage::Host {
        within("vqp-dccache", 1.0);
        within("vqp-rc", 1.0);
        bounds.push(Row {
            name: "8 B READ p50".into(),
            unit: "µs",
            ours: table.read.clone(),
            baseline: None,
            target: Target::AtMost(1.5),
        });
    }
    claim("vqp-uncached", read(), Target::AtMost(1.6));
    if stage == Stage::Netns {
        claim("vqp-dccache", read(), Target::AtMost(0.1));
        claim("vqp-rc", read(), Target::AtMost(0.1));
    }
    // What is promised is promised between hosts: on one, rivals have no network to cross either.
    let between = |target| if stage == Stage::Host { Target::None } else { target };
    for rival in ["verbs", "lite-miss"] {
        let least =
            [("vqp-cold", 2.0), ("vqp-uncached", 2.0), ("vqp-dccache", 20.0), ("vqp-rc", 20.0)];
        for (ours, least) in least {
            claim(rival, (ours, table.p50(ours)), between(Target::AtLeast(least)));
        }
    }
    // What LITE has at hand is as fast as what we have at hand.
    claim("lite-hit", ("vqp-rc", table.p50("vqp-rc")), Target::None);
    claim("rpc-meta", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("vqp-uncached", table.p50("vqp-uncached")), Target::None);
    claim("tcp", ("first-connect", table.p50("first-connect")), Target::None);
    claim("exec-to-read", ("exec-to-tcp", table.p50("exec-to-tcp")), Target::None);
    bounds.extend(claims);
    bounds
}
