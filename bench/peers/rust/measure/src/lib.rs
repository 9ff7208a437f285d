//! Measurements that every queue takes part in.
//!
//! A program implements [`Peer`] for its queue and calls [`main`]; it then takes one measurement in a process of its own:
//!
//! ```text
//! peer-effectum <setup|one|callers|callers-32|batch|process|latency> <file> <setting> <jobs> <seconds>
//! ```
//!
//! and prints one JSON object.

mod clock;
mod handler;
mod job;
mod peer;
mod report;
mod request;

pub use handler::Handler;
pub use job::Stamp;
pub use peer::{BoxError, Peer};
use report::Report;
use request::Request;

/// Takes the measurement that the command line asks for, prints it and ends the process.
///
/// The process exits without cleanup: background work of a queue must not delay the next measurement.
pub fn main<P: Peer>() -> ! {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads for a runtime");
    let report = Request::from_args()
        .and_then(|request| runtime.block_on(clock::measure::<P>(&request)))
        .unwrap_or_else(|error| Report::failed(error.as_ref()));
    println!("{}", report.to_json());
    std::process::exit(i32::from(report.is_failure()))
}
