//! What keeps two engines from sharing what they store.
//!
//! Engines share if the identity that the connector makes of them is the same and they use the same servers. Where both
//! descriptions hold that identity it decides; the settings behind it say what to change.

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;

use super::Report;
use super::connector::{self, Settings};
use super::engine::Engine;
use crate::describe::{key_shown, shown};
use crate::geometry::{GeometryInput, KvGroup};

/// One of the engines: its name in messages, its settings, and what they come to.
pub(super) struct Side<'a> {
    pub(super) name: &'a str,
    pub(super) engine: &'a Engine<'a>,
    pub(super) settings: &'a Settings,
}

/// Parts of the identity, what people know them by, and what to make equal.
const IDENTITY: [(&str, &str, &str); 4] = [
    (
        "model",
        "the model's name or what changes its values",
        "give both the same model, --dtype, --quantization and --hf-overrides, and with scaled rotary embeddings --max-model-len",
    ),
    (
        "weights_id",
        "the weights",
        "give both the same files, or the same kvasir.weights_id if you know that they are equal",
    ),
    (
        "kv_dtype",
        "the KV cache's type",
        "give both the same --kv-cache-dtype",
    ),
    (
        "parallel_shape",
        "the parallel shape",
        "give both the same tensor, pipeline and context parallel sizes and, with several servers, the same list",
    ),
];

/// Compares two engines.
pub(super) fn check(one: &Side<'_>, other: &Side<'_>, report: &mut Report) {
    let mut pair = Pair {
        one,
        other,
        report,
        found: false,
    };
    pair.check_identity();
    pair.check_plain();
    pair.check_groups();
    pair.check_fingerprint();
    pair.check_servers();
    pair.check_roles();
}

struct Pair<'a, 'r> {
    one: &'a Side<'a>,
    other: &'a Side<'a>,
    report: &'r mut Report,
    /// A difference has been reported.
    found: bool,
}

impl Pair<'_, '_> {
    fn differ(
        &mut self,
        what: impl fmt::Display,
        one: impl fmt::Display,
        other: impl fmt::Display,
        cure: &str,
    ) {
        self.found = true;
        self.report.silent(
            "engines_differ",
            format_args!(
                "{what} differs, so the two share nothing: {} has {one}, {} has {other}; {cure}",
                self.one.name, self.other.name
            ),
        );
    }

    fn check_identity(&mut self) {
        let part = |side: &Side<'_>, key: &str| {
            side.engine
                .identity
                .and_then(|identity| identity.get(key).cloned())
        };
        for (key, what, cure) in IDENTITY {
            match (part(self.one, key), part(self.other, key)) {
                (Some(one), Some(other)) if one != other => {
                    self.differ(what, shown(&one), shown(&other), cure)
                }
                (Some(_), Some(_)) => {}
                _ => self.report.unchecked(format!(
                    "{what}: not in both descriptions; `kvasir plan from-vllm` writes it"
                )),
            }
        }
    }

    /// Settings that count by themselves.
    fn check_plain(&mut self) {
        type Get = for<'e> fn(&Engine<'e>) -> Option<&'e str>;
        let texts: [(&str, Get, &str); 3] = [
            ("vLLM's version", |engine| engine.vllm, "run the same version"),
            ("the device", |engine| engine.device, "run both on the same"),
            (
                "the attention backend",
                |engine| engine.attention_backend,
                "give both the same --attention-backend, on machines with the same instructions",
            ),
        ];
        for (what, get, cure) in texts {
            if let (Some(one), Some(other)) = (get(self.one.engine), get(self.other.engine))
                && one != other
            {
                self.differ(what, key_shown(one), key_shown(other), cure);
            }
        }
        let setting = |side: &Side<'_>| {
            let extra = side.engine.kv_transfer_config.and_then(connector::own_extra)?;
            extra.get("kvasir.weights_id").filter(|id| !id.is_null()).cloned()
        };
        let (one, other) = (setting(self.one), setting(self.other));
        if one != other {
            let show = |id: &Option<Value>| id.as_ref().map_or("none".to_owned(), shown);
            self.differ(
                "kvasir.weights_id",
                show(&one),
                show(&other),
                "give both the same, or none",
            );
        }
    }

    fn check_groups(&mut self) {
        // All of it that counts went into the fingerprint.
        if matches!(self.fingerprints(), (Some(one), Some(other)) if one == other) {
            return;
        }
        const CURE: &str =
            "give both the same --block-size, --kv-cache-dtype and other settings of the cache";
        let (Some(one), Some(other)) = (&self.one.engine.groups, &self.other.engine.groups) else {
            match (self.one.engine.block_size, self.other.engine.block_size) {
                (Some(one), Some(other)) if one != other => {
                    self.differ("block_size", one, other, "give both the same --block-size");
                }
                _ => self
                    .report
                    .unchecked("KV cache groups: not in both descriptions, so neither are their block sizes"),
            }
            return;
        };
        if let Some((what, one, other)) = first_difference(one, other) {
            self.differ(what, one, other, CURE);
        }
    }

    /// The layout of the pages, which only a running engine knows; most of what goes into it has been compared already.
    fn check_fingerprint(&mut self) {
        let (Some(one), Some(other)) = self.fingerprints() else {
            self.report.unchecked(
                "layout of the pages: only a running engine knows it; kvasir.describe_file has it written",
            );
            return;
        };
        if one != other && !self.found {
            self.differ(
                "the layout of the KV cache's pages",
                shown(&one),
                shown(&other),
                "run the same version of vLLM and the same attention backend on machines with the same instructions",
            );
        }
    }

    fn fingerprints(&self) -> (Option<Value>, Option<Value>) {
        let of = |side: &Side<'_>| side.engine.identity?.get("fingerprint").cloned();
        (of(self.one), of(self.other))
    }

    fn check_servers(&mut self) {
        let (one, other) = (&self.one.settings.sockets, &self.other.settings.sockets);
        if one.is_empty() || other.is_empty() || same(one, other) {
            return;
        }
        self.differ(
            "the server",
            listed(one),
            listed(other),
            "give both the same kvasir.socket, of several servers the same list in the same order",
        );
    }

    fn check_roles(&mut self) {
        let (one, other) = (&self.one.settings, &self.other.settings);
        if one.only_loads && other.only_loads {
            self.report.silent(
                "nobody_stores",
                format_args!(
                    "{} and {} are both \"kv_consumer\", so neither stores anything; one has to be \"kv_producer\" or \"kv_both\"",
                    self.one.name, self.other.name
                ),
            );
        }
        if one.only_stores && other.only_stores {
            self.report.silent(
                "nobody_loads",
                format_args!(
                    "{} and {} are both \"kv_producer\", so neither loads anything; one has to be \"kv_consumer\" or \"kv_both\"",
                    self.one.name, self.other.name
                ),
            );
        }
    }
}

/// Sockets by the files that they are, where those can be found.
fn same(one: &[PathBuf], other: &[PathBuf]) -> bool {
    let real = |paths: &[PathBuf]| -> Vec<PathBuf> {
        paths
            .iter()
            .map(|path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)))
            .map(|path| path.unwrap_or_default())
            .collect()
    };
    // A list of servers is part of the identity as it is written.
    one == other || (one.len() == 1 && other.len() == 1 && real(one) == real(other))
}

fn listed(sockets: &[PathBuf]) -> String {
    let paths: Vec<String> = sockets.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// What is different, in the words of the descriptions, and both values. Only what goes into the fingerprint of the layout counts:
/// groups that are cached, with how many tokens a block stands for and what its pages hold.
fn first_difference(one: &GeometryInput, other: &GeometryInput) -> Option<(String, String, String)> {
    let told = |what: &str, one: String, other: String| (one != other).then(|| (what.to_owned(), one, other));
    let cached = |input: &GeometryInput| -> Vec<(usize, KvGroup)> {
        let groups = input.groups.iter().cloned().enumerate();
        groups.filter(|(_, group)| group.prefix_cacheable).collect()
    };
    let (dcp, groups) = ([one.dcp, other.dcp], [cached(one), cached(other)]);
    told("dcp", dcp[0].to_string(), dcp[1].to_string())
        .or_else(|| {
            let count = |index: usize| groups[index].len().to_string();
            told("the number of cached KV cache groups", count(0), count(1))
        })
        .or_else(|| {
            let pairs = groups[0].iter().zip(&groups[1]);
            pairs
                .flat_map(|((index, one), (_, other))| {
                    let both = fields(one, dcp[0]).into_iter().zip(fields(other, dcp[1]));
                    both.map(move |((what, one), (_, other))| {
                        (format!("{what} of group {index}"), one, other)
                    })
                })
                .find(|(_, one, other)| one != other)
        })
}

fn fields(group: &KvGroup, dcp: u64) -> Vec<(&'static str, String)> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
    let layers = group.layers.iter().map(|layer| {
        let dtype = or_none(layer.dtype.as_ref().map(ToString::to_string));
        let slots = layer
            .tokens_per_state
            .as_ref()
            .filter(|ratio| ratio.to_string() != "1");
        let slots = slots.map_or(String::new(), |ratio| format!(", {ratio} tokens a slot"));
        let pages = format!("{} of {dtype}{slots}", pages(layer.page_size_bytes));
        (layer.count, pages)
    });
    // Layers that are alike may stand alone or be counted.
    let mut counted: Vec<(u64, String)> = Vec::new();
    for (count, like) in layers {
        match counted.last_mut().filter(|(_, last)| *last == like) {
            Some((all, _)) => *all += count,
            None => counted.push((count, like)),
        }
    }
    let layers: Vec<String> = counted
        .into_iter()
        .map(|(count, like)| format!("{count} layers of {like}"))
        .collect();
    let sharded = dcp > 1 && group.dcp_sharded;
    vec![
        ("kind", group.kind.to_string()),
        ("block_size", group.block_size.to_string()),
        ("window", or_none(group.window.map(|window| window.to_string()))),
        ("dcp_sharded", sharded.to_string()),
        ("layers", layers.join(", ")),
    ]
}

/// Exactly: two sizes that read the same are not equal.
fn pages(bytes: u64) -> String {
    format!("{bytes} bytes a page")
}
