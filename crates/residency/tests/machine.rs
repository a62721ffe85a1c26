//! The state machine against a naive model, under random events.

use std::collections::{BTreeMap, BTreeSet};

use calypte_residency::policy::by_name;
use calypte_residency::predict::Guess;
use calypte_residency::{Command, Event, Key, LayerSize, Machine, SlotState, floor_bytes, share};
use proptest::prelude::*;

/// One random run: dimensions, budget above the floors, policy, and steps as (layer, union) with raw numbers that are
/// reduced to what exists.
#[derive(Clone, Debug)]
struct Script {
    layers: Vec<LayerSize>,
    surplus_bytes: u64,
    policy: &'static str,
    steps: Vec<(usize, Vec<u32>)>,
}

impl Script {
    fn machine(&self) -> Machine {
        let budget_bytes = floor_bytes(&self.layers) + self.surplus_bytes;
        Machine::new(&self.layers, budget_bytes, by_name(self.policy).unwrap()).unwrap()
    }

    fn steps(&self) -> impl Iterator<Item = (u32, Vec<u32>)> + '_ {
        self.steps.iter().map(|(layer, union)| {
            let layer = layer % self.layers.len();
            let experts = self.layers[layer].experts as u32;
            (layer as u32, union.iter().map(|e| e % experts).collect())
        })
    }
}

fn scripts() -> impl Strategy<Value = Script> {
    let layer = (1usize..14, 0usize..5, 1u64..30).prop_map(|(experts, top_k, slot_bytes)| LayerSize {
        experts,
        top_k,
        slot_bytes,
    });
    let union = prop::collection::vec(any::<u32>(), 0..14);
    (
        prop::collection::vec(layer, 1..5),
        0u64..400,
        prop::sample::select(calypte_residency::policy::NAMES),
        prop::collection::vec((0usize..4, union), 1..25),
    )
        .prop_map(|(layers, surplus_bytes, policy, steps)| Script {
            layers,
            surplus_bytes,
            policy,
            steps,
        })
}

/// What the machine should be doing, derived from its commands alone; every rule is checked at every command.
struct Model<'a> {
    script: &'a Script,
    machine: Machine,
    /// Slots that no layer loses to another one.
    shares: Vec<usize>,
    state: BTreeMap<Key, SlotState>,
    leases: BTreeMap<Key, u32>,
    union: BTreeSet<Key>,
    handed_out: BTreeSet<Key>,
    /// What the event under way wants read on a guess.
    prefetch: Option<Key>,
    log: Vec<Command>,
    asked: u64,
    hits: u64,
}

impl<'a> Model<'a> {
    fn new(script: &'a Script) -> Model<'a> {
        let machine = script.machine();
        let shares = share(&script.layers, machine.budget_bytes()).unwrap();
        for (share, size) in shares.iter().zip(&script.layers) {
            assert!(share.slots_even_share >= size.slots_floor());
        }
        Model {
            script,
            shares: shares.iter().map(|s| s.slots_even_share).collect(),
            machine,
            state: BTreeMap::new(),
            leases: BTreeMap::new(),
            union: BTreeSet::new(),
            handed_out: BTreeSet::new(),
            prefetch: None,
            log: Vec::new(),
            asked: 0,
            hits: 0,
        }
    }

    fn keys(&self, wanted: SlotState) -> Vec<Key> {
        let of = |(&key, &state): (&Key, &SlotState)| (state == wanted).then_some(key);
        self.state.iter().filter_map(of).collect()
    }

    fn leased(&self) -> Vec<Key> {
        let of = |(&key, &count): (&Key, &u32)| (count > 0).then_some(key);
        self.leases.iter().filter_map(of).collect()
    }

    fn used(&self) -> Vec<usize> {
        let mut used = vec![0; self.script.layers.len()];
        for key in self.state.keys() {
            used[key.layer as usize] += 1;
        }
        used
    }

    fn begin(&mut self, layer: u32, union: &[u32]) {
        self.union = union.iter().map(|&expert| Key { layer, expert }).collect();
        self.handed_out.clear();
        self.asked += self.union.len() as u64;
        let ready = |key: &&Key| self.state.get(key) == Some(&SlotState::Ready);
        self.hits += self.union.iter().filter(ready).count() as u64;
        self.apply(Event::Begin { layer, union }, layer);
    }

    /// `own`: the layer for which slots may be taken now.
    fn apply(&mut self, event: Event<'_>, own: u32) {
        match event {
            Event::Landed(key) => drop(self.state.insert(key, SlotState::Ready)),
            Event::Failed(key) => drop(self.state.remove(&key)),
            Event::Released(key) => *self.leases.get_mut(&key).unwrap() -= 1,
            Event::Abort => self.union.clear(),
            Event::Prefetch(key) | Event::Warm(key) | Event::Ahead { key, .. } => self.prefetch = Some(key),
            Event::Begin { .. }
            | Event::Stalled
            | Event::Shrink { .. }
            | Event::Sequence
            | Event::Expect { .. }
            | Event::Seed { .. } => {}
        }
        let before = self.used();
        let mut commands = Vec::new();
        self.machine.apply(event, &mut commands).unwrap();
        for &command in &commands {
            self.check_command(command);
        }
        self.log.extend(commands);
        self.prefetch = None;
        // The shares are at least the floors.
        let shares = self.shares.iter().zip(before.into_iter().zip(self.used()));
        for (layer, (&share, (before, after))) in shares.enumerate() {
            let kept = match event {
                Event::Ahead { after, .. } if after as usize == layer => {
                    self.script.layers[layer].slots_floor()
                }
                _ => share,
            };
            assert!(
                layer == own as usize || after >= before.min(kept),
                "layer {layer} lost a slot of its share"
            );
            assert_eq!(self.machine.slots_used(layer as u32), after);
        }
        self.check_agreement();
    }

    fn check_command(&mut self, command: Command) {
        match command {
            Command::Evict(key) => {
                assert_eq!(self.state.remove(&key), Some(SlotState::Ready), "evicted {key:?}");
                assert_eq!(self.leases.get(&key).copied().unwrap_or(0), 0, "leased {key:?}");
                let needed = self.union.contains(&key) && !self.handed_out.contains(&key);
                assert!(!needed, "{key:?} was not handed out yet");
            }
            Command::Load(key) => {
                assert!(self.union.contains(&key) || self.prefetch == Some(key), "{key:?} was not asked for");
                assert_eq!(self.state.insert(key, SlotState::Loading), None, "loaded {key:?}");
            }
            Command::HandOut(key) => {
                assert_eq!(self.state.get(&key), Some(&SlotState::Ready), "handed out {key:?}");
                assert!(self.union.contains(&key), "{key:?} was not asked for");
                assert!(self.handed_out.insert(key), "{key:?} twice");
                *self.leases.entry(key).or_default() += 1;
            }
        }
        let layers = self.script.layers.iter();
        let reserved = layers.zip(self.used());
        let reserved: u64 = reserved.map(|(size, used)| size.bytes(used.max(size.slots_floor()))).sum();
        assert!(reserved <= self.machine.budget_bytes(), "over budget");
    }

    fn check_agreement(&self) {
        let layers = self.script.layers.iter().enumerate();
        for key in layers.flat_map(|(layer, size)| {
            (0..size.experts as u32).map(move |expert| Key { layer: layer as u32, expert })
        }) {
            let state = self.state.get(&key).copied().unwrap_or_default();
            assert_eq!(self.machine.state(key), state, "{key:?}");
            let leases = self.leases.get(&key).copied().unwrap_or(0);
            assert_eq!(self.machine.leases(key), leases, "{key:?}");
        }
        let counts = self.machine.counts();
        assert_eq!((counts.hits, counts.hits + counts.misses), (self.hits, self.asked));
        let evicted = self.log.iter().filter(|c| matches!(c, Command::Evict(_)));
        assert_eq!(counts.evictions, evicted.count() as u64);
    }

    /// Runs the step to its end in an order that `choose` gives; `hold`: leases that are kept until after the step.
    fn finish_step(&mut self, layer: u32, choose: &mut dyn FnMut(usize) -> usize, hold: usize) {
        while self.machine.step_left() > 0 {
            let loading = self.keys(SlotState::Loading);
            let mut leased = self.leased();
            leased.truncate(leased.len().saturating_sub(hold));
            let before = self.log.len();
            match choose(loading.len() + leased.len().max(1)) {
                i if i < loading.len() => self.apply(Event::Landed(loading[i]), layer),
                i if !leased.is_empty() => {
                    self.apply(Event::Released(leased[i - loading.len()]), layer);
                }
                _ if loading.is_empty() => {
                    self.apply(Event::Stalled, layer);
                    if self.log.len() == before {
                        // Only leases that the caller keeps can stop a step.
                        assert!(hold > 0, "stuck");
                        return self.apply(Event::Abort, layer);
                    }
                }
                _ => {}
            }
        }
        assert_eq!(self.handed_out, self.union, "each exactly once, all of them");
    }

    fn whole_step(&mut self, layer: u32, union: &[u32], choose: &mut dyn FnMut(usize) -> usize) {
        self.begin(layer, union);
        self.finish_step(layer, choose, 0);
        self.release_all(layer);
    }

    fn release_all(&mut self, layer: u32) {
        while let Some(&key) = self.leased().first() {
            self.apply(Event::Released(key), layer);
        }
    }
}

/// A choice below `count`, from a stream of random numbers that never ends.
fn chooser(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |count| {
        // Xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % count.max(1) as u64) as usize
    }
}

/// Runs every step to its end with completions and releases in random order.
fn run(script: &Script, seed: u64) -> (Vec<Command>, Vec<BTreeSet<Key>>, Vec<Key>) {
    let mut model = Model::new(script);
    let mut choose = chooser(seed);
    let mut sets = Vec::new();
    for (layer, union) in script.steps() {
        model.whole_step(layer, &union, &mut choose);
        sets.push(model.handed_out.clone());
    }
    let resident = model.keys(SlotState::Ready);
    (model.log, sets, resident)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keeps_every_rule(script in scripts(), seed in any::<u64>()) {
        run(&script, seed);
    }

    #[test]
    fn same_events_give_same_commands(script in scripts(), seed in any::<u64>()) {
        prop_assert_eq!(run(&script, seed), run(&script, seed));
    }

    /// A slow disk changes when experts come, and nothing else.
    #[test]
    fn completion_order_changes_neither_sets_nor_residents(
        script in scripts(), a in any::<u64>(), b in any::<u64>()
    ) {
        let (log_a, sets_a, resident_a) = run(&script, a);
        let (log_b, sets_b, resident_b) = run(&script, b);
        prop_assert_eq!(sets_a, sets_b);
        prop_assert_eq!(resident_a, resident_b);
        let sorted = |mut log: Vec<Command>| { log.sort_by_key(|c| format!("{c:?}")); log };
        prop_assert_eq!(sorted(log_a), sorted(log_b));
    }

    /// Failures, aborts in the middle, and leases that outlive their step.
    #[test]
    fn survives_failures_aborts_and_late_releases(script in scripts(), seed in any::<u64>()) {
        let mut model = Model::new(&script);
        let mut choose = chooser(seed);
        for (layer, union) in script.steps() {
            model.begin(layer, &union);
            match choose(4) {
                0 => {
                    let loading = model.keys(SlotState::Loading);
                    if !loading.is_empty() {
                        let failed = loading[choose(loading.len())];
                        model.apply(Event::Failed(failed), layer);
                        // Reads left over from an aborted step concern nobody.
                        prop_assert_eq!(model.machine.step_failed(), model.union.contains(&failed));
                    }
                    model.apply(Event::Abort, layer);
                    for key in model.keys(SlotState::Loading) {
                        model.apply(Event::Landed(key), layer);
                    }
                    model.release_all(layer);
                    // The same step again now succeeds.
                    model.begin(layer, &union);
                    model.finish_step(layer, &mut choose, 0);
                }
                // The next step begins over an unfinished one, with its reads still in flight.
                1 => {}
                hold => model.finish_step(layer, &mut choose, hold - 2),
            }
            if choose(2) == 0 {
                model.release_all(layer);
            }
        }
    }

    /// Guesses of experts to keep and experts to read, right or wrong, before, between and over steps.
    #[test]
    fn guesses_break_no_rule(script in scripts(), seed in any::<u64>()) {
        let mut model = Model::new(&script);
        let mut choose = chooser(seed);
        for (layer, union) in script.steps() {
            if choose(8) == 0 {
                model.apply(Event::Sequence, layer);
            }
            let experts = script.layers[layer as usize].experts;
            let guess = |expert| Guess { expert: expert as u32, tokens_ahead: 1, probability: 0.5 };
            let guesses: Vec<Guess> = (0..choose(4)).map(|_| guess(choose(experts))).collect();
            model.apply(Event::Expect { layer, guesses: &guesses }, layer);
            model.begin(layer, &union);
            for _ in 0..choose(4) {
                let to = choose(script.layers.len());
                let key = Key { layer: to as u32, expert: choose(script.layers[to].experts) as u32 };
                let evictions = model.machine.counts().evictions;
                match choose(3) {
                    0 => model.apply(Event::Prefetch(key), key.layer),
                    1 => {
                        let after = choose(script.layers.len()) as u32;
                        model.apply(Event::Ahead { key, after }, key.layer);
                    }
                    _ => {
                        model.apply(Event::Warm(key), key.layer);
                        prop_assert_eq!(model.machine.counts().evictions, evictions, "nothing is given up for it");
                    }
                }
            }
            model.finish_step(layer, &mut choose, 0);
            model.release_all(layer);
        }
        let counts = model.machine.counts();
        prop_assert!(counts.prefetches_used + counts.prefetches_wasted <= counts.prefetches);
        let loads = model.log.iter().filter(|c| matches!(c, Command::Load(_))).count() as u64;
        prop_assert!(loads <= counts.misses + counts.prefetches);
    }

    /// Budgets shrink between steps, never grow, and are held from then on.
    #[test]
    fn shrinks_and_stays_so(script in scripts(), seed in any::<u64>()) {
        let mut model = Model::new(&script);
        let mut choose = chooser(seed);
        for (layer, union) in script.steps() {
            model.whole_step(layer, &union, &mut choose);
            let before = model.machine.budget_bytes();
            let asked = choose(3 * before as usize / 2 + 1) as u64;
            let floor = floor_bytes(&script.layers);
            let mut commands = Vec::new();
            model.machine.apply(Event::Shrink { budget_bytes: asked }, &mut commands).unwrap();
            prop_assert_eq!(model.machine.budget_bytes(), asked.max(floor).min(before));
            for command in commands {
                let Command::Evict(key) = command else { panic!("{command:?}") };
                prop_assert_eq!(model.state.remove(&key), Some(SlotState::Ready));
                model.log.push(command);
            }
            model.shares =
                share(&script.layers, model.machine.budget_bytes()).unwrap().iter().map(|s| s.slots_even_share).collect();
            model.check_agreement();
            prop_assert!(model.machine.used_bytes() <= model.machine.budget_bytes());
        }
    }

    /// When everything fits, nothing is read twice and nothing is evicted.
    #[test]
    fn whole_budget_reads_once(mut script in scripts(), seed in any::<u64>()) {
        script.surplus_bytes = calypte_residency::whole_bytes(&script.layers);
        let (log, ..) = run(&script, seed);
        let loads: Vec<_> = log.iter().filter(|c| matches!(c, Command::Load(_))).collect();
        let distinct: BTreeSet<_> = loads.iter().map(|c| format!("{c:?}")).collect();
        prop_assert_eq!(loads.len(), distinct.len());
        let evicts = log.iter().any(|c| matches!(c, Command::Evict(_)));
        prop_assert!(!evicts);
    }
}

/// Commands of a run in which every read lands at once, in order, and every lease is released at once, as a string:
/// `+` load, `-` evict, `!` hand out, with layer.expert.
fn check(
    layers: &[(usize, usize, u64)],
    budget_bytes: u64,
    policy: &str,
    steps: &[(u32, &[u32])],
    expected: &[&str],
) {
    let layers: Vec<LayerSize> =
        layers.iter().map(|&(experts, top_k, slot_bytes)| LayerSize { experts, top_k, slot_bytes }).collect();
    let mut machine = Machine::new(&layers, budget_bytes, by_name(policy).unwrap()).unwrap();
    let mut got = Vec::new();
    for &(layer, union) in steps {
        let mut commands = Vec::new();
        machine.apply(Event::Begin { layer, union }, &mut commands).unwrap();
        let mut done = 0;
        let mut text = Vec::new();
        while done < commands.len() {
            let (sign, key, event) = match commands[done] {
                Command::Evict(key) => ('-', key, None),
                Command::Load(key) => ('+', key, Some(Event::Landed(key))),
                Command::HandOut(key) => ('!', key, Some(Event::Released(key))),
            };
            text.push(format!("{sign}{}.{}", key.layer, key.expert));
            if let Some(event) = event {
                machine.apply(event, &mut commands).unwrap();
            }
            done += 1;
        }
        assert_eq!(machine.step_left(), 0);
        got.push(text.join(" "));
    }
    assert_eq!(got, expected);
}

#[test]
fn scripted_runs() {
    // A union within the slots: hits first come first, the misses are read in the order given.
    check(
        &[(8, 2, 10)],
        30,
        "lru",
        &[(0, &[3, 1]), (0, &[1, 2]), (0, &[4, 5]), (0, &[4, 4, 5])],
        &["+0.3 +0.1 !0.3 !0.1", "+0.2 !0.1 !0.2", "-0.3 -0.1 +0.4 +0.5 !0.4 !0.5", "!0.4 !0.5"],
    );
    // Two slots, four experts: the two with the lowest numbers pass, the others stay.
    check(
        &[(8, 2, 10)],
        20,
        "dfreq",
        &[(0, &[5, 1, 6, 2]), (0, &[5, 6])],
        &["+0.1 +0.2 !0.1 !0.2 -0.1 +0.5 -0.2 +0.6 !0.5 !0.6", "!0.5 !0.6"],
    );
    // Layer 0 borrows what layer 1 does not use, and gives it back, but no more than that.
    check(
        &[(4, 1, 10), (4, 1, 10)],
        40,
        "lru",
        &[(0, &[0, 1, 2]), (1, &[0, 1]), (0, &[0, 1]), (1, &[2, 3]), (0, &[0, 1])],
        &[
            "+0.0 +0.1 +0.2 !0.0 !0.1 !0.2",
            "-0.0 +1.0 +1.1 !1.0 !1.1",
            "-0.2 +0.0 !0.1 !0.0",
            "-1.0 -1.1 +1.2 +1.3 !1.2 !1.3",
            "!0.0 !0.1",
        ],
    );
    // What layer 0 borrows from the idle layer 2 is not for layer 1, which has its share.
    check(
        &[(4, 1, 10), (4, 1, 10), (4, 1, 10)],
        60,
        "lru",
        &[(0, &[0, 1, 2]), (1, &[0, 1]), (1, &[2, 3]), (2, &[0, 1])],
        &[
            "+0.0 +0.1 +0.2 !0.0 !0.1 !0.2",
            "+1.0 +1.1 !1.0 !1.1",
            "-1.0 -1.1 +1.2 +1.3 !1.2 !1.3",
            "-0.0 +2.0 +2.1 !2.0 !2.1",
        ],
    );
    // Hits make way so that misses do not trickle in one at a time: 0 and 1 of three.
    check(
        &[(8, 2, 10)],
        30,
        "dfreq",
        &[(0, &[0, 1, 2]), (0, &[0, 1, 2, 3, 4])],
        &["+0.0 +0.1 +0.2 !0.0 !0.1 !0.2", "!0.0 !0.1 !0.2 -0.0 +0.3 -0.1 +0.4 !0.3 !0.4"],
    );
}

/// Cyclic scans over more layers than a shared LRU could hold: floors keep their hits.
#[test]
fn cyclic_scan_still_hits() {
    let layers = [LayerSize { experts: 8, top_k: 2, slot_bytes: 10 }; 6];
    for policy in calypte_residency::policy::NAMES {
        let mut machine = Machine::new(&layers, floor_bytes(&layers) + 30, by_name(policy).unwrap()).unwrap();
        for _pass in 0..4 {
            for layer in 0..6 {
                let mut commands = Vec::new();
                machine.apply(Event::Begin { layer, union: &[1, 2] }, &mut commands).unwrap();
                let mut done = 0;
                while done < commands.len() {
                    match commands[done] {
                        Command::Load(key) => machine.apply(Event::Landed(key), &mut commands).unwrap(),
                        Command::HandOut(key) => machine.apply(Event::Released(key), &mut commands).unwrap(),
                        Command::Evict(_) => {}
                    }
                    done += 1;
                }
            }
        }
        let counts = machine.counts();
        assert_eq!((counts.hits, counts.misses, counts.evictions), (36, 12, 0), "{policy}");
    }
}

/// A guess that comes true is used, one that does not is wasted, and one whose read is still under way is a miss.
#[test]
fn prefetches_are_accounted() {
    let layers = [LayerSize { experts: 8, top_k: 2, slot_bytes: 10 }];
    let mut machine = Machine::new(&layers, 30, by_name("lru").unwrap()).unwrap();
    let key = |expert| Key { layer: 0, expert };
    let mut tell = |event: Event<'_>, expected: &[Command]| {
        let mut commands = Vec::new();
        machine.apply(event, &mut commands).unwrap();
        assert_eq!(commands, expected, "{event:?}");
        machine.counts()
    };
    tell(Event::Prefetch(key(1)), &[Command::Load(key(1))]);
    tell(Event::Prefetch(key(1)), &[]);
    tell(Event::Landed(key(1)), &[]);
    tell(Event::Prefetch(key(2)), &[Command::Load(key(2))]);
    // 1 is here, 2 is on its way.
    let counts = tell(Event::Begin { layer: 0, union: &[1, 2] }, &[Command::HandOut(key(1))]);
    assert_eq!((counts.hits, counts.misses, counts.prefetches_used), (1, 1, 2));
    tell(Event::Landed(key(2)), &[Command::HandOut(key(2))]);
    tell(Event::Released(key(1)), &[]);
    tell(Event::Released(key(2)), &[]);
    tell(Event::Prefetch(key(3)), &[Command::Load(key(3))]);
    tell(Event::Landed(key(3)), &[]);
    let counts = tell(
        Event::Begin { layer: 0, union: &[1, 4] },
        &[Command::Evict(key(3)), Command::Load(key(4)), Command::HandOut(key(1))],
    );
    assert_eq!((counts.prefetches, counts.prefetches_used, counts.prefetches_wasted), (3, 2, 1));
}

#[test]
fn refuses_what_does_not_exist() {
    let layers = [LayerSize { experts: 4, top_k: 2, slot_bytes: 10 }; 2];
    let mut machine = Machine::new(&layers, 40, by_name("lru").unwrap()).unwrap();
    let mut commands = Vec::new();
    let guesses = [Guess { expert: 4, tokens_ahead: 1, probability: 1.0 }];
    let unknown: [Event<'_>; 10] = [
        Event::Warm(Key { layer: 0, expert: 4 }),
        Event::Seed { layer: 2, shares: &[] },
        Event::Prefetch(Key { layer: 0, expert: 4 }),
        Event::Expect { layer: 0, guesses: &guesses },
        Event::Expect { layer: 2, guesses: &[] },
        Event::Begin { layer: 0, union: &[1, 4] },
        Event::Begin { layer: 2, union: &[] },
        Event::Landed(Key { layer: 0, expert: 4 }),
        Event::Failed(Key { layer: 9, expert: 0 }),
        Event::Released(Key { layer: 1, expert: u32::MAX }),
    ];
    for event in unknown {
        assert!(machine.apply(event, &mut commands).is_err(), "{event:?}");
    }
    // Events that fit no state change nothing.
    let known = Key { layer: 0, expert: 1 };
    for event in
        [Event::Landed(known), Event::Failed(known), Event::Released(known), Event::Stalled, Event::Abort]
    {
        machine.apply(event, &mut commands).unwrap();
    }
    assert_eq!((commands, machine.used_bytes()), (Vec::new(), 0));
    let refused = Machine::new(&layers, 39, by_name("lru").unwrap()).map(|_| ());
    assert!(refused.unwrap_err().to_string().contains("at least 1 bytes"));
}
