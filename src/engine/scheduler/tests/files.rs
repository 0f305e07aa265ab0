//! Tests of blocks in host memory and in files.

use super::*;

/// A scheduler with room in host memory for what it reads from files.
fn with_files() -> Scheduler {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10],
        disk: DiskUse::Read,
    };
    let mut limits = scheduler(None, 40, true).queues.limits;
    limits.max_num_seqs = 1;
    limits.memory.tiers = tiers;
    Scheduler::new(limits)
}

#[test]
fn files_are_known_from_when_they_are_found_until_they_are_lost() {
    let mut scheduler = with_files();
    let key = |group| (group, BlockHash::root(&[3; 32], None, None, None));
    scheduler.queues.memory.found_files([key(0), key(1)]);
    assert_eq!(
        scheduler.queues.memory.files().len(),
        1,
        "the model has one group"
    );
    scheduler.queues.memory.lost_files([key(0)]);
    assert_eq!(scheduler.queues.memory.files().len(), 0);
}

#[test]
fn files_of_those_who_wait_for_a_seat_are_read_ahead() {
    let mut scheduler = with_files();
    let running = add(&mut scheduler, 0, (5, 40), 0, false);
    scheduler.queues.sequences[running].tokens = vec![50; 5];
    add(&mut scheduler, 1, (5, 40), 0, false);
    let hash = BlockHash::root(&[3; 32], None, None, None).next(&[3; 32], &[0, 1, 2, 3]);
    scheduler.queues.memory.found_files([(0, hash)]);
    step(&mut scheduler);
    assert_eq!((scheduler.running_len(), scheduler.waiting_len()), (1, 1));
    assert_eq!(scheduler.queues.memory.take_disk_jobs().len(), 1);
}

#[test]
fn a_block_can_be_found_once_its_last_token_is_read() {
    let mut scheduler = scheduler(None, 40, true);
    let id = add(&mut scheduler, 0, (3, 9), 0, false);
    let first = scheduler.schedule(64).expect("it waits");
    let second = scheduler
        .schedule(64)
        .expect("it goes on with a token that is not read yet");
    assert!(scheduler.queues.sequences[id].holding.hashes.is_empty());
    commit(&mut scheduler, &first);
    let hash = BlockHash::root(&[3; 32], None, None, None).next(&[3; 32], &[0, 1, 2, 0]);
    assert!(scheduler.pool().groups()[0].lookup(&hash).is_some());
    commit(&mut scheduler, &second);
}

#[test]
fn after_a_failed_batch_only_what_it_should_have_filled_is_forgotten() {
    let mut scheduler = scheduler(None, 40, true);
    add(&mut scheduler, 0, (20, 9), 0, false);
    let batch = scheduler.schedule(8).expect("it waits");
    commit(&mut scheduler, &batch);
    let batch = scheduler.schedule(6).expect("it continues");
    drop(scheduler.fail(&batch, RequestError::Internal));
    assert!(!scheduler.queues.by_stream.contains_key(&StreamId(0)));
    assert_eq!(found(&scheduler, 3), [true, true, false]);
}

#[test]
fn what_later_steps_fill_after_a_failed_batch_is_forgotten() {
    let mut scheduler = scheduler(None, 40, true);
    add(&mut scheduler, 0, (20, 9), 0, false);
    let failing = scheduler.schedule(8).expect("it waits");
    let _later = scheduler.schedule(6).expect("it continues");
    assert_eq!(found(&scheduler, 3), [true; 3]);
    drop(scheduler.fail(&failing, RequestError::Internal));
    assert_eq!(found(&scheduler, 3), [false; 3]);
}

#[test]
fn after_a_failed_batch_those_start_over_who_hold_what_was_computed_from_it() {
    // Within the window, the last one holds a block of the second, and none of the first.
    let mut scheduler = scheduler(Some(4), 40, true);
    add(&mut scheduler, 0, (8, 9), 0, false);
    let failing = scheduler.schedule(64).expect("it waits");
    let [direct, indirect] = [(1, 13), (2, 14)]
        .map(|(stream, prompt)| add(&mut scheduler, stream, (prompt, 9), 0, false));
    let _later = scheduler.schedule(64).expect("they wait");
    let table = |id: SequenceId| &scheduler.queues.sequences[id].holding.tables[0];
    assert_eq!((table(direct).passed, table(indirect).passed), (1, 2));
    assert_eq!(table(direct).blocks[2], table(indirect).blocks[2]);
    drop(scheduler.fail(&failing, RequestError::Internal));
    assert_eq!(
        [direct, indirect].map(|id| scheduler.queues.sequences[id].exit),
        [Some(Exit::Preempted); 2]
    );
}

#[test]
fn after_a_failed_batch_those_go_on_who_share_only_what_was_computed_before() {
    let mut scheduler = scheduler(None, 40, true);
    add(&mut scheduler, 0, (12, 9), 0, false);
    let batch = scheduler.schedule(4).expect("it waits");
    commit(&mut scheduler, &batch);
    let failing = scheduler.schedule(64).expect("it continues");
    let [sharer, other] =
        [(1, 9), (2, 6)].map(|(stream, prompt)| add(&mut scheduler, stream, (prompt, 9), 0, false));
    scheduler.queues.sequences[other].tokens = vec![0, 1, 2, 3, 50, 51];
    let _later = scheduler.schedule(64).expect("they wait");
    assert_eq!(
        [sharer, other].map(|id| scheduler.queues.sequences[id].cached().all),
        [8, 4]
    );
    drop(scheduler.fail(&failing, RequestError::Internal));
    assert_eq!(
        [sharer, other].map(|id| scheduler.queues.sequences[id].exit),
        [Some(Exit::Preempted), None]
    );
}

#[test]
fn what_is_withdrawn_from_a_sequence_is_not_found_any_more() {
    let mut scheduler = scheduler(None, 40, true);
    let id = add(&mut scheduler, 0, (9, 9), 0, false);
    step(&mut scheduler);
    assert_eq!(found(&scheduler, 2), [true; 2]);
    scheduler.queues.discard_computed(id);
    assert_eq!(found(&scheduler, 2), [false; 2]);
}

#[test]
fn answers_are_counted_by_how_they_end() {
    let mut scheduler = scheduler(None, 40, false);
    for (stream, stop_token_ids) in [(0, vec![0]), (1, vec![0]), (2, Vec::new()), (3, Vec::new())] {
        let params = SamplingParams {
            max_tokens: Some(1),
            stop_token_ids,
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: [1, 2, 3].into(),
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
    }
    step(&mut scheduler);
    let counts = scheduler.counts();
    assert_eq!(
        (
            counts.generation_tokens,
            counts.finished_stop,
            counts.finished_length
        ),
        (4, 2, 2)
    );
    assert_eq!(counts.finished_error, 0);
    add(&mut scheduler, 4, (3, 9), 0, false);
    let batch = scheduler.schedule(64).expect("it waits");
    drop(scheduler.fail(&batch, RequestError::Internal));
    assert_eq!(scheduler.counts().finished_error, 1);
}

#[test]
fn as_many_are_preempted_as_a_row_needs_blocks() {
    let mut scheduler = scheduler(None, 4, false);
    let ids = [0, 1, 2].map(|stream| add(&mut scheduler, stream, (3, 40), 0, false));
    step(&mut scheduler);
    // With its second token on, it needs three blocks more; one is free.
    scheduler.queues.sequences[ids[0]].tokens.extend([7; 9]);
    let mut builder = scheduler.builder(64);
    scheduler.make_room(ids[0], 10, &mut builder);
    assert_eq!(
        ids.map(|id| scheduler.queues.sequences[id].preemptions),
        [0, 1, 1]
    );
}

#[test]
fn who_gives_way_awaits_no_blocks() {
    let mut scheduler = scheduler(None, 4, false);
    let ids = [0, 1, 2].map(|stream| add(&mut scheduler, stream, (3, 40), 0, false));
    step(&mut scheduler);
    let _in_flight = scheduler.schedule(64).expect("all continue");
    scheduler.queues.sequences[ids[2]].tokens.extend([7; 5]);
    let mut builder = scheduler.builder(64);
    scheduler.make_room(ids[2], 5, &mut builder);
    assert_eq!(
        ids.map(|id| scheduler.queues.sequences[id].preemptions),
        [0, 0, 1]
    );
    assert_eq!(
        builder.blocks_awaited,
        [0],
        "its own block becomes free with the step in flight"
    );
}

#[test]
fn forks_that_free_no_block_are_not_preempted_before_others() {
    let mut scheduler = scheduler(None, 5, false);
    let [oldest, other] = [0, 1].map(|stream| add(&mut scheduler, stream, (4, 40), 0, false));
    let request = Request {
        prompt: [1, 2, 3, 4].into(),
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[2, 3].map(StreamId), 0, false);
    step(&mut scheduler);
    assert_eq!(
        (
            scheduler.running_len(),
            scheduler.pool().groups()[0].available()
        ),
        (4, 2)
    );
    scheduler.queues.sequences[oldest].tokens.extend([7; 11]);
    let mut builder = scheduler.builder(64);
    scheduler.make_room(oldest, 12, &mut builder);
    assert_eq!(
        (
            scheduler.queues.sequences[other].preemptions,
            scheduler.counts().preemptions
        ),
        (1, 1)
    );
}

#[test]
fn what_a_step_in_flight_uses_is_released_once_it_has_completed() {
    for exit in [Exit::Ended, Exit::Preempted] {
        let mut scheduler = scheduler(None, 40, false);
        let id = add(&mut scheduler, 0, (3, 9), 0, false);
        let batch = scheduler.schedule(64).expect("it waits");
        let free = |scheduler: &Scheduler| {
            let blocks = scheduler.pool().groups()[0].free();
            (blocks, scheduler.feed_slots_free().len())
        };
        assert_eq!(free(&scheduler), (39, 7));
        scheduler.queues.leave(id, exit);
        assert_eq!(free(&scheduler), (39, 7), "{exit:?}");
        commit(&mut scheduler, &batch);
        assert_eq!(free(&scheduler), (40, 8), "{exit:?}");
    }
}

#[test]
fn tokens_from_host_memory_and_from_files_are_counted_apart() {
    {
        let mut scheduler = with_files();
        add(&mut scheduler, 0, (9, 1), 0, false);
        let hashes = hashes(2);
        let slot = scheduler
            .queues
            .memory
            .host_mut()
            .reserve(0, hashes[1], Fill::Leaving)
            .expect("there is room");
        scheduler.queues.memory.host_mut().complete(slot);
        scheduler.queues.memory.found_files([(0, hashes[0])]);
        assert!(scheduler.schedule(64).is_none(), "it waits for the file");
        let slot = *scheduler
            .queues
            .memory
            .files()
            .reading
            .keys()
            .next()
            .expect("a file is read");
        assert!(scheduler.read_file(slot, true));
        step(&mut scheduler);
        let counts = scheduler.counts();
        assert_eq!(
            (
                counts.prefix_hits,
                counts.prefix_hits_host,
                counts.prefix_hits_disk
            ),
            (8, 4, 4)
        );
        assert_eq!((counts.files_read, counts.blocks_restored), (1, 2));
    }
}

#[test]
fn a_state_from_host_memory_stands_for_all_tokens_before_it() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10; 2],
        ..TierLimits::default()
    };
    let mut limits = scheduler(None, 40, true).queues.limits;
    limits.memory.state_slots = 8;
    limits.memory.tiers = tiers;
    let mut scheduler = Scheduler::new(limits);
    for hash in hashes(2) {
        let pool = scheduler.queues.memory.pool_mut().group_mut(0);
        let (block, _) = pool.allocate().expect("one is free");
        pool.register(block, hash);
        pool.release(block);
    }
    let slot = scheduler
        .queues
        .memory
        .host_mut()
        .reserve(1, hashes(2)[1], Fill::Leaving)
        .expect("there is room");
    scheduler.queues.memory.host_mut().complete(slot);
    add(&mut scheduler, 0, (9, 1), 0, false);
    step(&mut scheduler);
    let counts = scheduler.counts();
    assert_eq!(
        (
            counts.prefix_hits,
            counts.prefix_hits_host,
            counts.prefix_hits_disk
        ),
        (8, 8, 0)
    );
}

#[test]
fn evicted_blocks_move_to_host_memory() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10],
        ..TierLimits::default()
    };
    let mut limits = scheduler(None, 2, true).queues.limits;
    limits.memory.tiers = tiers;
    let mut scheduler = Scheduler::new(limits);
    // Each takes both blocks, of which the one before has left one in the cache.
    for (stream, token) in [(0, 1), (1, 2), (2, 3)] {
        let id = add(&mut scheduler, stream, (5, 1), 0, false);
        scheduler.queues.sequences[id].tokens = vec![token; 5];
        step(&mut scheduler);
    }
    assert_eq!(scheduler.counts().blocks_saved, 2);
}

#[test]
fn files_are_not_read_where_computing_takes_less_time() {
    let mut scheduler = with_files();
    scheduler.queues.memory.set_rates(Rates::given(
        Duration::from_secs(1),
        Duration::from_nanos(1),
    ));
    add(&mut scheduler, 0, (9, 1), 0, false);
    scheduler.queues.memory.found_files([(0, hashes(1)[0])]);
    step(&mut scheduler);
    assert!(scheduler.queues.memory.take_disk_jobs().is_empty());
}

#[test]
fn a_sequence_that_leaves_does_not_wait_for_files_any_more() {
    let mut scheduler = with_files();
    let ids = [0, 1].map(|stream| add(&mut scheduler, stream, (9, 1), 0, false));
    scheduler.queues.memory.found_files([(0, hashes(1)[0])]);
    assert!(
        scheduler.schedule(64).is_none(),
        "both wait for the same file"
    );
    let waiters = |scheduler: &Scheduler| {
        scheduler
            .queues
            .memory
            .files()
            .reading
            .values()
            .map(|reading| reading.waiters.clone())
            .next()
    };
    assert_eq!(waiters(&scheduler), Some(ids.to_vec()));
    scheduler.abort(StreamId(0));
    assert_eq!(waiters(&scheduler), Some(vec![ids[1]]));
    scheduler.abort(StreamId(1));
    assert_eq!(waiters(&scheduler), Some(Vec::new()));
}

#[test]
fn finished_blocks_are_copied_while_they_are_cached_and_wanted() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10],
        disk: DiskUse::ReadAndWrite,
    };
    let mut limits = scheduler(None, 40, true).queues.limits;
    limits.memory.tiers = tiers;
    let mut scheduler = Scheduler::new(limits);
    let hashes = hashes(4);
    add(&mut scheduler, 0, (17, 1), 0, false);
    step(&mut scheduler);
    let keys = |saves: &[Save]| {
        saves
            .iter()
            .filter_map(|save| save.origin.as_ref())
            .map(|o| o.key.1)
            .collect::<Vec<_>>()
    };
    let saves = scheduler.queues.memory.save_finished(1);
    assert_eq!(keys(&saves), hashes[..1]);
    let withdrawn = scheduler.pool().groups()[0]
        .lookup(&hashes[1])
        .expect("it is cached");
    scheduler
        .queues
        .memory
        .pool_mut()
        .group_mut(0)
        .withdraw(withdrawn);
    scheduler.queues.memory.found_files([(0, hashes[2])]);
    assert_eq!(keys(&scheduler.queues.memory.save_finished(9)), hashes[3..]);
    let origin = saves[0].origin.as_ref().expect("it is written");
    assert!(scheduler.queues.memory.hand_over(origin));
    scheduler.wrote_file(origin.key, true);
    assert!(
        !scheduler.queues.memory.hand_over(origin),
        "it is written already"
    );
    assert_eq!(
        (
            scheduler.counts().files_written,
            scheduler.queues.memory.files().len()
        ),
        (1, 2)
    );
}

#[test]
fn only_files_of_blocks_within_the_window_are_read() {
    let mut limits = with_files().queues.limits;
    limits.memory.windows = vec![Some(Window::Last(4))];
    let mut scheduler = Scheduler::new(limits);
    add(&mut scheduler, 0, (9, 1), 0, false);
    scheduler.queues.memory.found_files([(0, hashes(2)[1])]);
    assert!(scheduler.schedule(64).is_none(), "it waits for the file");
    assert_eq!(scheduler.queues.memory.take_disk_jobs().len(), 1);
}

#[test]
fn who_waits_reads_files_of_blocks_that_were_evicted_meanwhile() {
    let mut scheduler = with_files();
    add(&mut scheduler, 0, (9, 1), 0, false);
    step(&mut scheduler);
    let running = add(&mut scheduler, 1, (5, 40), 0, false);
    scheduler.queues.sequences[running].tokens = vec![50; 5];
    add(&mut scheduler, 2, (9, 1), 0, false);
    step(&mut scheduler);
    assert_eq!(
        (found(&scheduler, 2), scheduler.waiting_len()),
        (vec![true; 2], 1),
        "it needs no file"
    );
    for hash in hashes(2) {
        let block = scheduler.pool().groups()[0]
            .lookup(&hash)
            .expect("it is cached");
        scheduler
            .queues
            .memory
            .pool_mut()
            .group_mut(0)
            .withdraw(block);
        scheduler.queues.memory.found_files([(0, hash)]);
    }
    scheduler.abort(StreamId(1));
    assert!(scheduler.schedule(64).is_none(), "now it waits for them");
    assert_eq!(scheduler.queues.memory.take_disk_jobs().len(), 2);
}
