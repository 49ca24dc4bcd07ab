//! The description of an engine's settings: what the user gives to vLLM, by vLLM's names.

use serde_json::{Map, Value};

use crate::cli::plan::PlanError;
use crate::describe::{self, Fields, shown};
use crate::geometry::GeometryInput;

/// Architectures whose mixers are of the Mamba-2 kind, by the names in a model's `config.json`.
const MAMBA2: [&str; 5] = [
    "FalconH1ForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "Mamba2ForCausalLM",
    "NemotronHForCausalLM",
    "Zamba2ForCausalLM",
];

/// The settings. What is none was not given, and then nothing is concluded from it unless vLLM's own default is meant.
pub(super) struct Engine<'a> {
    /// None: no connector at all.
    pub(super) kv_transfer_config: Option<&'a Map<String, Value>>,
    pub(super) mamba2: Option<&'a str>,
    pub(super) device: Option<&'a str>,
    pub(super) multiprocessing: Option<bool>,
    pub(super) enable_prefix_caching: Option<bool>,
    pub(super) enable_chunked_prefill: Option<bool>,
    pub(super) use_replayssm: Option<bool>,
    pub(super) block_size: Option<u64>,
    pub(super) max_num_batched_tokens: Option<u64>,
    pub(super) max_model_len: Option<u64>,
    pub(super) prefill_context_parallel_size: Option<u64>,
    pub(super) groups: Option<GeometryInput>,
    /// Its version.
    pub(super) vllm: Option<&'a str>,
    pub(super) attention_backend: Option<&'a str>,
    /// What engines have to have in common to share, as the connector makes it.
    pub(super) identity: Option<&'a Map<String, Value>>,
}

impl<'a> Engine<'a> {
    /// Reads a description, or lists every field that cannot be read.
    pub(super) fn read(document: &'a Value) -> Result<Self, PlanError> {
        let fields = Fields::of(document).map_err(|reason| PlanError::new("invalid", reason))?;
        let mut reasons = Vec::new();
        let engine = Self {
            kv_transfer_config: keep(&mut reasons, object(fields, "kv_transfer_config")),
            mamba2: keep(&mut reasons, mamba2(fields)),
            device: keep(&mut reasons, fields.text("device")),
            multiprocessing: keep(&mut reasons, fields.flag("multiprocessing")),
            enable_prefix_caching: keep(&mut reasons, fields.flag("enable_prefix_caching")),
            enable_chunked_prefill: keep(&mut reasons, fields.flag("enable_chunked_prefill")),
            use_replayssm: keep(&mut reasons, fields.flag("use_replayssm")),
            block_size: keep(&mut reasons, positive(fields, "block_size")),
            max_num_batched_tokens: keep(&mut reasons, positive(fields, "max_num_batched_tokens")),
            max_model_len: keep(&mut reasons, positive(fields, "max_model_len")),
            prefill_context_parallel_size: keep(
                &mut reasons,
                positive(fields, "prefill_context_parallel_size"),
            ),
            groups: None,
            vllm: keep(&mut reasons, fields.text("vllm")),
            attention_backend: keep(&mut reasons, fields.text("attention_backend")),
            identity: keep(&mut reasons, object(fields, "identity")),
        };
        let groups = fields
            .get("groups")
            .map(|_| describe::read_groups(document, None))
            .transpose();
        match groups {
            Ok(groups) if reasons.is_empty() => Ok(Self { groups, ..engine }),
            Ok(_) => Err(PlanError::new("invalid", reasons.join("; "))),
            Err(error) => {
                let mut error = PlanError::from(error);
                reasons.push(error.message);
                error.message = reasons.join("; ");
                Err(error)
            }
        }
    }

    /// Whether the model keeps recurrent state; none: nothing says so, and nothing says the opposite.
    pub(super) fn is_recurrent(&self) -> Option<bool> {
        if self.mamba2.is_some() {
            return Some(true);
        }
        let groups = &self.groups.as_ref()?.groups;
        Some(
            groups
                .iter()
                .any(|group| group.prefix_cacheable && group.kind.is_recurrent()),
        )
    }

    pub(super) fn is_on_cpu(&self) -> bool {
        self.device == Some("cpu")
    }
}

fn keep<T>(reasons: &mut Vec<String>, read: Result<Option<T>, String>) -> Option<T> {
    read.map_err(|reason| reasons.push(reason)).ok().flatten()
}

fn object<'a>(fields: Fields<'a>, key: &str) -> Result<Option<&'a Map<String, Value>>, String> {
    let read = |value: &'a Value| {
        value
            .as_object()
            .ok_or_else(|| format!("{key} is {}, expected an object", shown(value)))
    };
    fields.get(key).map(read).transpose()
}

fn positive(fields: Fields<'_>, key: &str) -> Result<Option<u64>, String> {
    match fields.number(key)? {
        Some(0) => Err(format!("{key} is 0, expected an integer above 0")),
        number => Ok(number),
    }
}

/// The first architecture of the Mamba-2 kind.
fn mamba2(fields: Fields<'_>) -> Result<Option<&'static str>, String> {
    if fields.get("architectures").is_none() {
        return Ok(None);
    }
    for value in fields.list("architectures")? {
        let name = value
            .as_str()
            .ok_or_else(|| format!("architectures holds {}, expected names", shown(value)))?;
        if let Some(known) = MAMBA2.iter().find(|known| **known == name) {
            return Ok(Some(known));
        }
    }
    Ok(None)
}
