//! Arguments and variables: empty variables count as not set, and an error names whichever of the two it is about.

use std::error::Error as _;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use super::failure::{Failure, one_line};
use super::{BAD_INPUT, Cli, plan};

/// The commands' arguments, and where each came from.
pub(super) fn parse(args: &[OsString]) -> Result<(Cli, ArgMatches), clap::Error> {
    let matches = without_empty_variables(Cli::command()).try_get_matches_from(args)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok((cli, matches))
}

/// Lets no option read a variable that is set to nothing.
fn without_empty_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let is_empty = |name| std::env::var_os(name).is_some_and(|value| value.is_empty());
            if arg.get_env().is_some_and(is_empty) {
                return arg.env(None::<&str>);
            }
            arg
        })
        .mut_subcommands(without_empty_variables)
}

/// Answers arguments that are none: with help that was asked for, or with what is wrong.
pub(super) fn refuse(error: &clap::Error, args: &[OsString], json: bool) -> ExitCode {
    if !error.use_stderr() {
        // Printing fails only when nobody reads.
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    let command = args.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let variable = of_variable(error, command, args);
    if command == "plan" && variable.is_none() {
        return plan::refuse_arguments(error, json);
    }
    if variable.is_none() && !json {
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    let message = variable.unwrap_or_else(|| one_line(error));
    Failure::new("usage", message, BAD_INPUT).report(command, json)
}

/// What is wrong with the value of a variable, if that is what the error is about. The parser blames the option.
fn of_variable(error: &clap::Error, command: &str, args: &[OsString]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (blamed, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let mut cli = Cli::command();
    // Only a built option can be shown.
    cli.build();
    let arg = option_of(&cli, command, blamed)?;
    let (variable, flag) = (arg.get_env()?.to_str()?, format!("--{}", arg.get_long()?));
    let is_given = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        arg == flag.as_str() || arg.strip_prefix(&flag).is_some_and(|rest| rest.starts_with('='))
    };
    if args.iter().any(is_given) {
        return None;
    }
    let reason = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => format!("it has to be one of {}", values.join(", ")),
        _ => match error.source() {
            Some(source) if source.is::<std::num::ParseIntError>() => {
                "it has to be a whole number".to_owned()
            }
            Some(source) => source.to_string(),
            None => one_line(error),
        },
    };
    if reason.contains(&format!("{value:?}")) {
        return Some(format!("{variable}: {reason}"));
    }
    Some(format!("{variable} is {value:?}: {reason}"))
}

/// The option that an error shows as `--pool-size <SIZE>`.
fn option_of<'a>(cli: &'a Command, command: &str, shown: &str) -> Option<&'a clap::Arg> {
    let commands = cli.find_subcommand(command).into_iter();
    let inner = commands.clone().flat_map(Command::get_subcommands);
    commands
        .chain(inner)
        .flat_map(Command::get_arguments)
        .find(|arg| arg.to_string() == shown)
}

/// What whoever set a setting of `kvasir serve` knows it by: its flag, its variable, or its key in a file.
pub(super) fn origin(flag: &str, matches: &ArgMatches, file: Option<&Path>) -> String {
    let key = flag.trim_start_matches('-');
    let id = key.replace('-', "_");
    let serve = matches.subcommand_matches("serve");
    let source = serve.and_then(|serve| serve.value_source(&id));
    match (source, file) {
        (Some(ValueSource::EnvVariable), _) => {
            let cli = Cli::command();
            let arg = cli
                .find_subcommand("serve")
                .and_then(|serve| serve.get_arguments().find(|arg| arg.get_id() == id.as_str()));
            arg.and_then(clap::Arg::get_env)
                .map_or_else(|| flag.to_owned(), |name| name.to_string_lossy().into_owned())
        }
        (None, Some(file)) => format!("{key} in {}", file.display()),
        _ => flag.to_owned(),
    }
}
