//! Sizes and offsets.
