//! [`Proxies`]: whose word counts for the address of a client.

use axum::http::HeaderMap;
use std::net::IpAddr;
use std::str::FromStr;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// The proxies that are trusted to tell their clients' addresses, as uvicorn's `--forwarded-allow-ips` lists them:
/// addresses and networks, separated by commas, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxies {
    all: bool,
    networks: Vec<(IpAddr, u8)>,
}

impl Default for Proxies {
    /// Those on this machine.
    fn default() -> Self {
        Self::LOCAL.parse().expect("it is a list of networks")
    }
}

impl FromStr for Proxies {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entries = text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        let mut proxies = Self {
            all: false,
            networks: Vec::new(),
        };
        for entry in entries {
            match entry {
                "*" => proxies.all = true,
                _ => proxies.networks.push(
                    network_of(entry)
                        .ok_or_else(|| format!("{entry:?} is no address or network"))?,
                ),
            }
        }
        Ok(proxies)
    }
}

impl Proxies {
    /// The proxies on the same machine.
    pub const LOCAL: &str = "127.0.0.0/8,::1";

    /// The address of the client that sent a request, which came from `peer`; `None` if that is a proxy on the way and
    /// names no client, or a client on this machine.
    ///
    /// Of the addresses in `X-Forwarded-For`, each proxy appends the one that it sees, so the last one that is not a
    /// trusted proxy counts. Whatever is before it was written by whoever is not trusted.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return Some(peer).filter(|peer| !peer.is_loopback());
        }
        let listed = headers.get_all(FORWARDED_FOR).iter().rev();
        let entries = listed.flat_map(|value| {
            value
                .to_str()
                .unwrap_or("?")
                .rsplit(',')
                .collect::<Vec<_>>()
        });
        for entry in entries {
            match address_of(entry.trim()) {
                Some(address) if self.trusts_listed(address) => {}
                Some(address) => return Some(address),
                // Something else was written by a proxy that is trusted: its peer is all that is known.
                None => return Some(peer).filter(|peer| !peer.is_loopback()),
            }
        }
        None
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.all || self.trusts_listed(address)
    }

    /// With `*`, every listed address would be a proxy, so the last one is the client.
    fn trusts_listed(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|(network, bits)| contains(*network, *bits, address))
    }
}

/// An address of the header, which may have a port.
fn address_of(entry: &str) -> Option<IpAddr> {
    let address = entry.trim_matches(['[', ']']).parse().ok().or_else(|| {
        entry
            .parse::<std::net::SocketAddr>()
            .ok()
            .map(|socket| socket.ip())
    })?;
    Some(IpAddr::to_canonical(&address))
}

fn network_of(entry: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = entry
        .split_once('/')
        .map_or((entry, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
    (bits <= most).then_some((address, bits))
}

fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    let same = |one: u128, other: u128, width: u32| {
        let shift = width - u32::from(bits);
        shift == width || one >> shift == other >> shift
    };
    match (network, address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            same(one.to_bits().into(), other.to_bits().into(), 32)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
