//! The rules of §4.1.3 one by one, then long random runs against a model that searches lists.

use elver_random::Rng;

use super::*;

#[test]
fn a_free_qp_with_the_destination_comes_first_then_an_unassigned_one() {
    let mut tables = Tables::new(1, 4);
    assert_eq!(tables.wanted(), 1);
    let plain = tables.add("plain", None).unwrap();
    let there = tables.add("there", Some("b")).unwrap();
    assert_eq!((plain, there), (QpId(0), QpId(1)));
    assert_eq!(tables.assign(10, "b"), Ok(Assigned { qp: there, connected: true }));
    assert_eq!(tables.assign(11, "b"), Ok(Assigned { qp: plain, connected: false }));
    assert_eq!(tables.assign(12, "b"), Err(NoQp::Exhausted { qps: 2 }));
    // Both lead to b now: c finds none, although one is free.
    assert_eq!(tables.ended(10), [there]);
    assert_eq!(tables.assign(13, "c"), Err(NoQp::Exhausted { qps: 2 }));
    assert_eq!(tables.wanted(), 1);
    assert_eq!(tables.destination(there), Some(&"b"));
    assert_eq!(tables.child(there), None);
}

#[test]
fn a_lost_qp_leaves_a_row_that_is_used_again() {
    let mut tables = Tables::<_, u8>::new(2, 2);
    tables.add('x', None);
    tables.add('y', None);
    assert_eq!(tables.add('z', None), None);
    assert_eq!(tables.lose(QpId(0)), Some('x'));
    assert_eq!((tables.lose(QpId(0)), tables.wanted()), (None, 1));
    assert_eq!(tables.add('z', None), Some(QpId(0)));
    assert_eq!(tables.close(), ['z', 'y']);
    assert_eq!(tables.qp(QpId(1)), None);
}

/// What the tables should be, as plain as it can be said.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    id: usize,
    qp: u64,
    child: Option<u32>,
    destination: Option<u8>,
}

#[test]
fn random_runs_agree_with_the_model() {
    let seeds = match std::env::var("ELVER_SEED") {
        Ok(seed) => vec![seed.parse().expect("ELVER_SEED is a number")],
        Err(_) => (0..200).collect(),
    };
    for seed in seeds {
        // Shown when the test fails.
        println!("ELVER_SEED={seed}");
        run(seed);
    }
}

fn run(seed: u64) {
    let mut random = Rng::new(seed);
    let (spare, qps_max) = (below(&mut random, 4) as usize, 1 + below(&mut random, 8) as usize);
    let mut tables = Tables::new(spare, qps_max);
    let mut model: Vec<Row> = Vec::new();
    let mut made = 0;
    for _ in 0..400 {
        match below(&mut random, 10) {
            0..=1 => {
                for _ in 0..tables.wanted() {
                    made += 1;
                    let id = tables.add(made, None).expect("it was wanted").0;
                    model.push(Row { id, qp: made, child: None, destination: None });
                    model.sort_by_key(|row| row.id);
                }
                let unassigned =
                    model.iter().filter(|r| r.child.is_none() && r.destination.is_none()).count();
                assert!(unassigned >= spare || model.len() == qps_max);
            }
            2..=5 => {
                let (child, wanted) = (below(&mut random, 6) as u32, below(&mut random, 3) as u8);
                let free = |d: Option<u8>| {
                    model.iter().position(|r| r.child.is_none() && r.destination == d)
                };
                let expected = free(Some(wanted)).or_else(|| free(None));
                let got = tables.assign(child, wanted);
                let Some(index) = expected else {
                    assert_eq!(got, Err(NoQp::Exhausted { qps: model.len() }));
                    continue;
                };
                let row = &mut model[index];
                let connected = row.destination.is_some();
                assert_eq!(got, Ok(Assigned { qp: QpId(row.id), connected }));
                (row.child, row.destination) = (Some(child), Some(wanted));
            }
            6..=8 => {
                let child = below(&mut random, 6) as u32;
                let freed = tables.ended(child);
                let mut expected = Vec::new();
                for row in model.iter_mut().filter(|row| row.child == Some(child)) {
                    row.child = None;
                    expected.push(QpId(row.id));
                }
                assert_eq!(freed, expected);
            }
            _ => {
                let id = below(&mut random, 8) as usize;
                let lost = model.iter().position(|row| row.id == id).map(|at| model.remove(at).qp);
                assert_eq!(tables.lose(QpId(id)), lost);
            }
        }
        for row in &model {
            let id = QpId(row.id);
            assert_eq!(tables.qp(id), Some(&row.qp));
            assert_eq!(tables.child(id), row.child);
            assert_eq!(tables.destination(id), row.destination.as_ref());
        }
    }
    assert_eq!(tables.close().len(), model.len());
}

fn below(random: &mut Rng, bound: u64) -> u64 {
    random.next_u64() % bound
}
