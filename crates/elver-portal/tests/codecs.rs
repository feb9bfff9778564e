//! Every entry comes out of a ring as it went in.

mod common;

use elver_portal::{
    Answer, Class, Command, Completion, ConnectOptions, INLINE_MAX, Policy, PushError, Reach,
    Refusal, RefusalCode, Reply, Request, SGES_MAX, Scratch, TEXT_MAX, Via, VqpInfo, VqpOptions,
    VqpState, WARM_GIDS_MAX,
};
use elver_verbs::{
    AccessFlags, BindMw, Gid, Mr, Mw, Payload, PostError, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, Wc, WcFlags, WcOpcode, WcStatus,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use common::{ends, small};

#[derive(Clone, Debug)]
enum Local {
    Sges(Vec<Sge>),
    Inline(Vec<u8>),
}

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn access() -> impl Strategy<Value = AccessFlags> {
    any::<u32>().prop_map(AccessFlags::from_bits_truncate)
}

fn sge() -> impl Strategy<Value = Sge> {
    any::<(u64, u32, u32)>().prop_map(|(addr, length, lkey)| Sge { addr, length, lkey })
}

fn remote() -> impl Strategy<Value = RemoteAddr> {
    any::<(u64, u32)>().prop_map(|(addr, rkey)| RemoteAddr { addr, rkey })
}

fn operation() -> impl Strategy<Value = SendOp> {
    let bind = (any::<(u32, u32, u32, u64, u64)>(), access()).prop_map(
        |((mw, rkey, mr, addr, length), access)| {
            SendOp::BindMw(BindMw { mw: Mw(mw), rkey, mr: Mr(mr), addr, length, access })
        },
    );
    prop_oneof![
        Just(SendOp::Send),
        any::<u32>().prop_map(SendOp::SendWithImm),
        any::<u32>().prop_map(SendOp::SendWithInv),
        any::<u32>().prop_map(SendOp::LocalInv),
        remote().prop_map(SendOp::Write),
        remote().prop_map(SendOp::Read),
        (remote(), any::<u32>()).prop_map(|(remote, imm)| SendOp::WriteWithImm(remote, imm)),
        (remote(), any::<[u64; 2]>()).prop_map(|(remote, [compare, swap])| {
            SendOp::CompareSwap { remote, compare, swap }
        }),
        (remote(), any::<u64>()).prop_map(|(remote, add)| SendOp::FetchAdd { remote, add }),
        bind,
    ]
}

fn local() -> impl Strategy<Value = Local> {
    prop_oneof![
        vec(sge(), 0..=SGES_MAX).prop_map(Local::Sges),
        vec(any::<u8>(), 0..=INLINE_MAX).prop_map(Local::Inline),
    ]
}

fn payload(local: &Local) -> Payload<'_> {
    match local {
        Local::Sges(sges) => Payload::Sges(sges),
        Local::Inline(bytes) => Payload::Inline(bytes),
    }
}

type Send = (u32, u64, SendOp, SendFlags, Local);

fn send() -> impl Strategy<Value = Send> {
    let flags = any::<u8>().prop_map(SendFlags::from_bits_truncate);
    (0..3u32, any::<u64>(), operation(), flags, local())
}

fn command() -> impl Strategy<Value = (Command<'static>, Vec<Gid>)> {
    let options = (
        option::of(prop_oneof![Just(Class::High), Just(Class::Low)]),
        any::<(u32, u32, bool, bool)>(),
    );
    let policy = prop_oneof![
        Just(Policy::Shared),
        Just(Policy::Lite),
        Just(Policy::RpcMeta),
        Just(Policy::Leased)
    ];
    let options =
        options.prop_map(|(class, (max_send_wr, max_recv_wr, sq_sig_all, confirm_sends))| {
            VqpOptions { class, max_send_wr, max_recv_wr, sq_sig_all, confirm_sends }
        });
    let alone = prop_oneof![
        options.clone().prop_map(Command::CreateVqp),
        (any::<(u32, u16, bool)>(), gid(), policy.clone(), options.clone()).prop_map(
            |((set, port, uncached), gid, policy, options)| {
                let connect = ConnectOptions { policy, uncached };
                Command::PrepareVqp { set, gid, port, connect, options }
            }
        ),
        any::<u32>().prop_map(|vqp| Command::DestroyVqp { vqp }),
        any::<(u32, u16)>().prop_map(|(vqp, port)| Command::Bind { vqp, port }),
        (any::<(u32, u16, bool)>(), gid(), policy.clone()).prop_map(
            |((vqp, port, uncached), gid, policy)| {
                Command::Connect { vqp, gid, port, options: ConnectOptions { policy, uncached } }
            }
        ),
        (any::<(u64, u64, bool)>(), access())
            .prop_map(|((len, addr, huge), access)| Command::AllocMr { len, addr, access, huge }),
        (any::<(u64, u64, bool, u16)>(), access()).prop_map(|((len, addr, huge, near), access)| {
            Command::AllocMrNear { len, addr, access, huge, near }
        }),
        (any::<(u64, u64, u64)>(), access()).prop_map(|((len, offset, addr), access)| {
            Command::CarveMr { len, offset, addr, access }
        }),
        (any::<(u64, u64)>(), access()).prop_map(|((len, addr), access)| Command::RegisterMr {
            addr,
            len,
            access
        }),
        (any::<(u32, u64)>(), access()).prop_map(|((lkey, addr), access)| Command::ShareMr {
            lkey,
            addr,
            access
        }),
        (any::<(u32, u32, u64)>(), access()).prop_map(|((heirs, vqps, mr_len), access)| {
            Command::Prepare { heirs, vqps, mr_len, access }
        }),
        any::<(u32, u64, bool)>().prop_map(|(set, addr, must_connect)| Command::Seal {
            set,
            addr,
            must_connect
        }),
        any::<u32>().prop_map(|set| Command::Disown { set }),
        any::<[u32; 2]>().prop_map(|[vqp, rkey]| Command::Reach { vqp, rkey }),
        (any::<u32>(), options.clone())
            .prop_map(|(set, options)| Command::PrepareUnassigned { set, options }),
        (any::<([u32; 3], u16, bool)>(), gid(), policy.clone()).prop_map(
            |(([set, heir, at], port, uncached), gid, policy)| {
                let connect = ConnectOptions { policy, uncached };
                Command::Assign { set, heir, at, gid, port, connect }
            }
        ),
        any::<u32>().prop_map(|lkey| Command::DeregisterMr { lkey }),
        any::<u32>().prop_map(|vqp| Command::QueryVqp { vqp }),
        Just(Command::Goodbye),
    ];
    prop_oneof![
        9 => alone.prop_map(|command| (command, Vec::new())),
        1 => vec(gid(), 0..=WARM_GIDS_MAX).prop_map(|gids| (Command::Warm { gids: &[] }, gids)),
    ]
}

fn via() -> impl Strategy<Value = Via> {
    prop_oneof![Just(Via::Rc), Just(Via::DcCached), Just(Via::DcLookup), Just(Via::Leased)]
}

fn completion() -> impl Strategy<Value = Completion> {
    let opcode = prop_oneof![
        Just(WcOpcode::Send),
        Just(WcOpcode::RdmaWrite),
        Just(WcOpcode::RdmaRead),
        Just(WcOpcode::CompSwap),
        Just(WcOpcode::FetchAdd),
        Just(WcOpcode::BindMw),
        Just(WcOpcode::LocalInv),
        Just(WcOpcode::Recv),
        Just(WcOpcode::RecvRdmaWithImm),
    ];
    let numbers = any::<(u32, u64, u32, u32, u32, u32)>();
    (numbers, any::<u32>(), option::of(any::<u32>()), 0..WcStatus::ALL.len(), opcode).prop_map(
        |((vqp, wr_id, byte_len, imm_data, src_qp, vendor_err), flags, source, status, opcode)| {
            let wc = Wc {
                wr_id,
                status: WcStatus::ALL[status],
                opcode,
                flags: WcFlags::from_bits_truncate(flags),
                byte_len,
                imm_data,
                qp_num: vqp,
                src_qp,
                vendor_err,
                ..Wc::default()
            };
            Completion { vqp, source, wc }
        },
    )
}

fn info() -> impl Strategy<Value = VqpInfo> {
    let state = prop_oneof![
        Just(VqpState::Idle),
        Just(VqpState::Connecting),
        Just(VqpState::Connected),
        Just(VqpState::Error)
    ];
    let class = prop_oneof![Just(Class::High), Just(Class::Low)];
    let peer = option::of((gid(), any::<u16>()));
    let rest = (option::of(any::<u16>()), any::<(u32, u32)>());
    (state, class, option::of(via()), peer, rest).prop_map(
        |(state, class, via, peer, (bound, (outstanding, transfers)))| VqpInfo {
            state,
            class,
            via,
            bound,
            peer,
            outstanding,
            transfers,
        },
    )
}

proptest! {
    #[test]
    fn commands((command, gids) in command(), request: u32) {
        let (mut node, mut client) = ends(small());
        let command = match command {
            Command::Warm { .. } => Command::Warm { gids: &gids },
            other => other,
        };
        // Enough to wrap.
        for round in 0..40 {
            let request = request.wrapping_add(round);
            prop_assert!(client.command(request, &command).unwrap());
            let mut scratch = Scratch::default();
            match node.next_request(&mut scratch).unwrap() {
                Some(Request::Command { request: given, command: taken }) => {
                    prop_assert_eq!((given, taken), (request, command));
                }
                _ => prop_assert!(false, "no command"),
            }
        }
    }

    #[test]
    fn sends_in_order_and_in_batches(sends in vec(send(), 1..60)) {
        let (mut node, mut client) = ends(small());
        let mut scratch = Scratch::default();
        let (mut posted, mut taken) = (0, 0);
        while taken < sends.len() {
            while let Some((vqp, wr_id, op, flags, local)) = sends.get(posted) {
                let wr = SendWr {
                    wr_id: *wr_id,
                    op: *op,
                    flags: *flags,
                    payload: payload(local),
                    dest: None,
                };
                match client.send(*vqp, &wr) {
                    Ok(()) => posted += 1,
                    Err(PushError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let Some(Request::Sends { vqp, wrs }) = node.next_request(&mut scratch).unwrap() else {
                panic!("no sends");
            };
            wrs.with(|wrs| {
                assert!(!wrs.is_empty());
                for wr in wrs {
                    let (to, wr_id, op, flags, local) = &sends[taken];
                    assert_eq!((vqp, wr.wr_id, wr.op, wr.flags), (*to, *wr_id, *op, *flags));
                    match (&wr.payload, local) {
                        (Payload::Sges(given), Local::Sges(sges)) => assert_eq!(given, sges),
                        (Payload::Inline(given), Local::Inline(bytes)) => assert_eq!(given, bytes),
                        _ => panic!("another kind of payload"),
                    }
                    taken += 1;
                }
            });
        }
        prop_assert!(node.is_idle());
    }

    #[test]
    fn receives_in_order(
        posts in vec((0..2u32, any::<u64>(), vec(sge(), 0..=SGES_MAX)), 1..40),
    ) {
        let (mut node, mut client) = ends(small());
        let mut scratch = Scratch::default();
        let (mut posted, mut taken) = (0, 0);
        while taken < posts.len() {
            while let Some((vqp, wr_id, sges)) = posts.get(posted) {
                match client.receive(*vqp, &RecvWr { wr_id: *wr_id, sges }) {
                    Ok(()) => posted += 1,
                    Err(PushError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let receives = node.next_receives(&mut scratch).unwrap().expect("receives");
            receives.wrs.with(|wrs| {
                for wr in wrs {
                    let (vqp, wr_id, sges) = &posts[taken];
                    assert_eq!((receives.vqp, wr.wr_id, wr.sges), (*vqp, *wr_id, &sges[..]));
                    taken += 1;
                }
            });
        }
    }

    #[test]
    fn completions(completions in vec(completion(), 1..100)) {
        let (mut node, mut client) = ends(small());
        let mut scratch = Scratch::default();
        let mut given = completions.iter();
        for completion in &completions {
            while !node.complete(completion).unwrap() {
                let taken = client.next_reply(&mut scratch).unwrap();
                prop_assert_eq!(taken, given.next().copied().map(Reply::Completion));
            }
        }
        for completion in given {
            let taken = client.next_reply(&mut scratch).unwrap();
            prop_assert_eq!(taken, Some(Reply::Completion(*completion)));
        }
    }

    #[test]
    fn answers(
        info in info(), via in via(), numbers: [u32; 4], long: u64, access in access(), text in ".{0,300}",
    ) {
        let (mut node, mut client) = ends(small());
        let mut scratch = Scratch::default();
        let code = RefusalCode::ALL[numbers[0] as usize % RefusalCode::ALL.len()];
        let [request, one, two, port] = numbers;
        let refusal = Refusal { code, text: &text };
        let reach = Reach {
            door: one,
            generation: long,
            addr: !long,
            len: long / 3,
            access,
            file_bytes: long / 2,
        };
        let answers = [
            Answer::Done,
            Answer::Vqp(one),
            Answer::Port(port as u16),
            Answer::Connected(via),
            Answer::Warmed { ready: one, failed: two },
            Answer::Mr { lkey: one, rkey: two, file_bytes: long },
            Answer::Info(info),
            Answer::Prepared { set: one, file_bytes: long },
            Answer::Reached(reach),
            Answer::Refused(refusal),
        ];
        let short = text.len() <= TEXT_MAX;
        for answer in answers {
            prop_assert!(node.answer(request, &answer).unwrap());
            let taken = client.next_reply(&mut scratch).unwrap();
            match (taken, answer) {
                (
                    Some(Reply::Answer { answer: Answer::Refused(taken), .. }),
                    Answer::Refused(given),
                ) if !short => {
                    prop_assert!(given.text.starts_with(taken.text));
                    prop_assert!(taken.text.len() > TEXT_MAX - 4);
                }
                (taken, answer) => prop_assert_eq!(taken, Some(Reply::Answer { request, answer })),
            }
        }
        prop_assert!(node.vqp_failed(one, &refusal).unwrap());
        match client.next_reply(&mut scratch).unwrap() {
            Some(Reply::VqpFailed { vqp, cause }) => {
                prop_assert_eq!(vqp, one);
                prop_assert!(refusal.text.starts_with(cause.text));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn what_no_entry_can_carry_is_refused() {
    let (_node, mut client) = ends(small());
    let sges = [Sge::default(); SGES_MAX + 1];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&sges),
        dest: None,
    };
    let too_many = PostError::TooManySges { given: 33, max: 32 };
    assert_eq!(client.send(1, &wr), Err(PushError::Post(too_many)));
    let wr = SendWr { payload: Payload::Inline(&[0; INLINE_MAX + 1]), ..wr };
    let too_long = PostError::InlineTooLong { given: 513, max: 512 };
    assert_eq!(client.send(1, &wr), Err(PushError::Post(too_long)));
    assert_eq!(client.receive(1, &RecvWr { wr_id: 1, sges: &sges }), Err(too_many.into()));
}
