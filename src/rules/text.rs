//! Texts of errors: whatever a handler throws becomes a text that every store can keep.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MAX_CHARS: usize = 2_000;
const MAX_CODE: usize = 200;

/// An error's text as it is stored: never empty, never longer than 2 000 characters and an
/// ellipsis, free of NUL.
pub(crate) fn stored(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return "Unknown error".to_owned();
    }
    cut(text, MAX_CHARS)
}

/// An application's own code of an error as it is stored: not empty, at most 200 characters and an
/// ellipsis, free of NUL.
pub(crate) fn code(code: Option<&str>) -> Option<String> {
    code.filter(|code| !code.is_empty()).map(|code| cut(code, MAX_CODE))
}

fn cut(text: &str, most: usize) -> String {
    let mut chars = text.chars().map(|c| if c == '\0' { '\u{fffd}' } else { c });
    let mut kept: String = chars.by_ref().take(most).collect();
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
    fn a_code_can_always_be_kept() {
        assert_eq!(code(Some("E1")), Some("E1".to_owned()));
        assert_eq!((code(Some("")), code(None)), (None, None));
        assert_eq!(code(Some("a\0b")), Some("a\u{fffd}b".to_owned()));
        let long = code(Some(&"é".repeat(300))).unwrap();
        assert_eq!(long, "é".repeat(200) + "…");
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
