//! A list of named steps that run in order, are timed, and stop at the first failure.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A named step.
pub(crate) struct Step<'a> {
    name: &'static str,
    action: Box<dyn FnOnce() -> Result<()> + 'a>,
}

impl<'a> Step<'a> {
    /// A step called `name` that does `action`.
    pub(crate) fn new(name: &'static str, action: impl FnOnce() -> Result<()> + 'a) -> Self {
        Self {
            name,
            action: Box::new(action),
        }
    }
}

/// Keeps the steps that are named, in their own order; all of them when none is.
///
/// # Errors
/// A name that no step has, with those that there are.
pub(crate) fn only<'a>(steps: Vec<Step<'a>>, names: &[String]) -> Result<Vec<Step<'a>>> {
    for name in names {
        if !steps.iter().any(|step| step.name == name) {
            bail!(
                "there is no step `{name}`; the steps are {}",
                list(&steps).join(", ")
            );
        }
    }
    let wanted = |step: &Step<'_>| names.is_empty() || names.iter().any(|name| step.name == name);
    Ok(steps.into_iter().filter(wanted).collect())
}

/// The names of steps, in order.
pub(crate) fn list(steps: &[Step<'_>]) -> Vec<&'static str> {
    steps.iter().map(|step| step.name).collect()
}

/// What came of a list of steps.
#[derive(Debug, Default)]
struct Outcome {
    passed: Vec<(&'static str, Duration)>,
    failed: Option<(&'static str, Duration, anyhow::Error)>,
    not_run: Vec<&'static str>,
}

/// Runs the steps, prints the time of each and a summary; an error names the step that failed.
pub(crate) fn run(steps: Vec<Step<'_>>) -> Result<()> {
    let outcome = execute(steps);
    print!("{}", summary(&outcome));
    match outcome.failed {
        None => Ok(()),
        Some((name, _, error)) => bail!("step `{name}` failed: {error:#}"),
    }
}

fn execute(steps: Vec<Step<'_>>) -> Outcome {
    let total = steps.len();
    let mut outcome = Outcome::default();
    for (index, step) in steps.into_iter().enumerate() {
        if outcome.failed.is_some() {
            outcome.not_run.push(step.name);
            continue;
        }
        println!("==> [{}/{total}] {}", index + 1, step.name);
        let started = Instant::now();
        let result = (step.action)();
        let took = started.elapsed();
        match result {
            Ok(()) => {
                println!("    {} took {:.1} s", step.name, took.as_secs_f64());
                outcome.passed.push((step.name, took));
            }
            Err(error) => outcome.failed = Some((step.name, took, error)),
        }
    }
    outcome
}

fn summary(outcome: &Outcome) -> String {
    let mut text = String::from("\n");
    for (name, took) in &outcome.passed {
        text += &format!("  passed   {:>7.1} s  {name}\n", took.as_secs_f64());
    }
    if let Some((name, took, _)) = &outcome.failed {
        text += &format!("  FAILED   {:>7.1} s  {name}\n", took.as_secs_f64());
    }
    for name in &outcome.not_run {
        text += &format!("  not run            {name}\n");
    }
    text += &format!(
        "{} passed, {} failed",
        outcome.passed.len(),
        usize::from(outcome.failed.is_some())
    );
    if !outcome.not_run.is_empty() {
        text += &format!(", {} not run", outcome.not_run.len());
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn steps_after_a_failure_do_not_run() {
        let ran = Cell::new(0);
        let count = || {
            ran.set(ran.get() + 1);
            Ok(())
        };
        let outcome = execute(vec![
            Step::new("first", count),
            Step::new("second", || bail!("broken")),
            Step::new("third", count),
        ]);
        assert_eq!(ran.get(), 1);
        assert_eq!(outcome.not_run, ["third"]);
        assert_eq!(outcome.failed.as_ref().unwrap().0, "second");
        assert!(summary(&outcome).ends_with("1 passed, 1 failed, 1 not run\n"));
    }

    #[test]
    fn the_error_names_the_step() {
        let error = run(vec![Step::new("lint", || bail!("two warnings"))]).unwrap_err();
        assert_eq!(error.to_string(), "step `lint` failed: two warnings");
    }

    #[test]
    fn steps_are_chosen_by_name_and_keep_their_order() {
        let steps = || {
            ["one", "two", "three"]
                .map(|name| Step::new(name, || Ok(())))
                .into()
        };
        let names = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            only(steps(), &wanted).map(|steps| list(&steps))
        };
        assert_eq!(names(&[]).unwrap(), ["one", "two", "three"]);
        assert_eq!(names(&["three", "one"]).unwrap(), ["one", "three"]);
        let error = names(&["one", "four"]).unwrap_err().to_string();
        assert_eq!(error, "there is no step `four`; the steps are one, two, three");
    }

    #[test]
    fn all_passed() {
        let outcome = execute(vec![Step::new("only", || Ok(()))]);
        assert!(summary(&outcome).ends_with("1 passed, 0 failed\n"));
    }
}
