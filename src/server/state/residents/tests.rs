//! Tests of [`Residents`]: rules one by one, and random orders of events against what must always hold.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

type World = Residents<&'static str, u32>;

const SECOND: Duration = Duration::from_secs(1);

/// Models that need so many bytes of one memory.
fn world(room: u64, bytes: &[u64], idle: Idle) -> World {
    Residents::new(
        vec![Some(room)],
        bytes.iter().map(|&bytes| (Need { place: 0, bytes }, idle)),
    )
}

/// The tasks of the next step, as text.
fn tasks(world: &mut World, now: Duration) -> Vec<String> {
    let tasks = world.step(now).tasks.into_iter();
    let in_words = |task| match task {
        Task::Load(index) => format!("load {index}"),
        Task::Unload(index, _) => format!("unload {index}"),
    };
    tasks.map(in_words).collect()
}

/// Loads a model for one request, which stays in it until it is told to leave.
fn load(world: &mut World, index: usize, now: Duration) {
    assert_eq!(world.wait(index, 0, None), None);
    assert!(
        tasks(world, now).contains(&format!("load {index}")),
        "there is room"
    );
    assert_eq!(world.loaded(index, Ok("a model"), now), [0]);
}

/// The same, and nobody is in it afterwards.
fn load_only(world: &mut World, index: usize, now: Duration) {
    load(world, index, now);
    world.leave(index, now);
}

#[test]
fn a_model_is_loaded_once_for_all_who_wait() {
    let mut world = world(10, &[10], None);
    assert_eq!(world.enter(0, SECOND), None);
    assert!(world.wait(0, 1, None).is_none() && world.wait(0, 2, None).is_none());
    assert_eq!(tasks(&mut world, SECOND), ["load 0"]);
    assert!(world.wait(0, 3, None).is_none() && tasks(&mut world, SECOND).is_empty());
    assert_eq!(world.waiting(0), 3);
    assert_eq!(world.loaded(0, Ok("a model"), SECOND), [1, 2, 3]);
    assert_eq!(
        (world.enter(0, SECOND), world.waiting(0)),
        (Some("a model"), 0)
    );
}

#[test]
fn the_least_recently_used_go_first_and_only_as_many_as_must() {
    let mut world = world(10, &[4, 3, 3, 5], None);
    for (index, second) in [(0, 1), (1, 2), (2, 3)] {
        load_only(&mut world, index, SECOND * second);
    }
    assert_eq!(world.enter(0, SECOND * 4), Some("a model"));
    world.leave(0, SECOND * 4);
    world.wait(3, 9, None);
    assert_eq!(
        tasks(&mut world, SECOND * 5),
        ["unload 1", "unload 2"],
        "0 was used last, and 4 + 5 bytes fit"
    );
    world.unloaded(1, Ok(()));
    assert!(
        tasks(&mut world, SECOND * 6).is_empty(),
        "one of them is not enough"
    );
    world.unloaded(2, Ok(()));
    assert_eq!(tasks(&mut world, SECOND * 7), ["load 3"]);
}

#[test]
fn a_model_in_use_goes_last_and_ends_its_requests() {
    let mut world = world(10, &[5, 5, 5, 10], None);
    load(&mut world, 0, SECOND);
    load_only(&mut world, 1, SECOND * 2);
    world.wait(2, 9, None);
    assert_eq!(
        tasks(&mut world, SECOND * 3),
        ["unload 1"],
        "0 is older, but in use"
    );
    world.unloaded(1, Ok(()));
    assert_eq!(tasks(&mut world, SECOND * 3), ["load 2"]);
    world.loaded(2, Ok("another"), SECOND * 3);
    world.leave(2, SECOND * 3);
    world.wait(3, 9, None);
    assert_eq!(
        tasks(&mut world, SECOND * 4),
        ["unload 2"],
        "0 is to go too, when its request is done"
    );
    assert_eq!(world.enter(0, SECOND * 4), None, "it takes no more");
    world.unloaded(2, Ok(()));
    assert!(tasks(&mut world, SECOND * 5).is_empty());
    world.leave(0, SECOND * 6);
    assert_eq!(tasks(&mut world, SECOND * 6), ["unload 0"]);
    world.unloaded(0, Ok(()));
    assert_eq!(tasks(&mut world, SECOND * 7), ["load 3"]);
}

#[test]
fn a_small_model_does_not_overtake_a_large_one() {
    let mut world = world(10, &[6, 10, 2], None);
    load(&mut world, 0, SECOND);
    world.wait(1, 1, None);
    world.wait(2, 2, None);
    assert!(
        tasks(&mut world, SECOND).is_empty(),
        "2 would fit, but 1 came first"
    );
    world.leave(0, SECOND);
    assert_eq!(tasks(&mut world, SECOND), ["unload 0"]);
    world.unloaded(0, Ok(()));
    assert_eq!(tasks(&mut world, SECOND), ["load 1"]);
    assert_eq!(world.loaded(1, Ok("large"), SECOND), [1]);
    assert!(tasks(&mut world, SECOND).is_empty(), "1 is in use");
    world.leave(1, SECOND);
    assert_eq!(tasks(&mut world, SECOND), ["unload 1"]);
}

#[test]
fn what_nobody_uses_is_unloaded_after_a_time() {
    let mut world = world(10, &[5, 5], Some(SECOND * 5));
    load(&mut world, 0, SECOND);
    assert_eq!(
        (world.step(SECOND * 60).next, world.expires(0)),
        (None, None),
        "it is in use"
    );
    world.leave(0, SECOND * 61);
    assert_eq!(world.step(SECOND * 62).next, Some(SECOND * 66));
    assert_eq!(world.expires(0), Some(SECOND * 66));
    assert!(tasks(&mut world, SECOND * 65).is_empty());
    assert_eq!(tasks(&mut world, SECOND * 66), ["unload 0"]);
    world.unloaded(0, Ok(()));
    load_only(&mut world, 0, SECOND * 70);
    world.set_idle(0, None);
    assert!(tasks(&mut world, SECOND * 700).is_empty(), "it stays");
    world.set_idle(0, Some(Duration::ZERO));
    assert_eq!(tasks(&mut world, SECOND * 700), ["unload 0"]);
}

#[test]
fn a_load_that_fails_ends_those_who_wait_and_the_next_one_tries_again() {
    let mut world = world(10, &[5, 5], None);
    world.wait(0, 1, None);
    world.wait(1, 2, None);
    assert_eq!(tasks(&mut world, SECOND), ["load 0", "load 1"]);
    assert_eq!(world.loaded(0, Err("it is damaged".into()), SECOND), [1]);
    assert_eq!(world.phase(0), &Phase::Failed("it is damaged".into()));
    assert!(tasks(&mut world, SECOND).is_empty(), "nobody wants it");
    assert_eq!(world.loaded(1, Ok("a model"), SECOND), [2]);
    world.wait(0, 3, None);
    assert_eq!(tasks(&mut world, SECOND), ["load 0"]);
    world.loaded(0, Err("again".into()), SECOND);
    world.ask(0);
    assert_eq!(world.phase(0), &Phase::Unloaded, "a new try begins");
    assert_eq!(tasks(&mut world, SECOND), ["load 0"]);
}

#[test]
fn those_who_wait_no_more_are_forgotten() {
    let mut world = world(5, &[5, 5], None);
    load(&mut world, 0, SECOND);
    world.wait(1, 1, None);
    world.wait(1, 2, Some(SECOND * 3));
    world.retain(|waiter| *waiter != 1);
    let step = world.step(SECOND * 2);
    assert_eq!((step.next, step.expired), (Some(SECOND * 3), vec![]));
    assert_eq!(world.step(SECOND * 3).expired, [(1, 2)]);
    world.leave(0, SECOND * 4);
    assert_eq!(
        tasks(&mut world, SECOND * 4),
        ["unload 0"],
        "room was promised"
    );
    world.unloaded(0, Ok(()));
    assert!(
        tasks(&mut world, SECOND * 4).is_empty(),
        "nobody wants it any more"
    );
    world.ask(1);
    assert_eq!(
        tasks(&mut world, SECOND * 4),
        ["load 1"],
        "asked for without a request"
    );
}

#[test]
fn closing_ends_waits_and_unloads_all() {
    let mut world = world(10, &[3, 3, 3], None);
    load(&mut world, 0, SECOND);
    world.wait(1, 1, None);
    assert_eq!(tasks(&mut world, SECOND), ["load 1"]);
    assert_eq!(world.close(), [(1, 1)]);
    assert_eq!(world.wait(2, 7, None), Some(7));
    assert!(tasks(&mut world, SECOND).is_empty(), "0 has a request");
    assert!(world.loaded(1, Ok("late"), SECOND).is_empty());
    assert_eq!(tasks(&mut world, SECOND), ["unload 1"]);
    world.force();
    assert_eq!(tasks(&mut world, SECOND), ["unload 0"]);
    world.unloaded(0, Ok(()));
    assert!(!world.is_closed());
    world.unloaded(1, Ok(()));
    assert!(world.is_closed());
}

/// A model outside, as a plain reader of tasks sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outside {
    Gone,
    Coming,
    Here,
    Going,
}

/// Random requests to models, of which only some fit at the same time.
struct Fuzz {
    world: Residents<usize, u32>,
    room: u64,
    bytes: Vec<u64>,
    outside: Vec<Outside>,
    users: Vec<u32>,
    /// Waiters that were not answered yet, with their models.
    open: BTreeMap<u32, usize>,
    now: Duration,
    random: u64,
}

impl Fuzz {
    fn new(seed: u64) -> Self {
        let mut fuzz = Self {
            world: Residents::new(Vec::new(), std::iter::empty()),
            room: 10,
            bytes: Vec::new(),
            outside: vec![Outside::Gone; 5],
            users: vec![0; 5],
            open: BTreeMap::new(),
            now: Duration::ZERO,
            random: seed,
        };
        fuzz.bytes = (0..5).map(|_| 1 + fuzz.draw(10)).collect();
        let needs = fuzz.bytes.iter().map(|&bytes| Need { place: 0, bytes });
        let idle = seed.is_multiple_of(2).then_some(SECOND * 3);
        fuzz.world = Residents::new(vec![Some(fuzz.room)], needs.map(|need| (need, idle)));
        fuzz
    }

    /// A pseudorandom number below `below` (SplitMix64).
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    /// Looks at what is to be done, and checks that it may be.
    fn step(&mut self) {
        loop {
            let step = self.world.step(self.now);
            for (_, waiter) in &step.expired {
                assert!(
                    self.open.remove(waiter).is_some(),
                    "whoever waits is told once"
                );
            }
            if step.tasks.is_empty() {
                return;
            }
            for task in step.tasks {
                match task {
                    Task::Load(index) => {
                        assert_eq!(self.outside[index], Outside::Gone);
                        self.outside[index] = Outside::Coming;
                    }
                    Task::Unload(index, loaded) => {
                        assert_eq!(
                            (self.outside[index], loaded, self.users[index]),
                            (Outside::Here, index, 0)
                        );
                        self.outside[index] = Outside::Going;
                    }
                }
            }
            let held = self
                .outside
                .iter()
                .zip(&self.bytes)
                .filter(|(outside, _)| **outside != Outside::Gone);
            assert!(
                held.map(|(_, bytes)| bytes).sum::<u64>() <= self.room,
                "no more is loaded than there is room"
            );
        }
    }

    fn event(&mut self, waiter: u32, calms: bool) {
        let index = self.draw(5) as usize;
        match (self.draw(8), self.outside[index]) {
            (0..=2, _) if !calms => match self.world.enter(index, self.now) {
                Some(loaded) => {
                    assert_eq!((loaded, self.outside[index]), (index, Outside::Here));
                    self.users[index] += 1;
                }
                None => {
                    let deadline = (self.draw(3) == 0).then(|| self.now + SECOND * 2);
                    assert!(self.world.wait(index, waiter, deadline).is_none());
                    self.open.insert(waiter, index);
                }
            },
            (3, _) if self.users[index] > 0 => {
                self.users[index] -= 1;
                self.world.leave(index, self.now);
            }
            (4, Outside::Coming) => {
                let works = calms || self.draw(4) > 0;
                let outcome = if works {
                    Ok(index)
                } else {
                    Err("it fails".to_owned())
                };
                self.outside[index] = if works { Outside::Here } else { Outside::Gone };
                for waiter in self.world.loaded(index, outcome, self.now) {
                    assert_eq!(
                        self.open.remove(&waiter),
                        Some(index),
                        "whoever waits is told once"
                    );
                    self.users[index] += u32::from(works);
                }
            }
            (5, Outside::Going) => {
                self.outside[index] = Outside::Gone;
                self.world.unloaded(index, Ok(()));
            }
            (6, _) if !calms => drop(self.world.unload(index)),
            (7, _) if !calms && self.draw(4) == 0 => {
                let gone: BTreeSet<u32> = self
                    .open
                    .keys()
                    .copied()
                    .filter(|waiter| waiter % 3 == 0)
                    .collect();
                self.world.retain(|waiter| !gone.contains(waiter));
                self.open.retain(|waiter, _| !gone.contains(waiter));
            }
            _ => self.now += SECOND / 4,
        }
        self.step();
    }
}

#[test]
fn any_order_of_events_keeps_to_the_memory_and_answers_everybody() {
    for seed in 0..300 {
        let mut fuzz = Fuzz::new(seed);
        (0..400).for_each(|waiter| fuzz.event(waiter, false));
        let mut rest = 0;
        while !fuzz.open.is_empty() {
            fuzz.event(0, true);
            rest += 1;
            assert!(
                rest < 20_000,
                "seed {seed}: {:?} wait in vain: {:?}",
                fuzz.open,
                fuzz.world
            );
        }
    }
}
