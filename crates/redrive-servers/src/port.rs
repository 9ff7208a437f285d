//! Ports that nobody has.

use std::net::TcpListener;

/// Free a moment ago. Nobody else on this machine asks for ports so often that it would be taken meanwhile.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Several that differ: each is held until all are known.
pub(crate) fn free_ports<const MANY: usize>() -> std::io::Result<[u16; MANY]> {
    let mut held = Vec::with_capacity(MANY);
    let mut ports = [0; MANY];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
