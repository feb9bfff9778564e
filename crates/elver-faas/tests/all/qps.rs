//! `context.qps`: a dictionary of connections by GIDs, in whichever spelling.

use std::process::Command;

/// What of it asks nothing of a node: a connection that is there is whatever was put there.
const TRIES: &str = r#"
import elver_context

def refuses(kind, what):
    try:
        what()
    except kind as error:
        return str(error)
    raise AssertionError("it is taken")

V4, MAPPED, V6 = "10.0.0.1", "::FFFF:a00:1", "FE80:0::0001"
qps = elver_context.Connections(None, {}, False)
qps[MAPPED] = 1
assert V4 in qps and qps.get(V4) == qps[V4] == qps[MAPPED] == 1 and list(qps) == [V4], qps
assert V6 not in qps and qps.get(V6) is None and qps.get(V6, 7) == 7

# Each way to put one there knows it by its GID.
assert qps.setdefault("0::ffff:10.0.0.1", 2) == 1 and qps.setdefault(V6, 3) == 3 and qps["fe80::1"] == 3
qps.update({MAPPED: 4}, **{V6: 5})
qps.update([("fe80::2", 6)])
qps |= {"FE80::2": 7}
assert qps == {V4: 4, "fe80::1": 5, "fe80::2": 7}, qps

# What is no GID is not there, and is not put there.
NONE = ["nowhere", "10.0.0.01", "", None, 7, b"10.0.0.1", "10.0.0.1\0"]
for none in NONE:
    assert none not in qps and qps.get(none) is None and qps.get(none, 8) == 8 and qps.pop(none, 9) == 9
    refuses(KeyError, lambda: qps.pop(none))
    refuses(KeyError, lambda: qps.__delitem__(none))
    puts = [
        lambda: qps[none],
        lambda: qps.__setitem__(none, 1),
        lambda: qps.setdefault(none, 1),
        lambda: qps.update({none: 1}),
    ]
    for put in puts:
        said = refuses(ValueError, put)
        assert said.startswith(f"{none!r} is no GID, which is written"), said
assert len(qps) == 3

del qps["::ffff:10.0.0.1"]
assert qps.pop(V6) == 5 and list(qps) == ["fe80::2"]
"#;

#[test]
fn connections_are_known_by_their_gids_and_what_is_none_is_not_there() {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-B", "-c", TRIES]).env("ELVER_SOCKET", "/nonexistent");
    python.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
