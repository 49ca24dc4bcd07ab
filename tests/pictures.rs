//! The pictures of the documentation are what their texts make.

use std::path::Path;
use std::process::{Command, Output};

fn draw(script: &Path, args: &[&str]) -> Output {
    Command::new("python3").arg(script).args(args).output().unwrap()
}

#[test]
fn pictures_are_what_their_texts_make() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    let output = draw(&pictures.join("draw.py"), &["--check"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.stdout, b"2 pictures\n");
}

#[test]
fn a_changed_text_is_noticed_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures/draw.py");
    let script = directory.path().join("draw.py");
    std::fs::copy(real, &script).unwrap();
    let text = directory.path().join("one.txt");
    std::fs::write(
        &text,
        "# About & more.\n┌ outer ─────┐\n│ ┌───┐      │\n│ │ a ├──▶ b │\n│ └───┘      │\n└────────────┘\n",
    )
    .unwrap();
    assert!(
        !draw(&script, &["--check"]).status.success(),
        "there is no picture yet"
    );
    assert!(draw(&script, &[]).status.success());
    assert!(draw(&script, &["--check"]).status.success());
    let picture = std::fs::read_to_string(directory.path().join("one.svg")).unwrap();
    for (kind, count) in [("\"inner\"", 1), ("\"outer\"", 2), ("\"head\"", 1), ("<text", 3)] {
        // The outer box, and what its title stands on.
        assert_eq!(picture.matches(kind).count(), count, "{kind}: {picture}");
    }
    assert!(picture.contains("aria-label=\"About &amp; more.\""), "{picture}");
    assert!(picture.contains("prefers-color-scheme: dark"), "{picture}");
    std::fs::write(&text, "┌───┐\n│ a │\n└───┘\n").unwrap();
    let output = draw(&script, &["--check"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("one.svg"),
        "{output:?}"
    );
    std::fs::write(&text, "┌───┐\n│ ab│\n└────┘\n").unwrap();
    let output = draw(&script, &[]);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("not closed"),
        "{output:?}"
    );
}
