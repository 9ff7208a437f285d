//! Starts a private PostgreSQL server, prints its address, and ends it when standard input ends.

use std::io::{Read, Write};

use redrive_servers::Postgres;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Postgres::start()?;
    println!("{}", server.url());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
