//! A hash table that its owner writes and its clients read by themselves: the owner answers nobody, and a look-up is one
//! READ for nearly every key.
//!
//! Run it beside a daemon: `cargo run -p elver --features kv --example table`.

use elver::kv::{Descriptor, Layout, Reader, Store};
use elver::{Error, Gid, Session};

const CITIES: u32 = 1_000;

fn main() -> Result<(), Error> {
    // The owner. Keys have one length; values are short, since they lie where the READ looks.
    let owner = Session::connect_default()?;
    let mut store = Store::alloc(&owner, Layout::for_capacity(CITIES, 4, 24)?)?;
    for number in 0..CITIES {
        store.insert(&number.to_le_bytes(), format!("city {number}").as_bytes())?;
    }
    store.update(&7_u32.to_le_bytes(), b"a town by now")?;
    store.remove(&8_u32.to_le_bytes())?;

    // 40 bytes say all that a client must know, beside the node's GID.
    let told = store.descriptor()?.encode();
    look_up(owner.gid(), &told)?;
    // From here on nobody reads there any more.
    store.close()
}

fn look_up(gid: Gid, told: &[u8]) -> Result<(), Error> {
    let client = Session::connect_default()?;
    // Whatever came as a descriptor, nothing outside of a table is read with it.
    let mut reader = Reader::connect(&client, gid, Descriptor::decode(told)?)?;
    let mut found = 0;
    for number in 0..CITIES {
        match reader.get(&number.to_le_bytes())? {
            Some(name) if number == 7 => assert_eq!(&name[..], b"a town by now"),
            Some(name) => assert_eq!(&name[..], format!("city {number}").as_bytes()),
            None => assert_eq!(number, 8),
        }
        found += 1;
    }
    println!("{found} look-ups took {} READs", reader.counters().reads);
    Ok(())
}
