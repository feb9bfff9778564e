//! Random runs in which containers and processes do as they please.

use elver_random::Rng;

use super::*;

#[test]
fn random_runs_answer_each_request_once_and_leave_nothing() {
    let seeds = match std::env::var("ELVER_SEED") {
        Ok(seed) => vec![seed.parse().expect("ELVER_SEED is a number")],
        Err(_) => (0..300).collect(),
    };
    for seed in seeds {
        // Shown when the test fails.
        println!("ELVER_SEED={seed}");
        World::new(seed).run();
    }
}

/// Containers and processes that start, answer, hang and die by chance.
struct World {
    random: Rng,
    now: Duration,
    schedule: Schedule,
    open: BTreeSet<RequestId>,
    starting: BTreeSet<ContainerId>,
    stuck: BTreeSet<ContainerId>,
    containers: BTreeMap<ContainerId, String>,
    processes: BTreeMap<ProcessId, (ContainerId, String)>,
    children: BTreeSet<(ProcessId, RequestId)>,
    taken: BTreeSet<(ProcessId, RequestId)>,
    sending: BTreeSet<(ProcessId, RequestId)>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Rng::new(seed),
            now: NOW,
            schedule: schedule(),
            open: BTreeSet::new(),
            starting: BTreeSet::new(),
            stuck: BTreeSet::new(),
            containers: BTreeMap::new(),
            processes: BTreeMap::new(),
            children: BTreeSet::new(),
            taken: BTreeSet::new(),
            sending: BTreeSet::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..500 {
            self.step();
            self.act();
            self.check();
        }
        // All that is left times out, and all containers go.
        for id in std::mem::take(&mut self.stuck) {
            self.end(id);
            self.act();
        }
        for _ in 0..20 {
            self.now += Duration::from_secs(61);
            self.schedule.tick(self.now);
            self.act();
            for container in std::mem::take(&mut self.starting) {
                self.schedule.container_runs(self.now, container);
                self.act();
            }
        }
        assert_eq!(self.open, BTreeSet::new(), "requests without an answer");
        assert_eq!(self.schedule.containers(), []);
        assert_eq!(self.schedule.table(), []);
        assert!(self.containers.is_empty());
        assert_eq!(self.schedule.next_tick(), None);
    }

    fn step(&mut self) {
        let now = self.now;
        match below(&mut self.random, 16) {
            0..=2 => {
                let function = ["f", "g", "h", "i"][below(&mut self.random, 4)];
                if let Ok(request) = self.schedule.request(now, function, NONE) {
                    self.open.insert(request);
                }
            }
            3 => {
                if let Some(container) = self.starting.pop_first() {
                    self.schedule.container_runs(now, container);
                }
            }
            4..=6 => {
                let Some(process) = self.any_process() else { return };
                self.schedule.asks(now, process);
                if let Some(taken) = self.schedule.take(now, process, None) {
                    assert!(self.open.contains(&taken.request));
                    assert!(self.taken.insert((process, taken.request)), "taken twice");
                }
            }
            7..=8 => {
                let Some((process, request)) = pick(&mut self.random, &self.taken) else { return };
                self.taken.remove(&(process, request));
                if self.schedule.answered(now, process, request).is_some() {
                    assert!(self.open.remove(&request), "answered twice");
                }
            }
            12 => {
                let Some((process, request)) = pick(&mut self.random, &self.taken) else { return };
                self.taken.remove(&(process, request));
                if self.schedule.answered_ahead(now, process, request).is_some() {
                    assert!(self.open.remove(&request), "answered twice");
                    self.sending.insert((process, request));
                }
            }
            13 => {
                if let Some(sends) = pick(&mut self.random, &self.sending) {
                    self.sending.remove(&sends);
                    self.schedule.sent(now, sends.0, sends.1);
                }
            }
            14 => {
                let coming: BTreeSet<_> = self.taken.union(&self.sending).copied().collect();
                let Some((process, request)) = pick(&mut self.random, &coming) else { return };
                self.taken.remove(&(process, request));
                self.sending.remove(&(process, request));
                if self.schedule.cut(now, process, request).is_some() {
                    assert!(self.open.remove(&request), "answered twice");
                }
            }
            15 => {
                let Some(request) = pick(&mut self.random, &self.open) else { return };
                if self.schedule.withdraw(request) {
                    self.open.remove(&request);
                }
            }
            9 => {
                let Some((process, request)) = pick(&mut self.random, &self.children) else {
                    return;
                };
                self.children.remove(&(process, request));
                self.schedule.child_ended(now, process, request, "by chance");
            }
            10 if below(&mut self.random, 3) == 0 => {
                let Some(process) = self.any_process() else { return };
                self.processes.remove(&process);
                self.schedule.process_ended(now, process, "by chance");
            }
            10 if below(&mut self.random, 3) == 0 => {
                let ids: BTreeSet<_> = self.containers.keys().copied().collect();
                if let Some(id) = pick(&mut self.random, &ids) {
                    self.end(id);
                }
            }
            11 if below(&mut self.random, 8) == 0 => {
                let ids: BTreeSet<_> = self.containers.keys().copied().collect();
                let Some(id) = pick(&mut self.random, &ids) else { return };
                self.starting.remove(&id);
                self.processes.retain(|_, (container, _)| *container != id);
                self.stuck.insert(id);
                match below(&mut self.random, 2) {
                    0 => self.schedule.container_ending(now, id, "by chance"),
                    _ => self.schedule.container_stays(now, id, "by chance"),
                }
            }
            _ => {
                self.now += Duration::from_millis(below(&mut self.random, 4000) as u64);
                self.schedule.tick(self.now);
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.schedule.poll() {
            match action {
                Action::Create(id, owner) => {
                    self.starting.insert(id);
                    assert!(self.containers.insert(id, owner).is_none());
                }
                Action::Spawn(container, process, _, function) => {
                    assert_eq!(
                        self.schedule.functions[&function].owner,
                        self.containers[&container]
                    );
                    assert!(!self.stuck.contains(&container));
                    self.processes.insert(process, (container, function));
                }
                Action::Fork(container, process, request, _) => {
                    assert_eq!(self.processes[&process].0, container);
                    self.children.insert((process, request));
                }
                Action::KillChild(_, process, request) => {
                    if self.children.remove(&(process, request)) {
                        self.schedule.child_ended(self.now, process, request, "killed");
                    }
                }
                Action::KillProcess(_, process) => {
                    self.processes.remove(&process);
                    self.schedule.process_ended(self.now, process, "killed");
                }
                Action::Delete(id) => self.end(id),
                Action::Fail(request, _) => assert!(self.open.remove(&request), "failed twice"),
            }
        }
    }

    fn check(&self) {
        assert!(self.schedule.containers.len() <= self.schedule.terms.containers_max);
        assert_eq!(self.schedule.requests.keys().copied().collect::<BTreeSet<_>>(), self.open);
        for (id, container) in &self.schedule.containers {
            assert!(container.processes.len() <= self.schedule.terms.processes_max);
            assert_eq!(self.containers[id], container.owner);
            for process in &container.processes {
                let function = &self.schedule.processes[process].function;
                assert_eq!(self.schedule.functions[function].owner, container.owner);
            }
        }
    }

    fn end(&mut self, id: ContainerId) {
        self.containers.remove(&id);
        self.starting.remove(&id);
        self.stuck.remove(&id);
        self.processes.retain(|_, (container, _)| *container != id);
        self.schedule.container_ended(self.now, id, "by chance");
    }

    fn any_process(&mut self) -> Option<ProcessId> {
        let ids = self.processes.keys().copied().collect();
        pick(&mut self.random, &ids)
    }
}

fn pick<T: Copy>(random: &mut Rng, of: &BTreeSet<T>) -> Option<T> {
    (!of.is_empty()).then(|| of.iter().copied().nth(below(random, of.len()))).flatten()
}

fn below(random: &mut Rng, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}
