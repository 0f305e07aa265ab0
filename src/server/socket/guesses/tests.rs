//! Tests of `server/socket/guesses.rs`.

use super::*;

fn key(byte: u8) -> KeyDigest {
    [byte; 32]
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn beyond_the_allowance_every_key_waits_unless_it_was_right_before() {
    let (guesses, start) = (Guesses::default(), Instant::now());
    let [peer, other] = ["10.0.0.1", "10.0.0.2"].map(address);
    guesses.right(peer, &key(1), false, start);
    for guess in 0..BURST as u8 {
        assert_eq!(guesses.judge(peer, &key(100 + guess), start), Verdict::Now);
        guesses.wrong(peer, start);
    }
    assert_eq!(
        guesses.judge(peer, &key(2), start),
        Verdict::After(INTERVAL),
        "it may be right"
    );
    assert_eq!(
        guesses.judge(peer, &key(3), start),
        Verdict::After(INTERVAL * 2)
    );
    assert_eq!(
        guesses.judge(peer, &key(1), start),
        Verdict::Now,
        "it was right from here"
    );
    assert_eq!(guesses.judge(other, &key(3), start), Verdict::Now);
    guesses.right(peer, &key(3), true, start);
    assert_eq!(
        guesses.judge(peer, &key(4), start),
        Verdict::After(INTERVAL * 2),
        "a right key costs nothing"
    );
    assert_eq!(guesses.judge(peer, &key(3), start), Verdict::Now);
    let verdicts: Vec<_> = (0..1000)
        .map(|_| guesses.judge(peer, &key(5), start))
        .collect();
    assert_eq!(verdicts.last(), Some(&Verdict::Refused(INTERVAL)));
    assert!(verdicts.contains(&Verdict::After(WAIT_MAX)));
    let later = start + WAIT_MAX + INTERVAL * 2 * BURST;
    assert_eq!(
        guesses.judge(peer, &key(5), later),
        Verdict::Now,
        "forgiven"
    );
    let hour_later = start + RIGHT_FOR;
    (0..BURST).for_each(|_| guesses.wrong(peer, hour_later));
    assert_eq!(
        guesses.judge(peer, &key(1), hour_later),
        Verdict::After(INTERVAL),
        "it was right too long ago"
    );
}

#[test]
fn addresses_of_one_network_are_one_peer() {
    let [a, b, c, v4] = [
        "2001:db8::1",
        "2001:db8::ffff:2",
        "2001:db8:0:1::1",
        "::ffff:10.0.0.1",
    ]
    .map(address);
    assert_eq!(network(a), network(b));
    assert_ne!(network(a), network(c));
    assert_eq!(network(v4), IpAddr::from([10, 0, 0, 1]));
    let (guesses, now) = (Guesses::default(), Instant::now());
    (0..BURST).for_each(|_| guesses.wrong(a, now));
    assert_eq!(guesses.judge(b, &key(0), now), Verdict::After(INTERVAL));
    assert_eq!(guesses.judge(c, &key(0), now), Verdict::Now);
}

#[test]
fn what_is_remembered_is_bounded() {
    let (guesses, now) = (Guesses::default(), Instant::now());
    for peer in 0..3 * ADDRESSES_MAX as u32 {
        guesses.wrong(IpAddr::from(peer.to_be_bytes()), now);
    }
    let peer = address("10.0.0.1");
    for byte in 0..=255 {
        guesses.right(peer, &key(byte), false, now);
    }
    let addresses = guesses.lock();
    assert!(addresses.len() <= ADDRESSES_MAX);
    assert_eq!(addresses[&peer].right.len(), RIGHT_MAX);
}
