//! Functions that use libibverbs by themselves, by pyverbs over the preloaded library (`docs/preload.md`), in containers of
//! which none has a device.

use std::path::Path;
use std::process::Command;

use elver_faas::schedule::Start;
use elver_testkit::verbs_archive;
use serde_json::json;

use crate::platform::{Platform, python, wait_for_processes};

/// A connection to itself, made when the module is imported or in a request.
const HANDLERS: &str = r#"
import errno, json, os
import pyverbs.device as d
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

class Connection:
    def __init__(self):
        self.device = d.Context(name=d.get_device_list()[0].name.decode())
        self.pd = PD(self.device)
        self.cq = CQ(self.device, 8)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.mr = MR(self.pd, 64, access)
        self.mr.write("greeting", 8)
        cap = QPCap(max_send_wr=4, max_recv_wr=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        route = GlobalRoute(dgid=self.device.query_gid(1, 0), sgid_index=0)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.dest_qp_num = self.qp.qp_num
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attr)

    def read(self):
        wr = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[SGE(self.mr.buf + 32, 8, self.mr.lkey)])
        wr.set_wr_rdma(rkey=self.mr.rkey, addr=self.mr.buf)
        self.qp.post_send(wr)
        while not (done := self.cq.poll()[1]):
            pass
        assert done[0].status == e.IBV_WC_SUCCESS, done[0]
        return self.mr.read(8, 32).decode()

ahead = Connection() if os.environ.get("AHEAD") else None

def by_itself(event, context):
    if event == "idle":
        return None
    connection = ahead or Connection()
    return [connection.read(), connection.qp.qp_num, os.getpid()]

def by_a_child(event, context):
    """What a child that the handler forks gets of what its parent made; and what the parent has of it then."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = ahead.read()
        except PyverbsRDMAError as error:
            said = errno.errorcode[error.error_code]
        os.write(writes, json.dumps([said, Connection().read()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(os.read(reads, 1000)) + [ahead.read()]
"#;

/// A platform with functions of these handlers, whose libibverbs is the preloaded one.
fn platform(owner: &str, uid: u32, lines: &str, handlers: &[&str]) -> Platform {
    let library = format!("LD_LIBRARY_PATH = \"/var/task/{owner}-{}\"", handlers[0]);
    let with_it = format!("timeout_s = 20\nenvironment = {{ {library}{lines} }}\n");
    let functions = python(owner, uid, handlers).replace("timeout_s = 20\n", &with_it);
    let platform = Platform::start("", &functions);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    let linked = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../elver-preload/link.sh"))
        .arg(verbs_archive())
        .arg(platform.code().join("libibverbs.so.1"))
        .status();
    assert!(
        linked.unwrap().success() && Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir()
    );
    platform
}

/// An INIT process that has opened the device has that one's threads, and so is not forked: requests find its connection in it.
#[test]
fn what_is_opened_ahead_is_there_in_each_request() {
    let mut platform = platform("vera", 62_271, ", AHEAD = \"1\"", &["by_itself", "by_a_child"]);
    let (start, first) = platform.answer("vera-by_itself", json!(null));
    assert_eq!((start, &first[0]), (Start::Cold, &json!("greeting")));
    for _ in 0..3 {
        assert_eq!(platform.answer("vera-by_itself", json!(null)), (Start::Reuse, first.clone()));
    }
    // What it forks itself is told, and opens the device anew.
    for start in [Start::Warm, Start::Reuse] {
        let told = platform.answer("vera-by_a_child", json!(null));
        assert_eq!(told, (start, json!(["ENODEV", "greeting", "greeting"])));
    }
    platform.end();
    wait_for_processes(62_271, 0);
}

#[test]
fn children_open_the_device_themselves() {
    let mut platform = platform("vito", 62_272, "", &["by_itself"]);
    assert_eq!(platform.answer("vito-by_itself", json!("idle")).0, Start::Cold);
    for _ in 0..2 {
        let (start, answer) = platform.answer("vito-by_itself", json!(null));
        assert_eq!((start, &answer[0]), (Start::Fork, &json!("greeting")));
    }
    platform.end();
    wait_for_processes(62_272, 0);
}
