//! `kvasir serve`: settings from flags, environment and file, then the server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgMatches, Args, CommandFactory};

use super::log::Log;
use super::output::{fail, failure, print};
use super::{BAD_INPUT, Cli, arguments, environment, socket};
use crate::copy::CopyEngine;
use crate::server::{self, Config, ServerError, Settings, SettingsError};
use crate::shm::heap::keep_freed_memory;

/// Settings come from, in this order: flags, environment, the file of --config, defaults.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// TOML file with settings; its keys are the flags without the dashes
    #[arg(long, value_name = "FILE", env = "KVASIR_CONFIG")]
    config: Option<PathBuf>,
    /// Print the effective settings as TOML and exit
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn run(args: ServeArgs, matches: &ArgMatches, started: Instant) -> ExitCode {
    // Whatever has to be said from here on is said through it: this process does not wait for its standard error.
    let log = match Log::start() {
        Ok(log) => log,
        Err(error) => return fail("serve", format_args!("starting the log's thread: {error}"), 1),
    };
    let code = serve(args, matches, started, &log).unwrap_or_else(|(error, code)| {
        log.push(failure("serve", error).as_bytes());
        ExitCode::from(code)
    });
    log.flush();
    code
}

/// The server's whole life, or the last line on standard error and the exit code.
fn serve(
    args: ServeArgs,
    matches: &ArgMatches,
    started: Instant,
    log: &Log,
) -> Result<ExitCode, (String, u8)> {
    fn bad_input(error: impl ToString) -> (String, u8) {
        (error.to_string(), BAD_INPUT)
    }
    environment::check(&Cli::command(), std::env::vars_os()).map_err(bad_input)?;
    CopyEngine::check_named().map_err(bad_input)?;
    keep_freed_memory();
    let config = effective(args.settings, args.config, matches).map_err(bad_input)?;
    if args.print_config {
        return Ok(print(&config.to_toml().map_err(bad_input)?));
    }
    start_log(&config, log);
    socket::prepare_default(&config.socket).map_err(|error| (error.to_string(), 1))?;
    match server::run(config, started) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ ServerError::Settings(_)) => Err(bad_input(error)),
        Err(error) => Err((error.to_string(), 1)),
    }
}

fn effective(flags: Settings, file: Option<PathBuf>, matches: &ArgMatches) -> Result<Config, SettingsError> {
    let settings = match &file {
        Some(path) => flags.over(Settings::from_file(path)?),
        None => flags,
    };
    Config::resolve(settings, socket::default_path)
        .map_err(|error| error.named(|flag| arguments::origin(flag, matches, file.as_deref())))
}

/// Logs to standard error, in colour on a terminal.
fn start_log(config: &Config, log: &Log) {
    use std::io::{IsTerminal, stderr};
    log.take_panics();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(config.log_level))
        .with_writer(log.clone())
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        // Where would it say that it could not write?
        .log_internal_errors(false)
        .try_init();
    // Only a second call in one process could fail, and there the first one's log is in place.
    let _ = subscriber;
}
