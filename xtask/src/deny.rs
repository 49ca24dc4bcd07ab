//! The rules of `deny.toml` about licences, duplicate versions and sources, without a network.
//!
//! `cargo deny` checks them where it is installed. Elsewhere this file does, over the packages that `cargo metadata`
//! resolves for the targets of `deny.toml`: those that are linked, built, or used by tests.
//!
//! What this file does not check: advisories and yanked versions, which need a database from the network; wildcard
//! versions; whether the text of a licence file is what the package's manifest says; the workspaces of `fuzz`,
//! `xtask/flatc` and `xtask/header`, whose programs are not shipped. `cargo deny` checks all but the last.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::command::{self, cargo, works};
use crate::licence;

const RULES: &str = "deny.toml";

/// The part of `deny.toml` that is checked here. A key that is not known is an error: it would look as if it counted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
    /// Left to `cargo deny`.
    #[serde(rename = "advisories")]
    _advisories: toml::Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Graph {
    targets: Vec<String>,
    /// Metadata is asked for with all features in any case.
    #[serde(rename = "all-features")]
    _all_features: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Licences {
    allow: Vec<String>,
    unused_allowed_license: Level,
    private: Private,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Private {
    ignore: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Level,
    #[serde(default)]
    skip: Vec<Skip>,
    /// Left to `cargo deny`.
    #[serde(rename = "wildcards")]
    _wildcards: Level,
    #[serde(rename = "allow-wildcard-paths")]
    _allow_wildcard_paths: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    /// `name@version`.
    #[serde(rename = "crate")]
    package: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Level,
    unknown_git: Level,
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Level {
    Deny,
    Warn,
    Allow,
}

/// A package that some build of the workspace uses.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// None: it lies in this repository.
    source: Option<String>,
}

/// Checks the repository's dependencies.
pub(crate) fn run() -> Result<()> {
    if works(cargo().args(["deny", "--version"])) {
        return command::run(cargo().args(["deny", "--locked", "check", "bans", "licenses", "sources"]));
    }
    let problems = check(&rules()?, &packages(&rules()?.graph.targets)?);
    let mut denied = 0;
    for (level, problem) in &problems {
        eprintln!("{RULES}: {problem}");
        denied += usize::from(*level == Level::Deny);
    }
    if denied > 0 {
        bail!(
            "{denied} of {} findings against {RULES} are denied",
            problems.len()
        );
    }
    Ok(())
}

fn rules() -> Result<Rules> {
    let text =
        fs::read_to_string(command::root().join(RULES)).with_context(|| format!("cannot read {RULES}"))?;
    toml::from_str(&text).with_context(|| format!("cannot use {RULES}"))
}

/// The packages of all builds for some targets. No network is used where they have been downloaded.
fn packages(targets: &[String]) -> Result<Vec<Package>> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--locked", "--all-features", "--format-version", "1"]);
    for target in targets {
        metadata.args(["--filter-platform", target]);
    }
    resolved(&command::output(&mut metadata)?)
}

/// The packages that the document's own resolution uses; others are listed in it too.
fn resolved(metadata: &str) -> Result<Vec<Package>> {
    let document: Value = serde_json::from_str(metadata).context("cargo metadata wrote no JSON")?;
    let nodes = document["resolve"]["nodes"].as_array();
    let used: BTreeSet<&str> = nodes
        .context("cargo metadata resolved nothing")?
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let listed =
        Vec::<Package>::deserialize(&document["packages"]).context("cargo metadata lists no packages")?;
    Ok(listed
        .into_iter()
        .filter(|package| used.contains(package.id.as_str()))
        .collect())
}

fn check(rules: &Rules, packages: &[Package]) -> Vec<(Level, String)> {
    let mut problems = licences(&rules.licenses, packages);
    problems.extend(duplicates(&rules.bans, packages));
    problems.extend(sources(&rules.sources, packages));
    problems.retain(|(level, _)| *level != Level::Allow);
    problems
}

fn licences(rules: &Licences, packages: &[Package]) -> Vec<(Level, String)> {
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    for package in packages {
        if package.source.is_none() && rules.private.ignore {
            continue;
        }
        let Package { name, version, .. } = package;
        let problem = match package.license.as_deref().map(licence::parse) {
            None => Some("says no licence".to_owned()),
            Some(Err(error)) => Some(error.to_string()),
            Some(Ok(expression)) => {
                expression.names(&mut |one| {
                    used.extend(rules.allow.iter().filter(|allowed| *allowed == one));
                });
                let allowed = expression.holds(&|one| rules.allow.iter().any(|allowed| allowed == one));
                (!allowed).then(|| {
                    format!(
                        "is under {}, which is not allowed",
                        package.license.as_deref().unwrap_or_default()
                    )
                })
            }
        };
        problems.extend(problem.map(|problem| (Level::Deny, format!("{name} {version} {problem}"))));
    }
    for unused in rules.allow.iter().filter(|allowed| !used.contains(allowed)) {
        let text = format!("no package is under {unused}, which is allowed");
        problems.push((rules.unused_allowed_license, text));
    }
    problems
}

fn duplicates(rules: &Bans, packages: &[Package]) -> Vec<(Level, String)> {
    let mut problems = Vec::new();
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let skipped = |name: &str, version: &str| {
        rules
            .skip
            .iter()
            .any(|skip| skip.package == format!("{name}@{version}"))
    };
    for (name, versions) in &versions {
        let counted: Vec<&str> = versions
            .iter()
            .copied()
            .filter(|version| !skipped(name, version))
            .collect();
        if counted.len() > 1 {
            problems.push((
                rules.multiple_versions,
                format!("{name} is there as {}", counted.join(" and ")),
            ));
        }
    }
    for skip in &rules.skip {
        let there = skip.package.split_once('@').is_some_and(|(name, version)| {
            versions
                .get(name)
                .is_some_and(|all| all.len() > 1 && all.contains(&version))
        });
        if !there {
            problems.push((
                Level::Deny,
                format!("{} is skipped, and is no duplicate", skip.package),
            ));
        }
        if skip.reason.trim().is_empty() {
            problems.push((
                Level::Deny,
                format!("{} is skipped without a reason", skip.package),
            ));
        }
    }
    problems
}

fn sources(rules: &Sources, packages: &[Package]) -> Vec<(Level, String)> {
    let problem = |package: &Package| {
        let source = package.source.as_deref()?;
        let (kind, place) = source.split_once('+').unwrap_or(("", source));
        let (level, allowed) = match kind {
            "registry" | "sparse" => (rules.unknown_registry, &rules.allow_registry),
            // Of `https://host/repository?branch=x#commit` the repository counts.
            "git" => (rules.unknown_git, &rules.allow_git),
            _ => (Level::Deny, &rules.allow_registry),
        };
        let place = place.split(['?', '#']).next().unwrap_or(place);
        let known = allowed
            .iter()
            .any(|allowed| allowed.trim_end_matches('/') == place.trim_end_matches('/'));
        (!known).then(|| {
            (
                level,
                format!(
                    "{} {} comes from {source}, which is not allowed",
                    package.name, package.version
                ),
            )
        })
    };
    packages.iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
[graph]
targets = ["x86_64-unknown-linux-gnu"]
all-features = true
[advisories]
yanked = "deny"
[licenses]
allow = ["MIT", "Apache-2.0"]
unused-allowed-license = "deny"
private = { ignore = false }
[bans]
multiple-versions = "deny"
wildcards = "deny"
allow-wildcard-paths = true
skip = [{ crate = "syn@2.0.0", reason = "old" }]
[sources]
unknown-registry = "deny"
unknown-git = "deny"
allow-registry = ["https://github.com/rust-lang/crates.io-index"]
allow-git = []
"#;
    const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn package(name: &str, version: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            id: format!("{name}@{version}"),
            name: name.into(),
            version: version.into(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
        }
    }

    /// Packages that keep the rules above.
    fn good() -> Vec<Package> {
        vec![
            package("own", "0.1.0", Some("Apache-2.0"), None),
            package("syn", "2.0.0", Some("MIT OR Apache-2.0"), Some(REGISTRY)),
            package("syn", "3.0.0", Some("MIT OR Apache-2.0"), Some(REGISTRY)),
        ]
    }

    fn problems(more: Package) -> Vec<String> {
        let rules: Rules = toml::from_str(RULES).unwrap();
        let mut packages = good();
        packages.push(more);
        let found = check(&rules, &packages).into_iter();
        found.map(|(level, text)| format!("{level:?}: {text}")).collect()
    }

    #[test]
    fn what_keeps_the_rules_is_no_problem() {
        assert_eq!(
            problems(package("a", "1.0.0", Some("CC0-1.0 OR MIT"), Some(REGISTRY))),
            [""; 0]
        );
    }

    #[test]
    fn licences_are_judged_by_their_expression() {
        for (license, says) in [
            (None, "Deny: a 1.0.0 says no licence"),
            (
                Some("GPL-3.0-only"),
                "Deny: a 1.0.0 is under GPL-3.0-only, which is not allowed",
            ),
            (
                Some("MIT AND GPL-3.0-only"),
                "Deny: a 1.0.0 is under MIT AND GPL-3.0-only, which is not allowed",
            ),
            (
                Some("MIT OR"),
                "Deny: a 1.0.0 has the licence \"MIT OR\", which is no expression",
            ),
        ] {
            assert_eq!(problems(package("a", "1.0.0", license, Some(REGISTRY))), [says]);
        }
    }

    #[test]
    fn a_second_version_needs_a_reason() {
        let found = problems(package("own", "2.0.0", Some("MIT"), Some(REGISTRY)));
        assert_eq!(found, ["Deny: own is there as 0.1.0 and 2.0.0"]);
        // The skipped version does not count, a third one does.
        let found = problems(package("syn", "1.0.0", Some("MIT"), Some(REGISTRY)));
        assert_eq!(found, ["Deny: syn is there as 3.0.0 and 1.0.0"]);
    }

    #[test]
    fn other_sources_are_named() {
        for source in [
            "registry+https://example.com/index",
            "sparse+https://example.com/index/",
            "git+https://github.com/rust-lang/crates.io-index?branch=x#abc",
            "ftp://example.com",
        ] {
            let found = problems(package("a", "1.0.0", Some("MIT"), Some(source)));
            assert_eq!(
                found,
                [format!("Deny: a 1.0.0 comes from {source}, which is not allowed")]
            );
        }
    }

    #[test]
    fn rules_that_nothing_needs_are_problems() {
        let rules: Rules = toml::from_str(RULES).unwrap();
        let found: Vec<_> = check(&rules, &[package("a", "1.0.0", Some("MIT"), Some(REGISTRY))]);
        let deny = |text: &str| (Level::Deny, text.to_owned());
        assert_eq!(
            found,
            [
                deny("no package is under Apache-2.0, which is allowed"),
                deny("syn@2.0.0 is skipped, and is no duplicate"),
            ]
        );
    }

    #[test]
    fn a_rule_that_nobody_checks_is_an_error() {
        let error = toml::from_str::<Rules>(&RULES.replace("[bans]", "[bans]\ndeny = []")).unwrap_err();
        assert!(error.message().contains("unknown field `deny`"), "{error}");
    }

    #[test]
    fn only_what_is_resolved_counts() {
        let package = |id: &str| {
            let none = Value::Null;
            serde_json::json!({"id": id, "name": id, "version": "1.0.0", "license": none, "source": none})
        };
        let document = serde_json::json!({
            "packages": [package("used"), package("listed")],
            "resolve": {"nodes": [{"id": "used"}]},
        });
        let found = resolved(&document.to_string()).unwrap();
        assert_eq!(
            found
                .iter()
                .map(|package| package.name.as_str())
                .collect::<Vec<_>>(),
            ["used"]
        );
        assert!(resolved("{}").is_err());
    }

    #[test]
    fn this_repository_keeps_its_rules() {
        let rules = rules().unwrap();
        let packages = packages(&rules.graph.targets).unwrap();
        assert!(packages.iter().any(|package| package.name == "tokio"));
        assert_eq!(check(&rules, &packages), []);
    }
}
