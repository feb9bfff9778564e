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
}

impl Item {
    pub(super) fn new(name: String, outcome: Outcome, said: String) -> Item {
        Item { name, outcome, said, reason: String::new(), transport: String::new() }
    }

    pub(super) fn passes(&self) -> bool {
        self.outcome == Outcome::Pass
    }

    /// Whether it is one of rdma-core's tests.
    pub(super) fn is_test(&self) -> bool {
        self.name.starts_with("test_")
    }
}
