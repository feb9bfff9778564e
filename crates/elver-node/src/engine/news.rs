//! What the registry told and the engine has not heard: of each node the last alone, so that whoever keeps the node
//! registered waits for nobody, however long the engine is not driven.

use elver_core::NodeRecord;
use elver_verbs::Gid;
use rustc_hash::FxHashMap;

use crate::registry::News;

/// Nodes of which something may wait. Of others nothing is kept: their records are looked up when they are wanted.
const NODES_MAX: usize = 1 << 17;

type Nodes = FxHashMap<Gid, Option<NodeRecord>>;

/// News that wait.
#[derive(Default)]
pub(super) struct Waiting {
    servers: Option<News>,
    registered: Option<News>,
    refused: Option<News>,
    /// What was told of nodes, but for the list that has begun last.
    nodes: Nodes,
    /// These are a whole list, and what came behind it: nodes that are not among them are gone.
    is_whole: bool,
    /// A list has ended that had begun before these, and whether it was whole.
    ended: Option<bool>,
    /// What a list told that has begun among these and has not ended.
    list: Option<Nodes>,
}

impl Waiting {
    /// Adds to them.
    pub(super) fn put(&mut self, news: News) {
        match news {
            News::MetaServers(_) => self.servers = Some(news),
            News::Registered { .. } => self.registered = Some(news),
            News::Refused { .. } => self.refused = Some(news),
            News::Node { gid, record } => {
                let nodes = self.list.as_mut().unwrap_or(&mut self.nodes);
                if nodes.len() < NODES_MAX || nodes.contains_key(&gid) {
                    nodes.insert(gid, record);
                }
            }
            News::ListBegin => {
                // One that has not ended says nothing of nodes that it did not tell of.
                if let Some(broken) = self.list.replace(Nodes::default()) {
                    self.nodes.extend(broken);
                }
            }
            News::ListEnd { complete } => match self.list.take() {
                Some(list) if complete => {
                    (self.nodes, self.is_whole, self.ended) = (list, true, None);
                }
                Some(list) => self.nodes.extend(list),
                None => self.ended = Some(complete),
            },
        }
    }

    /// All of them.
    pub(super) fn told(self) -> impl Iterator<Item = News> {
        let Waiting { servers, registered, refused, nodes, is_whole, ended, list } = self;
        let begins = list.is_some();
        let told = |nodes: Nodes| nodes.into_iter().map(|(gid, record)| News::Node { gid, record });
        let ended = if is_whole { Some(true) } else { ended };
        (servers.into_iter().chain(registered).chain(refused))
            .chain(is_whole.then_some(News::ListBegin))
            .chain(told(nodes))
            .chain(ended.map(|complete| News::ListEnd { complete }))
            .chain(begins.then_some(News::ListBegin))
            .chain(told(list.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn gid(number: u8) -> Gid {
        Gid([number; 16])
    }

    fn record(dc_key: u64) -> NodeRecord {
        NodeRecord { dc_key, ..crate::registry::samples::record(1) }
    }

    /// What one who hears all of it knows.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Knows {
        nodes: BTreeMap<Gid, u64>,
        unnamed: BTreeSet<Gid>,
    }

    impl Knows {
        fn hear(&mut self, news: News) {
            match news {
                News::Node { gid, record } => {
                    self.unnamed.remove(&gid);
                    match record {
                        Some(record) => self.nodes.insert(gid, record.dc_key),
                        None => self.nodes.remove(&gid),
                    };
                }
                News::ListBegin => self.unnamed = self.nodes.keys().copied().collect(),
                News::ListEnd { complete } => {
                    for gid in std::mem::take(&mut self.unnamed) {
                        if complete {
                            self.nodes.remove(&gid);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    #[test]
    fn who_hears_them_late_knows_what_one_knows_who_heard_each() {
        let seed = 1_234_567_u64;
        println!("seed {seed}");
        let mut state = seed;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % end
        };
        let (mut each, mut late, mut waiting) =
            (Knows::default(), Knows::default(), Waiting::default());
        let mut is_open = false;
        for step in 0..200_000 {
            let news = match below(20) {
                0 => {
                    is_open = true;
                    News::ListBegin
                }
                1..4 if is_open => {
                    is_open = false;
                    News::ListEnd { complete: below(2) == 0 }
                }
                4..9 => News::Node { gid: gid(below(12) as u8), record: None },
                _ => News::Node { gid: gid(below(12) as u8), record: Some(record(step)) },
            };
            each.hear(news.clone());
            waiting.put(news);
            if below(9) == 0 {
                std::mem::take(&mut waiting).told().for_each(|news| late.hear(news));
                assert_eq!(late.nodes, each.nodes, "step {step}");
            }
        }
    }

    #[test]
    fn of_each_node_the_last_waits_and_of_so_many() {
        let mut waiting = Waiting::default();
        for number in 0..2 * NODES_MAX as u64 {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_ne_bytes());
            for key in 0..2 {
                waiting.put(News::Node { gid: Gid(bytes), record: Some(record(key)) });
            }
        }
        let told: Vec<News> = waiting.told().collect();
        assert_eq!(told.len(), NODES_MAX);
        let last =
            |news: &News| matches!(news, News::Node { record: Some(one), .. } if one.dc_key == 1);
        assert!(told.iter().all(last));
    }
}
