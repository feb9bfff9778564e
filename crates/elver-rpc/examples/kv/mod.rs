//! What the service and its clients agree on.
#![allow(dead_code)] // Each of them uses a part of it.

use elver_rpc::{Method, message};

message! {
    /// Puts a value in place.
    #[derive(Clone, Debug)]
    pub struct Put {
        pub key: String,
        pub value: Vec<u8>,
    }
}

message! {
    /// A value, and how often it was put.
    #[derive(Clone, Debug)]
    pub struct Value {
        pub bytes: Vec<u8>,
        /// Since the second version: an older service does not say.
        pub revision: u64 = 0,
    }
}

pub const GET: Method<String, Value> = Method::new(1, "kv.Get");
pub const PUT: Method<Put, ()> = Method::new(2, "kv.Put");
pub const COUNT: Method<(), u64> = Method::new(3, "kv.Count");
