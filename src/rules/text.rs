//! Texts of errors: whatever a handler throws becomes a text that every store can keep.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MAX_CHARS: usize = 2_000;

/// An error's text as it is stored: never empty, never longer than 2 000 characters and an
/// ellipsis, free of NUL.
pub(crate) fn stored(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return "Unknown error".to_owned();
    }
    let mut chars = text.chars().map(|c| if c == '\0' { '\u{fffd}' } else { c });
    let mut kept: String = chars.by_ref().take(MAX_CHARS).collect();
    if chars.next().is_some() {
        kept.push('…');
    }
    kept
}

/// The text of an error whose formatting may panic.
pub(crate) fn of(error: &(impl Display + ?Sized)) -> String {
    match catch_unwind(AssertUnwindSafe(|| error.to_string())) {
        Ok(text) => stored(Some(&text)),
        Err(payload) => {
            forget(payload);
            "[unreportable value]".to_owned()
        }
    }
}

/// The text of a caught panic; drops the payload, whose own drop may panic too.
pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    forget(payload);
    match text {
        Some(text) => stored(Some(&format!("panicked: {text}"))),
        None => "panicked with a value that is no text".to_owned(),
    }
}

fn forget(payload: Box<dyn std::any::Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    struct Hostile;

    impl Display for Hostile {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("no text for you")
        }
    }

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped")
        }
    }

    #[test]
    fn hostile_errors_still_have_a_text() {
        assert_eq!(of(&Hostile), "[unreportable value]");
        assert_eq!(of(""), "Unknown error");
        assert_eq!(of("a\0b"), "a\u{fffd}b");
        assert_eq!(of_panic(Box::new(Bomb)), "panicked with a value that is no text");
        assert_eq!(of_panic(Box::new("boom")), "panicked: boom");
        assert_eq!(of_panic(Box::new(String::from("boom"))), "panicked: boom");
    }

    #[test]
    fn long_texts_are_cut_by_characters() {
        let exact = "é".repeat(2_000);
        assert_eq!(stored(Some(&exact)), exact);
        assert_eq!(stored(Some(&"é".repeat(2_001))), exact + "…");
    }
}
