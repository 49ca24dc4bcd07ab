//! `kvasir plan segments`: where the segments of a reserved KV cache lie and what commits map.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::shape::{Shape, unknown_fields};
use super::{Answer, PlanError, number, read_input, table};
use crate::describe::{self, Fields};
use crate::geometry::Bytes;
use crate::geometry::segments::{
    Commit, HeadSlices, Layout, Placement, Segment, SegmentError, SegmentInput, SegmentPlan, TensorPlacement,
};

/// Most segments that the table for people lists.
const LISTED_SEGMENTS: usize = 16;

/// What a description may hold; docs/geometry.md says what it means.
const DESCRIPTION: Shape = Shape {
    fields: &["layout", "granule", "blocks", "total_bytes"],
    lists: &[("tensors", &TENSOR)],
};
const TENSOR: Shape = Shape {
    fields: &[
        "n_layers",
        "offset",
        "layer_stride",
        "block_stride",
        "num_heads",
        "head_stride",
    ],
    lists: &[],
};

/// Arguments of `kvasir plan segments`.
#[derive(Debug, Args)]
pub struct SegmentsArgs {
    /// JSON description of the tensor placements, or - for standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Blocks to commit; may be repeated, the whole capacity by default
    #[arg(long = "commit", value_name = "BLOCKS", allow_hyphen_values = true)]
    commits: Vec<String>,
    /// The engine does not register this memory with a device, so nothing is padded
    #[arg(long)]
    no_register: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &SegmentsArgs) -> Result<Answer, PlanError> {
    let commits = args
        .commits
        .iter()
        .map(|text| number("--commit", text))
        .collect::<Result<Vec<_>, _>>()?;
    answer(&read_input(&args.file)?, &commits, !args.no_register)
}

/// The segments of the placements described in `bytes`, and what each commit maps.
pub fn answer(bytes: &[u8], commits: &[u64], registers_device_memory: bool) -> Result<Answer, PlanError> {
    let value = describe::json(bytes)?;
    let unknown = unknown_fields(&value, &DESCRIPTION);
    let planned = read(&value)
        .and_then(|input| SegmentPlan::new(&input, registers_device_memory).map_err(segment_error));
    let answer = planned.map(|plan| {
        let capacity = [plan.blocks()];
        let commits = if commits.is_empty() { &capacity } else { commits };
        let commits: Vec<Commit> = commits.iter().map(|&blocks| plan.commit(blocks)).collect();
        Answer {
            json: to_json(&plan, &commits),
            text: to_text(&plan, &commits),
            unknown_fields: Vec::new(),
        }
    });
    super::with_unknown_fields(answer, unknown)
}

fn segment_error(error: SegmentError) -> PlanError {
    let mut plan = PlanError::new(error.kind(), &error);
    plan.groups = error
        .tensor()
        .map(|tensor| (tensor, error.to_string()))
        .into_iter()
        .collect();
    plan
}

/// Reads the description of tensor placements. Every tensor that cannot be read is listed in one error.
fn read(value: &Value) -> Result<SegmentInput, PlanError> {
    let invalid = |reason: String| PlanError::new("invalid", reason);
    let fields = Fields::of(value).map_err(invalid)?;
    let tag = fields.text("layout").map_err(invalid)?;
    let tag = tag.ok_or_else(|| {
        PlanError::new(
            "layout",
            "the layout tag is missing; strides alone cannot tell layouts apart",
        )
    })?;
    let layout: Layout = tag.parse().map_err(|error| PlanError::new("layout", error))?;
    let mut tensors = Vec::new();
    let mut bad = Vec::new();
    for (index, tensor) in fields.list("tensors").map_err(invalid)?.iter().enumerate() {
        match read_tensor(tensor) {
            Ok(tensor) => tensors.push(tensor),
            Err(reason) => bad.push((index, reason)),
        }
    }
    if !bad.is_empty() {
        return Err(PlanError::listing("invalid", "tensor", bad));
    }
    Ok(SegmentInput {
        layout,
        granule: fields.required_number("granule").map_err(invalid)?,
        blocks: fields.required_number("blocks").map_err(invalid)?,
        total_bytes: fields.required_number("total_bytes").map_err(invalid)?,
        tensors,
    })
}

fn read_tensor(value: &Value) -> Result<TensorPlacement, String> {
    let fields = Fields::of(value)?;
    let heads = match (fields.number("num_heads")?, fields.number("head_stride")?) {
        (Some(count), Some(stride)) => Some(HeadSlices { count, stride }),
        (None, None) => None,
        _ => return Err("num_heads and head_stride must be given together".to_owned()),
    };
    Ok(TensorPlacement {
        n_layers: fields.required_number("n_layers")?,
        offset: fields.required_number("offset")?,
        layer_stride: fields.required_number("layer_stride")?,
        block_stride: fields.required_number("block_stride")?,
        heads,
    })
}

fn to_json(plan: &SegmentPlan, commits: &[Commit]) -> Value {
    let segments = |placement: &Placement| -> Vec<Value> {
        let entry =
            |segment: &Segment| json!({"offset": segment.offset, "block_stride": segment.block_stride});
        placement.segments.iter().map(entry).collect()
    };
    let commits = commits.iter().map(|commit| {
        json!({
            "blocks": commit.blocks,
            "nominal_bytes": commit.nominal_bytes,
            "padded_physical_bytes": commit.padded_physical_bytes,
            "every_segment_one_chunk": commit.every_segment_one_chunk,
            "padded_every_segment_one_chunk": commit.padded_every_segment_one_chunk,
        })
    });
    json!({
        "num_segments": plan.plain().segments.len(),
        "block_alignment": plan.block_alignment(),
        "segments": segments(plan.plain()),
        "padded": {"segments": segments(plan.padded()), "total_bytes": plan.padded().total_bytes},
        "commits": commits.collect::<Vec<_>>(),
    })
}

fn to_text(plan: &SegmentPlan, commits: &[Commit]) -> String {
    let mut text = String::new();
    let (plain, padded) = (plan.plain(), plan.padded());
    let count = plain.segments.len();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{} with room for {} blocks: {count} segment{}, {} of address space, {} padded to granules of \
         {}",
        plan.layout(),
        plan.blocks(),
        if count == 1 { "" } else { "s" },
        Bytes(plain.total_bytes),
        Bytes(padded.total_bytes),
        Bytes(plan.granule()),
    );
    let _ = writeln!(
        text,
        "rounding the block count to multiples of {} would leave {} blocks; all {} stay\n",
        plan.block_alignment(),
        plan.blocks() / plan.block_alignment() * plan.block_alignment(),
        plan.blocks(),
    );
    let rows = plain
        .segments
        .iter()
        .zip(&padded.segments)
        .enumerate()
        .take(LISTED_SEGMENTS);
    let rows = rows.map(|(index, (plain, padded))| {
        [index as u64, plain.offset, padded.offset, plain.block_stride]
            .map(|number| number.to_string())
            .to_vec()
    });
    text.push_str(&table::render(
        &["segment", "offset", "padded offset", "block stride"],
        0,
        &rows.collect::<Vec<_>>(),
    ));
    if count > LISTED_SEGMENTS {
        let _ = writeln!(text, "... and {} more", count - LISTED_SEGMENTS);
    }
    text.push('\n');
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let rows = commits.iter().map(|commit| {
        vec![
            commit.blocks.to_string(),
            Bytes(commit.nominal_bytes).to_string(),
            Bytes(commit.padded_physical_bytes).to_string(),
            yes(commit.every_segment_one_chunk),
            yes(commit.padded_every_segment_one_chunk),
        ]
    });
    let headings = [
        "commit",
        "size",
        "padded physical",
        "one chunk each",
        "padded one chunk each",
    ];
    text.push_str(&table::render(&headings, 0, &rows.collect::<Vec<_>>()));
    text
}
