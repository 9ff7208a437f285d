//! SSRF guard: forbids webhooks to addresses that are not on the public internet.
//!
//! Without it, a user who may create endpoints could make the server send requests to its own network: a cloud's metadata service, a
//! database without a password, a printer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// The guard forbids this address.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{address} is not a public address; to send to it, allow its range (`Guard::allow`, `redrive serve --allow-range`)"
)]
pub struct Forbidden {
    /// The address.
    pub address: IpAddr,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, c: u16, d: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix)
}

const FORBIDDEN_V4: [Ipv4Net; 16] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // shared by carriers
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link-local, with the metadata of clouds
    v4(172, 16, 0, 0, 12),   // private
    v4(192, 0, 0, 0, 24),    // protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // 6to4 relays
    v4(192, 168, 0, 0, 16),  // private
    v4(198, 18, 0, 0, 15),   // benchmarks
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(224, 0, 0, 0, 4),     // multicast
    v4(240, 0, 0, 0, 4),     // reserved
    v4(255, 255, 255, 255, 32),
];

const FORBIDDEN_V6: [Ipv6Net; 12] = [
    v6(0, 0, 0, 0, 8),           // unspecified, loopback, and deprecated IPv4-compatible forms
    v6(0xfc00, 0, 0, 0, 7),      // private
    v6(0xfe80, 0, 0, 0, 10),     // link-local
    v6(0xfec0, 0, 0, 0, 10),     // site-local
    v6(0xff00, 0, 0, 0, 8),      // multicast
    v6(0x2001, 0xdb8, 0, 0, 32), // documentation
    v6(0x2001, 0, 0, 0, 23),     // protocol assignments, with Teredo
    v6(0x3fff, 0, 0, 0, 20),     // documentation
    v6(0x0100, 0, 0, 0, 64),     // discarded
    v6(0x2002, 0, 0, 0, 16),     // 6to4, with any IPv4 inside
    v6(0x64, 0xff9b, 1, 0, 48),  // translation, for local use
    v6(0x5f00, 0, 0, 0, 16),     // segment routing
];

/// NAT64 prefix: the embedded IPv4 address decides.
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 0, 96);

/// Decides which addresses webhooks may be sent to: public ones, and ranges that are allowed by name.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    allowed: Vec<IpNet>,
}

impl Guard {
    /// Allows a range that is not public, such as loopback for development or a private network with internal receivers.
    #[must_use]
    pub fn allow(mut self, range: IpNet) -> Self {
        self.allowed.push(range);
        self
    }

    /// Checks one address.
    pub fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        // `::ffff:10.0.0.1` reaches 10.0.0.1, so a range that allows one allows the other.
        let is_allowed = |address: IpAddr| self.allowed.iter().any(|range| range.contains(&address));
        if is_allowed(address) || is_allowed(address.to_canonical()) || is_public(address) {
            return Ok(());
        }
        Err(Forbidden { address })
    }

    /// Checks all addresses of a name. One forbidden address refuses the name: mixing private and public addresses is a sign of DNS
    /// rebinding.
    pub fn check_all(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), Forbidden> {
        addresses.into_iter().try_for_each(|address| self.check(address))
    }

    /// Whether an address is allowed only because its range was allowed by name.
    pub(crate) fn is_exception(&self, address: IpAddr) -> bool {
        !is_public(address) && self.check(address).is_ok()
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !FORBIDDEN_V4.iter().any(|range| range.contains(&address)),
        IpAddr::V6(address) if NAT64.contains(&address) => {
            let [.., a, b, c, d] = address.octets();
            is_public(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(address) => !FORBIDDEN_V6.iter().any(|range| range.contains(&address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The first and last address of each range, and their neighbours.
    #[test]
    fn forbidden_ranges_are_exact_at_both_ends() {
        let guard = Guard::default();
        let forbidden = [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.0",
            "192.0.2.255",
            "192.88.99.0",
            "192.88.99.255",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.0",
            "198.51.100.255",
            "203.0.113.0",
            "203.0.113.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::7f00:1",
            "::ffff:0:7f00:1",
            "fc00::",
            "fd00:ec2::254",
            "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fe80::1",
            "febf::1",
            "fec0::",
            "feff::1",
            "ff00::",
            "ff02::1",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db8::",
            "2001:db8:ffff::1",
            "2001::",
            "2001:0:4136:e378::",
            "2001:1ff:ffff::1",
            "3fff::",
            "3fff:fff::1",
            "100::",
            "100::ffff",
            "2002::",
            "2002:7f00:1::",
            "2002:808:808::",
            "64:ff9b:1::",
            "64:ff9b:1:ffff::1",
            "5f00::",
            "5f00:ffff::1",
            "64:ff9b::7f00:1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
        ];
        for address in forbidden {
            assert_eq!(guard.check(ip(address)), Err(Forbidden { address: ip(address) }), "{address}");
        }
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "8.8.8.8",
            "2600::1",
            "2a00:1450:4001:81b::200e",
            "2001:200::",
            "2001:db7::1",
            "2001:db9::1",
            "64:ff9b::8.8.8.8",
            "fbff::1",
            "fe00::1",
            "2003::",
            "4000::1",
            "5eff::1",
            "5f01::",
            "101::",
        ];
        for address in public {
            assert_eq!(guard.check(ip(address)), Ok(()), "{address}");
        }
    }

    #[test]
    fn only_allowed_ranges_are_exempt() {
        let guard = Guard::default().allow("127.0.0.0/8".parse().unwrap());
        assert_eq!(guard.check(ip("127.0.0.1")), Ok(()));
        assert_eq!(guard.check(ip("::ffff:127.0.0.1")), Ok(()));
        assert!(guard.check(ip("::1")).is_err() && guard.check(ip("10.0.0.1")).is_err());
        assert!(guard.is_exception(ip("127.0.0.1")) && !guard.is_exception(ip("8.8.8.8")));
    }

    #[test]
    fn one_forbidden_address_refuses_a_name() {
        let mixed = [ip("8.8.8.8"), ip("169.254.169.254")];
        let refused = Guard::default().check_all(mixed).unwrap_err();
        assert_eq!(refused.address, mixed[1]);
        assert!(refused.to_string().contains("not a public address"));
    }
}
