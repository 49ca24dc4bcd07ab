//! Views over real bytes: same storage, exactly the tensor's bytes, loud where they do not add up.

use super::*;

/// A storage whose bytes name their own positions.
struct Storage {
    bytes: Vec<u8>,
}

impl Storage {
    fn new(len: u64) -> Self {
        Self {
            bytes: (0..len).map(|at| (at * 31 % 251) as u8).collect(),
        }
    }

    /// A tensor over this storage; `strides` in elements.
    fn tensor(
        &self,
        offset: u64,
        shape: &[u64],
        strides: &[u64],
        itemsize: u64,
        block_dim: usize,
    ) -> TensorDesc {
        TensorDesc {
            storage: StorageId(7),
            storage_bytes: self.bytes.len() as u64,
            offset,
            shape: shape.to_vec(),
            strides: strides.iter().map(|stride| stride * itemsize).collect(),
            itemsize,
            block_dim,
        }
    }
}

/// Row-major strides in elements.
fn dense(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for dim in (0..shape.len().saturating_sub(1)).rev() {
        strides[dim] = strides[dim + 1] * shape[dim + 1];
    }
    strides
}

/// Byte addresses of `indices` of a tensor's block dimension, found element by element.
fn addresses(tensor: &TensorDesc, indices: std::ops::Range<u64>) -> Vec<u64> {
    let mut starts = vec![tensor.offset];
    for (dim, (&extent, &stride)) in tensor.shape.iter().zip(&tensor.strides).enumerate() {
        let range = if dim == tensor.block_dim {
            indices.clone()
        } else {
            0..extent
        };
        starts = starts
            .iter()
            .flat_map(|start| range.clone().map(move |index| start + index * stride))
            .collect();
    }
    let mut bytes: Vec<u64> = starts
        .iter()
        .flat_map(|start| *start..start + tensor.itemsize)
        .collect();
    bytes.sort_unstable();
    bytes
}

/// Byte addresses of one block of a view.
fn block_addresses(view: &PageView, block: u64) -> Vec<u64> {
    let start = |plane: &Plane| plane.offset + block * plane.block_stride;
    let mut bytes: Vec<u64> = view
        .planes
        .iter()
        .flat_map(|plane| start(plane)..start(plane) + plane.bytes)
        .collect();
    bytes.sort_unstable();
    bytes
}

fn layer(
    kind: GroupKind,
    block_size: u64,
    num_blocks: u64,
    page: u64,
    tensors: Vec<TensorDesc>,
) -> LayerTensors {
    LayerTensors {
        layer: "model.layers.3".into(),
        kind,
        block_size,
        num_blocks,
        page_size_bytes: page,
        real_page_bytes: None,
        tokens_per_state: None,
        tensors,
    }
}

fn view(layer: &LayerTensors) -> Result<PageView, ViewError> {
    Registry::default().view(layer, true)
}

/// The view covers exactly the bytes of `k` kernel pages per block, in the tensors' own storage.
fn check_exact(storage: &Storage, layer: &LayerTensors, rule: &str, k: u64) -> PageView {
    let view = view(layer).unwrap();
    assert_eq!(view.rule, rule);
    assert_eq!(view.kernel_pages_per_block, k);
    assert_eq!(view.kernel_block_size, layer.block_size / k);
    for block in 0..layer.num_blocks {
        let pages = block * k..(block + 1) * k;
        let mut expected: Vec<u64> = layer
            .tensors
            .iter()
            .flat_map(|t| addresses(t, pages.clone()))
            .collect();
        expected.sort_unstable();
        assert_eq!(block_addresses(&view, block), expected, "block {block}");
    }
    // Not a copy: the view's first byte is the tensor's first byte in memory.
    let first = &layer.tensors[0];
    assert!(view.planes.iter().all(|plane| plane.storage == first.storage));
    let base = storage.bytes.as_ptr();
    let through_view = base.wrapping_add(view.planes[0].offset as usize);
    assert_eq!(through_view, base.wrapping_add(first.offset as usize));
    view
}

#[test]
fn recurrent_state_is_one_padded_page_per_block() {
    // Four blocks of 160 bytes; 96 bytes of convolution and state, then padding. As one byte tensor:
    let storage = Storage::new(4 * 160);
    let bytes = storage.tensor(0, &[4, 1, 1, 96], &[160, 96, 96, 1], 1, 0);
    let single = layer(GroupKind::Mamba, 32, 4, 160, vec![bytes]);
    // ... and as typed pieces of the page.
    let conv = storage.tensor(0, &[4, 4, 8], &[80, 8, 1], 2, 0);
    let state = storage.tensor(64, &[4, 2, 4], &[40, 4, 1], 4, 0);
    let pieces = layer(GroupKind::Mamba, 32, 4, 160, vec![conv, state]);
    for layer in [single, pieces] {
        let view = view(&layer).unwrap();
        assert_eq!(
            (view.rule, view.edited, view.page_bytes),
            ("recurrent-page", true, 160)
        );
        let page = view.contiguous().unwrap();
        assert_eq!((page.offset, page.block_stride, page.bytes), (0, 160, 160));
        let base = storage.bytes.as_ptr();
        assert_eq!(
            base.wrapping_add(page.offset as usize),
            base.wrapping_add(layer.tensors[0].offset as usize)
        );
        let real = LayerTensors {
            real_page_bytes: Some(96),
            ..layer.clone()
        };
        assert!(Registry::default().view(&real, true).is_ok());
        let wrong = LayerTensors {
            real_page_bytes: Some(100),
            ..layer.clone()
        };
        let error = Registry::default().view(&wrong, true).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("model.layers.3") && text.contains("100") && text.contains("96"),
            "{text}"
        );
        let small = LayerTensors {
            page_size_bytes: 90,
            ..layer
        };
        assert!(matches!(
            Registry::default().view(&small, true),
            Err(ViewError::Bytes {
                expected: 90,
                found: 96,
                ..
            })
        ));
    }
}

#[test]
fn recurrent_pieces_on_top_of_each_other_are_loud() {
    let storage = Storage::new(4 * 160);
    let conv = storage.tensor(0, &[4, 4, 8], &[80, 8, 1], 2, 0);
    let state = storage.tensor(32, &[4, 2, 4], &[40, 4, 1], 4, 0);
    let overlapping = layer(GroupKind::Mamba, 32, 4, 160, vec![conv, state]);
    assert!(matches!(
        view(&overlapping),
        Err(ViewError::Bytes {
            expected: 160,
            found: 64,
            ..
        })
    ));
}

#[test]
fn recurrent_pages_inside_whole_blocks_keep_the_block_stride() {
    // Blocks outermost: this layer's page of 64 bytes lies at 128 in every block of 512.
    let storage = Storage::new(3 * 512);
    let state = storage.tensor(128, &[3, 48], &[512, 1], 1, 0);
    let view = view(&layer(GroupKind::Mamba, 32, 3, 64, vec![state])).unwrap();
    let page = view.contiguous().unwrap();
    assert_eq!((page.offset, page.block_stride, page.bytes), (128, 512, 64));
}

#[test]
fn recurrent_slices_are_one_plane_each() {
    let storage = Storage::new(4 * (64 + 32));
    let conv = storage.tensor(0, &[4, 4, 8], &dense(&[4, 4, 8]), 2, 0);
    let state = storage.tensor(256, &[4, 2, 4], &dense(&[4, 2, 4]), 4, 0);
    let slices = layer(GroupKind::Mamba, 32, 4, 96, vec![conv, state]);
    let view = check_exact(&storage, &slices, "recurrent-slices", 1);
    assert_eq!(
        view.planes
            .iter()
            .map(|p| (p.offset, p.block_stride, p.bytes))
            .collect::<Vec<_>>(),
        [(0, 64, 64), (256, 32, 32)]
    );
    assert!(view.edited);
    // With a single block the slices touch, and are still two.
    let conv = storage.tensor(0, &[1, 4, 8], &dense(&[1, 4, 8]), 2, 0);
    let state = storage.tensor(64, &[1, 4, 4], &dense(&[1, 4, 4]), 4, 0);
    let single = layer(GroupKind::Mamba, 32, 1, 128, vec![conv, state]);
    assert_eq!(
        check_exact(&storage, &single, "recurrent-slices", 1).planes.len(),
        2
    );
    // A padded page whose padding is in no slice: the declared real bytes decide.
    let padded = LayerTensors {
        page_size_bytes: 128,
        real_page_bytes: Some(96),
        ..slices.clone()
    };
    assert_eq!(
        super::Registry::default().view(&padded, true).unwrap().page_bytes,
        96
    );
    let undeclared = LayerTensors {
        page_size_bytes: 128,
        ..slices
    };
    assert!(matches!(
        Registry::default().view(&undeclared, true),
        Err(ViewError::Bytes {
            expected: 128,
            found: 96,
            ..
        })
    ));
}

#[test]
fn sub_paged_attention_in_its_layouts() {
    // Three blocks of 32 tokens; the kernel's pages hold 8. Two heads of 4 elements of 2 bytes; keys and
    // values.
    let (blocks, k, tokens, heads, head) = (3, 4, 8, 2, 4);
    let row = tokens * heads * head * 2;
    let page = 2 * row * k;
    let storage = Storage::new(blocks * page);
    let pages = blocks * k;

    let shape = [pages, 2, tokens, heads, head];
    let fused = storage.tensor(0, &shape, &dense(&shape), 2, 0);
    let view = check_exact(
        &storage,
        &layer(GroupKind::FullAttention, 32, blocks, page, vec![fused]),
        "sub-paged-fused",
        k,
    );
    assert!(view.edited && view.contiguous().is_some());

    // Rank 4 with heads before tokens in memory: any order inside a kernel page is the same page.
    let shape = [pages, tokens, heads, 2 * head];
    let strides = [tokens * heads * 2 * head, 2 * head, tokens * 2 * head, 1];
    let permuted = storage.tensor(0, &shape, &strides, 2, 0);
    check_exact(
        &storage,
        &layer(GroupKind::SlidingWindow, 32, blocks, page, vec![permuted]),
        "sub-paged-fused",
        k,
    );

    let shape = [pages, tokens, heads, head];
    let strides = [2 * tokens * heads * head, heads * head, head, 1];
    let keys = storage.tensor(0, &shape, &strides, 2, 0);
    let values = storage.tensor(row, &shape, &strides, 2, 0);
    check_exact(
        &storage,
        &layer(GroupKind::FullAttention, 32, blocks, page, vec![keys, values]),
        "sub-paged-interleaved",
        k,
    );

    let keys = storage.tensor(0, &shape, &dense(&shape), 2, 0);
    let values = storage.tensor(pages * row, &shape, &dense(&shape), 2, 0);
    let pair = layer(GroupKind::FullAttention, 32, blocks, page, vec![keys, values]);
    let view = check_exact(&storage, &pair, "sub-paged-planes", k);
    assert_eq!(view.planes.len(), 2);

    let shape = [2, pages, tokens, heads, head];
    let both = storage.tensor(0, &shape, &dense(&shape), 2, 1);
    let one = layer(GroupKind::FullAttention, 32, blocks, page, vec![both]);
    check_exact(&storage, &one, "sub-paged-planes", k);

    // Planes have no room for padding: they tile the page without it.
    let padded = LayerTensors {
        page_size_bytes: page + 64,
        real_page_bytes: Some(page),
        ..pair
    };
    check_exact(&storage, &padded, "sub-paged-planes", k);
}

#[test]
fn sub_paged_latent_rows() {
    let (blocks, k, tokens, width) = (5, 3, 16, 9);
    let page = k * tokens * width * 2;
    let storage = Storage::new(blocks * page);
    for shape in [
        vec![blocks * k, tokens, width],
        vec![blocks * k, 1, tokens, width],
    ] {
        let rows = storage.tensor(0, &shape, &dense(&shape), 2, 0);
        check_exact(
            &storage,
            &layer(GroupKind::Mla, 48, blocks, page, vec![rows]),
            "sub-paged-latent",
            k,
        );
    }
}

#[test]
fn kernel_pages_that_do_not_tile_a_block_are_loud() {
    let storage = Storage::new(4096);
    let shape = [12, 2, 8, 2, 4];
    let fused = storage.tensor(0, &shape, &dense(&shape), 2, 0);
    // 256 bytes per kernel page; a page of 1000 bytes is no multiple.
    let odd = layer(GroupKind::FullAttention, 32, 3, 1000, vec![fused.clone()]);
    assert!(matches!(
        view(&odd),
        Err(ViewError::DoesNotFactor {
            page: 1000,
            kernel_page: 256,
            ..
        })
    ));
    // A multiple in bytes, but 30 tokens are not four kernel pages of whole tokens.
    let odd = layer(GroupKind::FullAttention, 30, 3, 1024, vec![fused.clone()]);
    assert!(matches!(
        view(&odd),
        Err(ViewError::DoesNotFactor { block_size: 30, .. })
    ));
    // Committed blocks beyond the tensor.
    let many = layer(GroupKind::FullAttention, 32, 4, 1024, vec![fused.clone()]);
    assert!(matches!(
        view(&many),
        Err(ViewError::Blocks {
            expected: 16,
            found: 12,
            ..
        })
    ));
    // Fewer committed blocks than capacity are normal.
    let few = layer(GroupKind::FullAttention, 32, 2, 1024, vec![fused.clone()]);
    assert_eq!(view(&few).unwrap().num_blocks, 2);
    // Kernel pages with a gap between them.
    let strides = [160, 64, 8, 4, 1];
    let gaps = storage.tensor(0, &[8, 2, 8, 2, 4], &strides, 2, 0);
    let gaps = layer(GroupKind::FullAttention, 32, 2, 1024, vec![gaps]);
    assert!(matches!(
        view(&gaps),
        Err(ViewError::Stride {
            expected: 256,
            found: 320,
            ..
        })
    ));
}

#[test]
fn declared_compression_is_left_alone() {
    // 256 tokens at 4 per state: 64 rows. The block dimension counts blocks, and nothing is edited.
    let storage = Storage::new(3 * 64 * 10);
    let shape = [3, 64, 10];
    let rows = storage.tensor(0, &shape, &dense(&shape), 1, 0);
    let compressed = LayerTensors {
        tokens_per_state: Ratio::new(4, 1),
        ..layer(GroupKind::Mla, 256, 3, 640, vec![rows])
    };
    let view = check_exact(&storage, &compressed, "pass-through", 1);
    assert!(!view.edited);
    // The same bytes cut finer would be sub-pages, were no compression declared: here they are an error.
    let shape = [6, 32, 10];
    let finer = storage.tensor(0, &shape, &dense(&shape), 1, 0);
    let finer = LayerTensors {
        tensors: vec![finer],
        ..compressed
    };
    assert!(matches!(
        Registry::default().view(&finer, true),
        Err(ViewError::Bytes {
            expected: 640,
            found: 320,
            ..
        })
    ));
    // Packed bytes inside a slot are no compression, so undeclared sub-pages of them are restored.
    let plain = LayerTensors {
        tokens_per_state: Some(Ratio::ONE),
        ..finer
    };
    assert_eq!(
        Registry::default().view(&plain, true).unwrap().rule,
        "sub-paged-latent"
    );
}

#[test]
fn without_recurrent_layers_nothing_is_edited() {
    let storage = Storage::new(3 * 1024);
    let shape = [12, 2, 8, 2, 4];
    let fused = storage.tensor(0, &shape, &dense(&shape), 2, 0);
    let sub_paged = layer(GroupKind::FullAttention, 32, 3, 1024, vec![fused]);
    let error = Registry::default().view(&sub_paged, false).unwrap_err();
    assert!(matches!(
        error,
        ViewError::Bytes {
            expected: 1024,
            found: 256,
            rule: "pass-through",
            ..
        }
    ));
}

#[test]
fn plain_tensors_pass_through_with_any_stride() {
    let storage = Storage::new(8192);
    // Rows further apart than they are long: a page is several runs, and exactly those.
    let strided = storage.tensor(16, &[3, 4, 10], &[100, 16, 1], 2, 0);
    let strided = layer(GroupKind::Mla, 4, 3, 80, vec![strided]);
    let view = check_exact(&storage, &strided, "pass-through", 1);
    assert_eq!(view.planes.len(), 4);
    // Heads outside the block: one plane per head.
    let heads = storage.tensor(0, &[5, 2, 4, 8], &[32, 160, 8, 1], 2, 0);
    let heads = layer(GroupKind::FullAttention, 4, 5, 128, vec![heads]);
    let view = check_exact(&storage, &heads, "pass-through", 1);
    assert_eq!(
        view.planes
            .iter()
            .map(|p| (p.offset, p.block_stride, p.bytes))
            .collect::<Vec<_>>(),
        [(0, 64, 64), (320, 64, 64)]
    );
    // A padded page is copied with its padding, but only up to the next one.
    let padded = storage.tensor(0, &[3, 40], &[64, 1], 2, 0);
    let padded = LayerTensors {
        real_page_bytes: Some(80),
        ..layer(GroupKind::FullAttention, 4, 3, 128, vec![padded])
    };
    assert_eq!(Registry::default().view(&padded, false).unwrap().page_bytes, 128);
    let close = LayerTensors {
        page_size_bytes: 130,
        ..padded
    };
    assert!(matches!(
        Registry::default().view(&close, false),
        Err(ViewError::Stride {
            expected: 130,
            found: 128,
            ..
        })
    ));
}

#[test]
fn edited_pages_refuse_content_aware_work() {
    let storage = Storage::new(4 * 160);
    let bytes = storage.tensor(0, &[4, 96], &[160, 1], 1, 0);
    let edited = view(&layer(GroupKind::Mamba, 32, 4, 160, vec![bytes])).unwrap();
    let error = edited.require_content("fp8 compression").unwrap_err();
    assert!(
        error.to_string().contains("fp8 compression") && error.to_string().contains("recurrent-page"),
        "{error}"
    );
    let plain = storage.tensor(0, &[4, 160], &[160, 1], 1, 0);
    let plain = view(&layer(GroupKind::FullAttention, 32, 4, 160, vec![plain])).unwrap();
    assert_eq!(plain.require_content("fp8 compression"), Ok(()));
}

#[test]
fn contradictions_are_named() {
    let storage = Storage::new(1024);
    let good = storage.tensor(0, &[4, 96], &[160, 1], 1, 0);
    let bad = [
        TensorDesc {
            strides: vec![160],
            ..good.clone()
        },
        TensorDesc {
            block_dim: 2,
            ..good.clone()
        },
        TensorDesc {
            itemsize: 0,
            ..good.clone()
        },
        TensorDesc {
            shape: vec![4, 0],
            ..good.clone()
        },
        TensorDesc {
            offset: 600,
            ..good.clone()
        },
        TensorDesc {
            strides: vec![u64::MAX, 1],
            ..good.clone()
        },
        TensorDesc {
            shape: vec![4, 8, 12],
            strides: vec![160, 4, 1],
            ..good.clone()
        },
    ];
    for tensor in bad {
        let error = view(&layer(GroupKind::FullAttention, 32, 4, 96, vec![tensor.clone()])).unwrap_err();
        assert!(
            matches!(error, ViewError::Malformed { tensor: 0, .. }),
            "{tensor:?}: {error}"
        );
    }
    let none = layer(GroupKind::FullAttention, 32, 4, 96, vec![]);
    assert!(matches!(view(&none), Err(ViewError::Empty { tensors: 0, .. })));
    let no_blocks = layer(GroupKind::FullAttention, 32, 0, 96, vec![good.clone()]);
    assert!(matches!(
        view(&no_blocks),
        Err(ViewError::Empty { blocks: 0, .. })
    ));
    let zero_page = layer(GroupKind::FullAttention, 32, 4, 0, vec![good.clone()]);
    assert!(matches!(view(&zero_page), Err(ViewError::Malformed { .. })));
    // The last page's padding would end behind the storage.
    let tail = storage.tensor(0, &[7, 40], &[160, 1], 1, 0);
    let tail = LayerTensors {
        real_page_bytes: Some(40),
        ..layer(GroupKind::Mamba, 32, 7, 160, vec![tail])
    };
    assert!(matches!(
        view(&tail),
        Err(ViewError::OutsideStorage {
            expected: 1120,
            found: 1024,
            ..
        })
    ));
}

#[test]
fn the_first_rule_that_matches_wins() {
    struct Everything(&'static str);
    impl ViewRule for Everything {
        fn name(&self) -> &'static str {
            self.0
        }
        fn matches(&self, _: &LayerTensors) -> bool {
            true
        }
        fn apply(&self, layer: &LayerTensors) -> Result<PageView, ViewError> {
            Ok(PageView {
                rule: self.0,
                ..super::rules::pass_through(layer)?
            })
        }
    }
    let storage = Storage::new(4 * 160);
    let plain = storage.tensor(0, &[4, 160], &[160, 1], 1, 0);
    let plain = layer(GroupKind::FullAttention, 32, 4, 160, vec![plain]);
    let registry = Registry::new(vec![
        Box::new(Everything("first")),
        Box::new(Everything("second")),
    ]);
    assert_eq!(registry.view(&plain, true).unwrap().rule, "first");
}
