//! Bytes by chance, through the targets whose doors other processes write to themselves: a hostile one needs no fuzzer.

use elver_random::Rng;

fn any_bytes(run: fn(&[u8])) {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(time, |seed| seed.parse().unwrap());
    println!("replay with SEED={seed}");
    let mut rng = Rng::new(seed);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..2_200).map(|_| rng.next_u32() as u8).collect();
        run(&bytes);
    }
}

#[test]
fn any_bytes_do_no_harm_to_a_gate() {
    any_bytes(elver_fuzz::gate::run);
}

#[test]
fn any_bytes_do_no_harm_to_a_program_over_libibverbs() {
    any_bytes(elver_fuzz::direct::run);
}
