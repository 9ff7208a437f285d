//! Free loopback ports.

use std::net::TcpListener;

/// Returns a port that was free a moment ago. The system hands out ports in turn, so another process hardly gets it meanwhile.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Returns several different free ports: each stays bound until all are known.
pub(crate) fn free_ports<const COUNT: usize>() -> std::io::Result<[u16; COUNT]> {
    let mut listeners = Vec::with_capacity(COUNT);
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
