//! A store of values by key. It says its port, and serves until its input ends.
//!
//! Run it beside a daemon: `cargo run --release --example kv_service -p elver-rpc`, and then `kv_client
//! PORT`.

mod kv;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use elver::Session;
use elver_rpc::{Code, Server, ServerOptions, Status};
use kv::{COUNT, GET, PUT, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::connect_default()?;
    let mut server = Server::bind(&session, 0, ServerOptions::default())?;

    // A server has one thread, and so the store needs no lock.
    let store: Rc<RefCell<HashMap<String, Value>>> = Rc::default();
    let values = store.clone();
    server.on(GET, move |key, _| {
        let values = values.borrow();
        let value = values.get(&key).cloned();
        value.ok_or_else(|| Status::new(Code::NotFound, format!("there is no key {key:?}")))
    });
    let values = store.clone();
    server.on(PUT, move |put, _| {
        let mut values = values.borrow_mut();
        let value = values.entry(put.key).or_insert(Value { bytes: Vec::new(), revision: 0 });
        (value.bytes, value.revision) = (put.value, value.revision + 1);
        Ok(())
    });
    server.on(COUNT, move |(), _| Ok(store.borrow().len() as u64));

    println!("{}", server.port());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopped.store(true, Ordering::Relaxed);
    });
    server.run(&stop)?;
    println!("{} calls", server.counters().calls.succeeded);
    Ok(())
}
