//! What was tried, and how it ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How one test, or one program with its options, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Pass,
    Fail,
    Skip,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Pass => "pass",
            Outcome::Fail => "fail",
            Outcome::Skip => "skip",
        })
    }
}

/// One row of the list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// `test_pd.PDTest.test_alloc_pd`, or a program and its options.
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// What it said when it did not pass.
    #[serde(default, skip)]
    pub(super) said: String,
    /// Why that is so, as somebody wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    /// Of a program: the transport, or nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) transport: String,
    /// Of a large program: where its two ends are.
    #[serde(default, rename = "where", skip_serializing_if = "String::is_empty")]
    pub(super) place: String,
    /// What it measured, if it measures.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) measured: String,
}

impl Item {
    pub(super) fn new(name: String, outcome: Outcome, said: String) -> Item {
        let [reason, transport, place, measured] = [const { String::new() }; 4];
        Item { name, outcome, said, reason, transport, place, measured }
    }

    pub(super) fn passes(&self) -> bool {
        self.outcome == Outcome::Pass
    }

    /// Whether it is one of those that are downloaded.
    pub(super) fn is_large(&self) -> bool {
        !self.place.is_empty()
    }

    /// Whether this is the same row of the list as another.
    pub(super) fn is(&self, other: &Item) -> bool {
        self.name == other.name && self.place == other.place
    }

    /// Whether it is one of rdma-core's tests.
    pub(super) fn is_test(&self) -> bool {
        self.name.starts_with("test_")
    }
}
