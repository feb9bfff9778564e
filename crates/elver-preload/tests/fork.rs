//! Children of a process that has opened the device: `fork/fork.c`, and processes that Python starts.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

#[test]
fn children_have_devices_of_their_own() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fork/fork.c");
    let program = library().join("fork");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source).arg("-libverbs");
    succeeded("cc", &compiler.output().unwrap());
    let said = succeeded("fork", &command(&[program.to_str().unwrap()]).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}

/// As Python's multiprocessing does it, by `fork`: pyverbs in a parent and in its children.
#[test]
fn children_of_python_open_it_themselves() {
    const SCRIPT: &str = "
import multiprocessing, pyverbs.device as d
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.mr import MR
import pyverbs.enums as e
def gid(context):
    PD(context), CQ(context, 8), MR(PD(context), 4096, e.IBV_ACCESS_LOCAL_WRITE)
    return context.query_gid(1, 0).gid
def child(queue):
    context = d.Context(name=d.get_device_list()[0].name.decode())
    queue.put(gid(context))
    context.close()
ours = d.Context(name=d.get_device_list()[0].name.decode())
first = gid(ours)
context = multiprocessing.get_context('fork')
queue = context.Queue()
all = [context.Process(target=child, args=(queue,)) for _ in range(3)]
for one in all: one.start()
gids = [queue.get(timeout=30) for _ in all]
for one in all: one.join()
assert all and [one.exitcode for one in all] == [0, 0, 0], [one.exitcode for one in all]
assert len(set(gids + [first])) == 4, gids
assert gid(ours) == first
print('done')
";
    let output = command(&["/usr/bin/python3", "-c", SCRIPT]).output().unwrap();
    assert_eq!(succeeded("python3", &output), "done\n");
}
