//! Other end of a connection, and whether it belongs to the server's own user.
//!
//! A proxy on this machine connects from loopback like a local client, and need not add a header. But proxies run as a user of their
//! own, and on Linux the kernel's table of connections names the user of each socket. Elsewhere every loopback client counts as own.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// Users whose local requests need no token as long as there is none.
pub(crate) const OWN_USERS: &str =
    if cfg!(target_os = "linux") { "this user and root" } else { "every user" };

/// Other end of a connection, set by the listener as an extension of every request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    ends: Ends,
    /// Result of the look-up, which is the same for every request of the connection.
    is_own_user: Arc<OnceLock<bool>>,
}

/// Both addresses of a connection as the server sees them, IPv4 in its own form.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Ends {
    local: SocketAddr,
    remote: SocketAddr,
}

impl Peer {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        let ends = Ends { local: canonical(local), remote: canonical(remote) };
        Peer { ends, is_own_user: Arc::default() }
    }

    pub(crate) fn is_loopback(&self) -> bool {
        self.ends.remote.ip().is_loopback()
    }

    /// Whether the other end belongs to the user of this process, or to root. A look-up that fails is a no, and is repeated for the next
    /// request.
    pub(crate) async fn is_own_user(&self) -> bool {
        if let Some(known) = self.is_own_user.get() {
            return *known;
        }
        let ends = self.ends;
        let found = tokio::task::spawn_blocking(move || owner::is_own_user(ends)).await.ok().flatten();
        if let Some(found) = found {
            return *self.is_own_user.get_or_init(|| found);
        }
        tracing::debug!(target: "redrive::http", peer = %ends.remote, "the user of a local connection is unknown");
        false
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(not(target_os = "linux"))]
mod owner {
    pub(super) fn is_own_user(_: super::Ends) -> Option<bool> {
        Some(true)
    }
}

#[cfg(target_os = "linux")]
mod owner {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read as _};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use super::{Ends, canonical};

    /// Connections over IPv4, and over IPv6. A connection of an IPv4 address may be in either, and each end in another one.
    const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

    /// Maximum size of a table that is read: about 100,000 connections.
    const MAX_TABLE_BYTES: u64 = 16 << 20;

    /// State of a connection that neither end has closed.
    const ESTABLISHED: &str = "01";

    const ROOT: u32 = 0;

    /// User ids of the two ends of a connection, as far as found.
    #[derive(Debug, Default, PartialEq)]
    struct Owners {
        local: Option<u32>,
        remote: Option<u32>,
    }

    /// `None` if the kernel's tables do not show both ends.
    pub(super) fn is_own_user(ends: Ends) -> Option<bool> {
        // The kernel does not freeze a table while it is read, so one reading may miss a connection.
        (0..2).find_map(|_| {
            let mut owners = Owners::default();
            for table in TABLES.iter().filter_map(|path| File::open(path).ok()) {
                owners.read(BufReader::new(table.take(MAX_TABLE_BYTES)), ends);
            }
            owners.is_own_user()
        })
    }

    impl Owners {
        /// Looks both ends up in a table.
        fn read(&mut self, table: impl BufRead, ends: Ends) {
            let reversed = Ends { local: ends.remote, remote: ends.local };
            for line in table.lines().map_while(Result::ok) {
                match parse(&line) {
                    Some((found, uid)) if found == ends => self.local = Some(uid),
                    Some((found, uid)) if found == reversed => self.remote = Some(uid),
                    _ => {}
                }
            }
        }

        /// The local end belongs to the user of this process.
        fn is_own_user(&self) -> Option<bool> {
            let (local, remote) = (self.local?, self.remote?);
            Some(remote == local || remote == ROOT)
        }
    }

    /// Addresses and user id of an established connection. A socket that its program has closed has no inode, and root as its user.
    fn parse(line: &str) -> Option<(Ends, u32)> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = Ends { local: address(fields.next()?)?, remote: address(fields.next()?)? };
        let is_established = fields.next()? == ESTABLISHED;
        let uid = fields.nth(3)?.parse().ok()?;
        let has_inode = fields.nth(1)? != "0";
        (is_established && has_inode).then_some((ends, uid))
    }

    /// An address such as `0100007F:1F90`: words of 32 bits in the byte order of this machine, then the port.
    fn address(text: &str) -> Option<SocketAddr> {
        let (ip, port) = text.split_once(':')?;
        let word = |n: usize| u32::from_str_radix(ip.get(n * 8..n * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
        let ip: IpAddr = match ip.len() {
            8 => Ipv4Addr::from(word(0)?).into(),
            32 => {
                let words = [word(0)?, word(1)?, word(2)?, word(3)?];
                Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?).into()
            }
            _ => return None,
        };
        Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[cfg(target_endian = "little")]
        const IPV4: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                                                     
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 575 1 00000000a0ce6a0c 100 0 0 10 0                       
   1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 576 1 00000000a0ce6a0c 20 4 30 10 -1                      
   2: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 577 1 00000000a0ce6a0c 20 4 30 10 -1                      
   3: 0100007F:1F90 0100007F:C002 01 00000000:00000000 00:00000000 00000000  1000        0 578 1 00000000a0ce6a0c 20 4 30 10 -1                      
   4: 0100007F:C002 0100007F:1F90 01 00000000:00000000 00:00000000 00000000    33        0 579 1 00000000a0ce6a0c 20 4 30 10 -1                      
   5: 0100007F:1F90 0100007F:C003 01 00000000:00000000 00:00000000 00000000  1000        0 580 1 00000000a0ce6a0c 20 4 30 10 -1                      
   6: 0100007F:C003 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 581 1 00000000a0ce6a0c 20 4 30 10 -1                      
   7: 0100007F:1F90 0100007F:C004 08 00000000:00000000 00:00000000 00000000  1000        0 582 1 00000000a0ce6a0c 20 4 30 10 -1                      
   8: 0100007F:C004 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 00000000a0ce6a0c 20 4 30 10 -1                         
   9: 0100007F:1F90 0100007F:C005 01 00000000:00000000 00:00000000 00000000  1000        0 583 1 00000000a0ce6a0c 20 4 30 10 -1                      
  10: 0100007F:C005 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 0 1 00000000a0ce6a0c 20 4 30 10 -1                         
  11: 0100007F:1F90 0100007F:C006 01 00000000:00000000 00:00000000 00000000  1000        0 584 1 00000000a0ce6a0c 20 4 30 10 -1                      
";

        #[cfg(target_endian = "little")]
        const IPV6: &str = "\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:C006 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 585 1 00000000a0ce6a0c 20 4 30 10 -1
   1: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:C001 01 00000000:00000000 00:00000000 00000000  1000        0 586 1 00000000a0ce6a0c 20 4 30 10 -1
   2: 00000000000000000000000001000000:C001 00000000000000000000000001000000:1F90 01 00000000:00000000 00:00000000 00000000    33        0 587 1 00000000a0ce6a0c 20 4 30 10 -1
";

        #[cfg(target_endian = "little")]
        #[test]
        fn the_owner_of_the_other_end_decides() {
            let own = |local: &str, remote: &str| {
                let ends = Ends { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
                let mut owners = Owners::default();
                owners.read(IPV4.as_bytes(), ends);
                owners.read(IPV6.as_bytes(), ends);
                owners.is_own_user()
            };
            let by_ipv4 = |port: u16| own("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
            assert_eq!(by_ipv4(0xC001), Some(true), "the user of the server");
            assert_eq!(by_ipv4(0xC002), Some(false), "another user, such as the one of a proxy");
            assert_eq!(by_ipv4(0xC003), Some(true), "root");
            assert_eq!(by_ipv4(0xC004), None, "a client that closes: its user is gone");
            assert_eq!(by_ipv4(0xC005), None, "a socket that no program has");
            assert_eq!(by_ipv4(0xC006), Some(true), "IPv4 by a socket for IPv6");
            assert_eq!(by_ipv4(0xC007), None, "no such connection");
            assert_eq!(own("[::1]:8080", "[::1]:49153"), Some(false), "IPv6");
            let of_root = Owners { local: Some(ROOT), remote: Some(1000) };
            assert_eq!(of_root.is_own_user(), Some(false), "to a server of root, only root is its own user");
        }

        #[test]
        fn a_line_that_is_no_connection_is_passed_over() {
            for line in
                ["", "0:", "0: x y 01", "0: 0100007F:1F90 0100007F:C001 01", "0: é:1 é:1 01 0 0 0 0 0 1"]
            {
                assert_eq!(parse(line), None, "{line:?}");
            }
        }

        #[test]
        fn a_connection_of_this_process_is_its_own() {
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let Ok(listener) = std::net::TcpListener::bind(address) else { continue }; // no IPv6
                let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (server, remote) = listener.accept().unwrap();
                let ends = Ends { local: server.local_addr().unwrap(), remote };
                assert_eq!(is_own_user(ends), Some(true), "{address}");
                drop(client);
                assert_eq!(is_own_user(ends), None, "closed");
            }
        }
    }
}
