//! Traps that a server's clients are in: refused by it, or out of pin words.

use std::path::Path;

use serde_json::Value;

use super::Report;
use crate::cache::slabs::PIN_WORDS;

pub(super) fn check(socket: &Path, status: &Value, report: &mut Report) {
    let at = socket.display();
    for client in status["clients"].as_array().map_or(&[][..], Vec::as_slice) {
        let (pid, name) = (&client["pid"], client["name"].as_str().unwrap_or_default());
        if let Some(why) = client["refused"].as_str() {
            report.silent(
                "client_refused",
                format_args!("{at}: process {pid} ({name}) is connected and caches nothing: {why}"),
            );
        }
        if client["pin_words"].as_u64() >= Some(PIN_WORDS as u64) {
            report.slow(
                "pin_words",
                format_args!(
                    "{at}: process {pid} ({name}) uses all of its {PIN_WORDS} pin words, so that its oldest pins go; it has \
                     to release each pin, or end the session, once its load is over"
                ),
            );
        }
    }
}
