//! `kvasir serve`: settings from flags, environment and file, then the server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgMatches, Args, CommandFactory};

use super::output::{fail, print};
use super::{BAD_INPUT, Cli, arguments, environment, socket};
use crate::server::{self, Config, ServerError, Settings, SettingsError};

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
    if let Err(error) = environment::check(&Cli::command(), std::env::vars_os()) {
        return fail("serve", error, BAD_INPUT);
    }
    let config = match effective(args.settings, args.config, matches) {
        Ok(config) => config,
        Err(error) => return fail("serve", error, BAD_INPUT),
    };
    if args.print_config {
        return match config.to_toml() {
            Ok(text) => print(&text),
            Err(error) => fail("serve", error, BAD_INPUT),
        };
    }
    start_log(&config);
    if let Err(error) = socket::prepare_default(&config.socket) {
        return fail("serve", error, 1);
    }
    match server::run(config, started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServerError::Settings(_)) => fail("serve", error, BAD_INPUT),
        Err(error) => fail("serve", error, 1),
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
fn start_log(config: &Config) {
    use std::io::{IsTerminal, stderr};
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(config.log_level))
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .try_init();
    // Only a second call in one process could fail, and there the first one's log is in place.
    let _ = log;
}
