//! What every function of the header runs in.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::{Failure, Outcome, kvasir_code, remember};

thread_local! {
    /// Whether this thread is inside a function of the header.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Set while a thread is inside, also when it leaves by a panic.
struct Inside;

impl Inside {
    fn enter() -> Option<Self> {
        // A thread whose variables are gone is ending; it interrupts nothing.
        let was = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(false);
        (!was).then(|| Self) // made only then: its drop says that the thread has left
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Runs the body of a function: a panic becomes an error code, a call inside another one is refused.
pub(crate) fn call(body: impl FnOnce() -> Outcome<()>) -> kvasir_code {
    let Some(_inside) = Inside::enter() else {
        // Only a signal handler gets here, since nothing in here calls the engine. The call that it interrupted may be in the
        // middle of anything, the last error included, so this changes nothing.
        return kvasir_code::Busy;
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => kvasir_code::Ok,
        Ok(Err(failure)) => remember(failure),
        Err(panic) => remember(panicked(&*panic)),
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Failure::new(
        kvasir_code::Internal,
        &[],
        format!("a defect in the Kvasir client: {text}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::with_last;

    fn last() -> String {
        with_last(|last| last.unwrap().message.to_str().unwrap().to_owned()).unwrap()
    }

    #[test]
    fn a_panic_is_an_error_and_the_next_call_works() {
        let code = call(|| panic!("index {} of {}", 7, 3));
        assert_eq!(code, kvasir_code::Internal);
        assert_eq!(last(), "a defect in the Kvasir client: index 7 of 3");
        assert_eq!(call(|| Ok(())), kvasir_code::Ok);
    }

    #[test]
    fn a_call_inside_another_is_refused_and_changes_nothing() {
        assert_eq!(
            call(|| Err(Failure::argument("before"))),
            kvasir_code::InvalidArgument
        );
        let outer = call(|| {
            assert_eq!(call(|| unreachable!()), kvasir_code::Busy);
            // Still inside.
            assert_eq!(call(|| unreachable!()), kvasir_code::Busy);
            Ok(())
        });
        assert_eq!(outer, kvasir_code::Ok);
        assert_eq!(last(), "before");
        assert_eq!(call(|| Ok(())), kvasir_code::Ok);
    }
}
