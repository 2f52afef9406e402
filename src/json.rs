//! JSON that is kept as the text it came in, so that nothing is rounded or reordered.

use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// The deepest nesting that is accepted.
pub(crate) const MAX_DEPTH: usize = 128;

/// A JSON text, kept byte for byte.
///
/// ```
/// use leasehold::Json;
///
/// let json = Json::parse(r#"{ "id": 18446744073709551615 }"#).unwrap();
/// assert_eq!(json.as_str(), r#"{ "id": 18446744073709551615 }"#);
/// assert!(Json::parse("{").is_err());
/// assert!(Json::of(&f64::NAN).is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Box<str>);

impl Json {
    /// The JSON of a value.
    ///
    /// # Errors
    ///
    /// A text that says why the value cannot be written as JSON: it holds a float that is not
    /// finite, a map whose keys are no texts, or its own `Serialize` failed.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, String> {
        crate::finite::check(value)?;
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        Ok(Self(text.into()))
    }

    /// A text that is JSON already; kept as it is.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong and where.
    pub fn parse(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        serde_json::from_str::<IgnoredAny>(&text).map_err(|error| error.to_string())?;
        Ok(Self(text.into()))
    }

    pub(crate) fn stored(text: String) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// A text that says where the JSON does not fit the type.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, String> {
        // What is kept is nested no deeper than the rule allows, which is deeper than the
        // parser's own limit.
        let mut parser = serde_json::Deserializer::from_str(&self.0);
        if depth(&self.0) <= MAX_DEPTH {
            parser.disable_recursion_limit();
        }
        let value = T::deserialize(&mut parser).map_err(|error| error.to_string())?;
        parser.end().map_err(|error| error.to_string())?;
        Ok(value)
    }

    /// The rule that this text breaks, if any: size in bytes, nesting.
    pub(crate) fn broken_rule(&self, max_bytes: usize) -> Option<String> {
        if self.0.len() > max_bytes {
            return Some(format!("at most {max_bytes} bytes of JSON text, not {}", self.0.len()));
        }
        let depth = depth(&self.0);
        (depth > MAX_DEPTH).then(|| format!("nested at most {MAX_DEPTH} deep, not {depth}"))
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How deep arrays and objects nest; counts brackets outside of strings.
fn depth(text: &str) -> usize {
    let (mut deepest, mut open, mut in_string, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                open += 1;
                deepest = deepest.max(open);
            }
            b']' | b'}' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_strings_only() {
        for (text, expected) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[{"b":1}]}"#, 3),
            (r#"["[[[[", "\"[[", "\\"]"#, 1),
            ("[[],[[]]]", 3),
        ] {
            assert_eq!(depth(text), expected, "{text}");
        }
    }

    #[test]
    fn what_json_cannot_hold_is_refused_and_the_rest_kept_exactly() {
        assert!(Json::of(&[1.0, f64::INFINITY]).is_err());
        assert!(Json::of(&Some(f32::NAN)).is_err());
        let text = r#"{"n":18446744073709551615,"big":123456789012345678901234567890,"e":1e400}"#;
        assert_eq!(Json::parse(text).unwrap().as_str(), text);
    }

    #[test]
    fn what_is_accepted_can_be_read() {
        let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
        let json = Json::parse(deep).unwrap();
        assert_eq!(json.broken_rule(1 << 20), None);
        assert!(json.to::<serde_json::Value>().is_ok());
        assert!(Json::parse("1").unwrap().to::<String>().is_err());
    }

    #[test]
    fn rules_name_the_size_and_the_depth() {
        let json = Json::parse("[[1]]").unwrap();
        assert_eq!(json.broken_rule(5), None);
        assert!(json.broken_rule(4).unwrap().contains("at most 4 bytes"));
        let deep = Json::parse(format!("{}{}", "[".repeat(129), "]".repeat(129))).unwrap();
        assert!(deep.broken_rule(1 << 20).unwrap().contains("nested at most 128"));
    }
}
