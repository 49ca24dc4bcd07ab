//! The layout fingerprint: everything that decides the order of bytes inside an object, in 32 bytes.
//!
//! Two workers may exchange pages exactly if their fingerprints are equal. Pages are opaque, so whatever
//! makes an engine arrange bytes differently has to be an input here: kernel block size, attention backend,
//! instruction set, layout tag, dtype, and whether something rearranged the page.

/// Version of the order in which an object holds pages: block by block in token order, inside a block layer
/// by layer in registered order, each page whole and unpadded.
pub const BYTE_ORDER_VERSION: u32 = 1;

/// Domain separator and version of the fingerprint itself.
const VERSION: &str = "kvasir.layout.1";

/// What decides the bytes of one layer's page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFingerprint {
    /// Bytes of one block of this layer.
    pub page_size_bytes: u64,
    /// Element types, by name.
    pub dtype: String,
    /// Tokens per state, numerator and denominator; none for recurrent state.
    pub tokens_per_state: Option<(u64, u64)>,
    /// Name of what rearranged the page, where something did. The vLLM connector moves pages as they are.
    pub edited_by: Option<String>,
    /// Tokens per kernel page; for an edited page it must be given, since it decides the order inside.
    pub kernel_block_size: Option<u64>,
}

/// What decides the bytes of one group's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFingerprint {
    /// Kind, by its engine name.
    pub kind: String,
    /// Tokens of one block id before context parallelism.
    pub block_size: u64,
    /// Tokens of one block id after it; 0 for scratch.
    pub tokens_per_block: u64,
    /// Window in tokens.
    pub window: Option<u64>,
    /// Layers in registered order, one entry per layer.
    pub layers: Vec<LayerFingerprint>,
}

/// All inputs of the fingerprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintInput {
    /// Layout tag of the engine's KV cache, for example `LBHNC`.
    pub layout: String,
    /// Attention backend, for example `CPU_ATTN`.
    pub attention_backend: String,
    /// Instruction-set packing of the backend, for example `vec16`; empty where it has none.
    pub isa: String,
    /// Decode context parallel size.
    pub dcp: u64,
    /// Groups by index.
    pub groups: Vec<GroupFingerprint>,
}

/// Why no fingerprint can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// Equal shapes with different tags hold different bytes, so a tag cannot be left out.
    #[error("the engine gave no {what}; without it pages of different layouts would look alike")]
    MissingTag {
        /// Which input is empty.
        what: &'static str,
    },
    /// The order inside an edited page is that of its kernel pages.
    #[error("group {group}, layer {layer} was edited by {rule:?} but gives no kernel block size")]
    MissingKernelBlock {
        /// Group index.
        group: usize,
        /// Layer index inside the group.
        layer: usize,
        /// Rule that edited the page.
        rule: String,
    },
}

/// Hashes `input` field by field, in fixed order, every variable part prefixed with its length.
pub fn fingerprint(input: &FingerprintInput) -> Result<[u8; 32], FingerprintError> {
    for (what, tag) in [
        ("layout tag", &input.layout),
        ("attention backend", &input.attention_backend),
    ] {
        if tag.is_empty() {
            return Err(FingerprintError::MissingTag { what });
        }
    }
    let mut fields = Fields(blake3::Hasher::new());
    fields.text(VERSION);
    fields.number(u64::from(BYTE_ORDER_VERSION));
    fields.text(&input.layout);
    fields.text(&input.attention_backend);
    fields.text(&input.isa);
    fields.number(input.dcp);
    fields.number(input.groups.len() as u64);
    for (index, group) in input.groups.iter().enumerate() {
        fields.text(&group.kind);
        fields.number(group.block_size);
        fields.number(group.tokens_per_block);
        fields.optional(group.window);
        fields.number(group.layers.len() as u64);
        for (at, layer) in group.layers.iter().enumerate() {
            if let (Some(rule), None) = (&layer.edited_by, layer.kernel_block_size) {
                let rule = rule.clone();
                return Err(FingerprintError::MissingKernelBlock {
                    group: index,
                    layer: at,
                    rule,
                });
            }
            fields.layer(layer);
        }
    }
    Ok(*fields.0.finalize().as_bytes())
}

struct Fields(blake3::Hasher);

impl Fields {
    fn number(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }

    fn text(&mut self, value: &str) {
        self.number(value.len() as u64);
        self.0.update(value.as_bytes());
    }

    fn optional(&mut self, value: Option<u64>) {
        self.number(u64::from(value.is_some()));
        self.number(value.unwrap_or(0));
    }

    fn layer(&mut self, layer: &LayerFingerprint) {
        self.number(layer.page_size_bytes);
        self.text(&layer.dtype);
        let (numerator, denominator) = layer.tokens_per_state.unzip();
        self.optional(numerator);
        self.optional(denominator);
        self.number(u64::from(layer.edited_by.is_some()));
        self.text(layer.edited_by.as_deref().unwrap_or(""));
        self.optional(layer.kernel_block_size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FingerprintInput {
        let layer = LayerFingerprint {
            page_size_bytes: 65536,
            dtype: "bfloat16".into(),
            tokens_per_state: Some((1, 1)),
            edited_by: Some("repacked".into()),
            kernel_block_size: Some(32),
        };
        let group = GroupFingerprint {
            kind: "full_attention".into(),
            block_size: 544,
            tokens_per_block: 544,
            window: None,
            layers: vec![layer],
        };
        FingerprintInput {
            layout: "LBHNC".into(),
            attention_backend: "CPU_ATTN".into(),
            isa: "vec16".into(),
            dcp: 1,
            groups: vec![group],
        }
    }

    #[test]
    fn every_input_changes_it_and_equal_inputs_agree() {
        let edits: &[fn(&mut FingerprintInput)] = &[
            |_| {},
            |i| i.layout = "LBNHC".into(),
            |i| i.attention_backend = "FLASH_ATTN".into(),
            |i| i.isa = "amx".into(),
            |i| i.dcp = 2,
            |i| {
                let group = i.groups[0].clone();
                i.groups.push(group);
            },
            |i| i.groups[0].kind = "mla_attention".into(),
            |i| i.groups[0].block_size = 272,
            |i| i.groups[0].tokens_per_block = 1088,
            |i| i.groups[0].window = Some(0),
            |i| i.groups[0].window = Some(1024),
            |i| {
                let layer = i.groups[0].layers[0].clone();
                i.groups[0].layers.push(layer);
            },
            |i| i.groups[0].layers[0].page_size_bytes = 32768,
            |i| i.groups[0].layers[0].dtype = "float16".into(),
            |i| i.groups[0].layers[0].tokens_per_state = Some((1, 4)),
            |i| i.groups[0].layers[0].tokens_per_state = Some((4, 1)),
            |i| i.groups[0].layers[0].tokens_per_state = None,
            |i| i.groups[0].layers[0].edited_by = None,
            |i| i.groups[0].layers[0].edited_by = Some("transposed".into()),
            |i| i.groups[0].layers[0].kernel_block_size = Some(16),
        ];
        let mut seen = std::collections::HashSet::new();
        for (index, edit) in edits.iter().enumerate() {
            let mut input = sample();
            edit(&mut input);
            let print = fingerprint(&input).unwrap();
            assert_eq!(print, fingerprint(&input.clone()).unwrap());
            assert!(seen.insert(print), "edit {index} left the fingerprint unchanged");
        }
    }

    #[test]
    fn text_does_not_run_into_its_neighbour() {
        let (mut left, mut right) = (sample(), sample());
        left.attention_backend = "AB".into();
        left.isa = "C".into();
        right.attention_backend = "A".into();
        right.isa = "BC".into();
        assert_ne!(fingerprint(&left), fingerprint(&right));
    }

    #[test]
    fn what_decides_the_bytes_cannot_be_left_out() {
        let mut input = sample();
        input.layout.clear();
        assert_eq!(
            fingerprint(&input),
            Err(FingerprintError::MissingTag { what: "layout tag" })
        );
        let mut input = sample();
        input.groups[0].layers[0].kernel_block_size = None;
        assert!(matches!(
            fingerprint(&input),
            Err(FingerprintError::MissingKernelBlock {
                group: 0,
                layer: 0,
                ..
            })
        ));
    }
}
