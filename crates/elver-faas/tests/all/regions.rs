//! What is larger than the region that each request has: it goes through memory that the handler registers itself, and
//! through no other.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use elver::{AccessFlags, RecvWr, Session, VqpOptions};
use elver_faas::schedule::Start;
use elver_random::Rng;
use elver_testkit::{Place, WAIT};
use serde_json::json;

use crate::platform::{python, wait_for_processes};
use crate::store::{BYTES, Store};

const PLACE: Place =
    Place { name: "faas-regions", network: 68, udp_ports: 28_400, registry_ports: 28_500 };

const UID: u32 = 62_014;

/// READs so many bytes, WRITEs and SENDs them in the opposite order, and says what it has read.
const HANDLERS: &str = r#"
import base64
import elver

def moves(event, context):
    length = event["bytes"]
    qp = context.qps[event["to"]]
    region = context.pd.alloc(length, "")
    try:
        qp.read(context.mr, 0, length, event["address"], event["rkey"], timeout=10)
        raise AssertionError(f"{length} bytes went into a region of {len(context.mr)}")
    except (elver.Error, ValueError):
        pass
    assert bytes(context.mr.read(0, len(context.mr))) == bytes(len(context.mr))
    qp.read(region, 0, length, event["address"], event["rkey"], timeout=10)
    seen = bytes(region.read(0, length))
    region.write(seen[::-1])
    qp.write(region, 0, length, event["address"] + event["into"], event["rkey"], timeout=10)
    context.pd.connect(event["to"], event["port"]).send(region, 0, length, timeout=10)
    return base64.b64encode(seen).decode()
"#;

#[test]
fn what_is_larger_than_the_given_region_goes_through_the_handlers_own() {
    let store = Store::new(&PLACE, 1);
    let functions =
        python("walter", UID, &["moves"]) + &format!("destinations = [{:?}]\n", store.gid());
    let mut platform = store.platform_with_python(&functions);
    std::fs::write(platform.code().join("handlers.py"), HANDLERS).unwrap();
    let session = Session::connect(&store.node.path).unwrap();
    let inbox = session.alloc(BYTES as u64, AccessFlags::LOCAL_WRITE).unwrap();
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let mut random = Rng::new(7);
    let starts = [(64 << 10, Start::Cold), ((32 << 10) + 1, Start::Fork), (BYTES / 2, Start::Fork)];
    for (bytes, expected) in starts {
        let written: Vec<u8> = (0..BYTES).map(|_| random.next_u64() as u8).collect();
        store.fill(&written);
        bound.post_recv(&[RecvWr { wr_id: 1, sges: &[inbox.sge(0, BYTES as u32)] }]).unwrap();
        let event = store.event(json!({"bytes": bytes, "into": BYTES / 2, "port": port}));
        let (start, answer) = platform.answer("walter-moves", event);
        assert_eq!(start, expected);
        let seen = STANDARD.decode(answer.as_str().unwrap()).unwrap();
        assert!(seen == written[..bytes], "{bytes} bytes were read otherwise than they are");
        let turned: Vec<u8> = seen.into_iter().rev().collect();
        let mut whole = written;
        whole[BYTES / 2..BYTES / 2 + bytes].copy_from_slice(&turned);
        assert!(store.contents() == whole, "{bytes} bytes were written otherwise, or elsewhere");
        let messages = bound.wait_msgs(WAIT).unwrap();
        let lengths: Vec<u32> = messages.iter().map(|message| message.wc.byte_len).collect();
        assert_eq!(lengths, [bytes as u32]);
        let mut came = vec![0; bytes];
        inbox.read(0, &mut came).unwrap();
        assert!(came == turned, "{bytes} bytes came otherwise than they were sent");
    }
    platform.end();
    wait_for_processes(UID, 0);
}
