//! Who is admitted when there are too many connections.

use super::*;

const LIMITS: Limits = Limits {
    total: 1024,
    unproven_per_peer: 64,
};

fn peer(number: u32) -> IpAddr {
    IpAddr::from(number.to_be_bytes())
}

/// Admits a connection; the tickets of those that had to close for it come first.
fn admit(places: &mut Places, peer: IpAddr, limits: Limits) -> (Vec<Ticket>, Option<Ticket>) {
    let mut closed = Vec::new();
    loop {
        match places.admit(peer, limits, &Arc::default()) {
            Admission::Admitted(ticket) => return (closed, Some(ticket)),
            Admission::Full => return (closed, None),
            Admission::After(ticket) => {
                places.ask(ticket);
                assert!(places.waiting[&ticket].asked);
                places.close(Some(ticket));
                closed.push(ticket);
            }
        }
    }
}

#[test]
fn a_peer_replaces_its_own_oldest_connection() {
    let mut places = Places::default();
    let other = admit(&mut places, peer(2), LIMITS)
        .1
        .expect("there is room");
    let mut closed = Vec::new();
    for _ in 0..1400 {
        closed.extend(admit(&mut places, peer(1), LIMITS).0);
    }
    assert_eq!(
        closed,
        (1..=1400 - 64).collect::<Vec<_>>(),
        "the oldest first"
    );
    assert!(
        places.waiting.contains_key(&other),
        "another peer is not affected"
    );
    assert_eq!((places.open, places.unproven[&peer(1)].len()), (65, 64));
}

#[test]
fn requests_in_progress_are_never_closed_and_count_for_no_peer() {
    let (mut places, limits) = (
        Places::default(),
        Limits {
            total: 3,
            unproven_per_peer: 1,
        },
    );
    for _ in 0..2 {
        let ticket = admit(&mut places, peer(1), limits)
            .1
            .expect("there is room");
        places.stop_waiting(ticket);
    }
    let (closed, idle) = admit(&mut places, peer(1), limits);
    assert_eq!((closed.len(), idle.is_some()), (0, true));
    let (closed, next) = admit(&mut places, peer(2), limits);
    assert_eq!(
        closed,
        [idle.expect("it was admitted")],
        "the total counts all"
    );
    places.stop_waiting(next.expect("it was admitted"));
    assert_eq!(
        admit(&mut places, peer(3), limits),
        (Vec::new(), None),
        "all are in progress"
    );
    places.close(None);
    assert!(admit(&mut places, peer(3), limits).1.is_some());
}

#[test]
fn between_requests_the_one_that_waits_longest_makes_room() {
    let (mut places, limits) = (
        Places::default(),
        Limits {
            total: 3,
            unproven_per_peer: 64,
        },
    );
    let tickets: Vec<Ticket> = (0..3)
        .filter_map(|number| admit(&mut places, peer(number), limits).1)
        .collect();
    places.stop_waiting(tickets[0]);
    let again = places.wait(peer(0), true, Arc::default());
    assert_eq!(admit(&mut places, peer(9), limits).0, [tickets[1]]);
    assert_eq!(admit(&mut places, peer(9), limits).0, [tickets[2]]);
    assert_eq!(admit(&mut places, peer(9), limits).0, [again]);
}

#[test]
fn what_has_closed_is_forgotten() {
    let mut places = Places::default();
    for number in 0..100 {
        let ticket = admit(&mut places, peer(number), LIMITS).1;
        places.close(ticket);
    }
    assert!(places.open == 0 && places.waiting.is_empty() && places.unproven.is_empty());
}

#[tokio::test]
async fn a_request_that_has_arrived_keeps_its_connection() {
    let connections = Connections::new(Limits {
        total: 2,
        unproven_per_peer: 2,
    });
    let busy = connections.admit(peer(1)).await.expect("there is room");
    let idle = connections.admit(peer(1)).await.expect("there is room");
    let newcomer = tokio::spawn({
        let connections = connections.clone();
        async move { connections.admit(peer(1)).await.is_some() }
    });
    busy.must_close().await;
    busy.begin();
    idle.must_close().await;
    drop(idle);
    assert!(newcomer.await.expect("no panic"));
    busy.end();
    assert!(busy.ticket().is_some());
}
