//! Children of a process that has opened the device: `fork/fork.c`, and processes that Python starts.

mod common;

use std::fs;
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
    let told = tempfile::tempdir().unwrap();
    let mut program = command(&[program.to_str().unwrap()]);
    let said = succeeded("fork", &program.env("XDG_RUNTIME_DIR", told.path()).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
    // Each told all that it did, however it ended: the grandchild, the children, and the process itself.
    let files = fs::read_dir(told.path().join("elver")).unwrap();
    let mut copies: Vec<u64> = files.map(|file| copies(&file.unwrap().path())).collect();
    copies.sort_unstable();
    assert_eq!(copies, [1, 50, 50, 50, 51, 1 + 4 + 4 * 50 + 1]);
}

/// WRITEs within the device of a process, by the file in which it told what it counted (`elver_soft::published`).
fn copies(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..][..8].try_into().unwrap());
    let count = word(2) as usize;
    let text = std::str::from_utf8(&bytes[(3 + count) * 8..]).unwrap();
    let at = text.lines().skip(2).position(|name| name == "local_copies").unwrap();
    word(3 + at)
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
