//! Command line of the harness: runs faults and prints their reports.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use redrive_torture::all::{self, AllArgs};
use redrive_torture::broker::scheduler::{self, SchedulerArgs};
use redrive_torture::broker::{self, BrokerArgs};
use redrive_torture::chaos::{self, ChaosArgs};
use redrive_torture::judge::{self, JudgeArgs};
use redrive_torture::options::{Options, interrupt, is_interrupted};
use redrive_torture::power_loss::LossArgs;
use redrive_torture::report::Report;
use redrive_torture::server::{self, ServerArgs};
use redrive_torture::stories::PointArgs;
use redrive_torture::worker::{self, WorkerArgs};
use redrive_torture::{
    crash_points, full_disk, io_errors, kills, model, planted, power_loss, soak, table, walk,
};
use tokio::signal::unix::{SignalKind, signal};

/// Tries to make Redrive lose an event, and says whether it did
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all faults within the given time
    All(AllArgs),
    /// Kill a worker at random moments
    Kills(Options),
    /// Kill a worker at every call that changes a file, one after the other
    CrashPoints(PointArgs),
    /// Let the system calls of a worker fail
    IoErrors(PointArgs),
    /// Fill the disk for a while
    FullDisk(Options),
    /// Judge disk images of a power loss
    PowerLoss(LossArgs),
    /// Compare the bus with a model
    Model(Options),
    /// Compare the store with the model of its conformance suite
    Walk(Options),
    /// Disturb several processes on one PostgreSQL server
    Chaos(ChaosArgs),
    /// Kill `redrive serve` under load, with publishers, consumers and receivers outside of it
    Server(ServerArgs),
    /// Disturb schedulers between RabbitMQ and PostgreSQL
    Broker(BrokerArgs),
    /// Judge a kept database again
    Judge(JudgeArgs),
    /// Apply load and faults for a long time: nothing may grow
    Soak(Options),
    /// Plant one bug at a time, which the faults must find within the given time
    Planted(Options),
    /// Run the worker that other commands start and kill
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Run the scheduler that `broker` starts and kills
    #[command(hide = true)]
    Scheduler(SchedulerArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !matches!(cli.command, Command::Worker(_) | Command::Scheduler(_)) {
        end_in_order();
    }
    let one = |fault: &dyn Fn() -> Report| vec![Report::timed(fault)];
    let reports = match cli.command {
        Command::All(args) => all::run(&args),
        Command::Kills(options) => one(&|| kills::run(&options)),
        Command::CrashPoints(args) => one(&|| crash_points::run(&args.options, || args.rehearse())),
        Command::IoErrors(args) => one(&|| io_errors::run(&args.options, || args.rehearse())),
        Command::FullDisk(options) => one(&|| full_disk::run(&options)),
        Command::PowerLoss(args) => one(&|| power_loss::run_or_look(&args)),
        Command::Model(options) => one(&|| model::run(&options)),
        Command::Walk(options) => one(&|| walk::run(&options)),
        Command::Chaos(args) => chaos::run(&args),
        Command::Server(args) => one(&|| server::run(&args)),
        Command::Broker(args) => broker::run(&args),
        Command::Judge(args) => one(&|| judge::run(&args)),
        Command::Soak(options) => one(&|| soak::run(&options)),
        Command::Planted(options) => one(&|| planted::run(&options)),
        Command::Worker(args) => return work(args.script.is_single(), worker::run(&args)),
        Command::Scheduler(args) => return work(false, scheduler::run(&args)),
    };
    match print(&reports, cli.json) {
        Ok(()) if reports.iter().all(Report::is_clean) && !is_interrupted() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Ends in order at the first signal: unmounts disks and ends child processes. Ends at once at the second.
fn end_in_order() {
    let wait = async {
        let mut terminate = signal(SignalKind::terminate())?;
        for _ in 0..2 {
            tokio::select! {
                ended = tokio::signal::ctrl_c() => ended?,
                _ = terminate.recv() => {}
            }
            if is_interrupted() {
                std::process::exit(130);
            }
            interrupt();
        }
        Ok::<(), io::Error>(())
    };
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.and_then(|runtime| runtime.block_on(wait)) // without it, a signal ends the process at once
    });
}

fn print(reports: &[Report], as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        table::print_json(&mut out, reports)?;
    } else {
        table::print(&mut out, reports)?;
    }
    out.flush()
}

fn work(is_single: bool, task: impl Future<Output = Result<(), String>>) -> ExitCode {
    let mut runtime = if is_single {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    let runtime = runtime.worker_threads(2).enable_all().build();
    let result = runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(task));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(io::stderr(), "{why}"); // the parent may be gone
            ExitCode::FAILURE
        }
    }
}
