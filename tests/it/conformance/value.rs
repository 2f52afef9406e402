//! The values of scenarios: JSON with its numbers kept as they are written, and the few values
//! that JSON text cannot hold.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A value of a scenario.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
    /// So many nested arrays.
    Deep(usize),
    /// A float that is not finite.
    NotFinite,
}

/// The fields of an object in the order in which they are written.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some((name, value)) = map.next_entry()? {
                    if fields.iter().any(|field| field.0 == name) {
                        let error = format!("field {name:?} is given twice");
                        return Err(serde::de::Error::custom(error));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Value {
    /// Reads JSON text as it is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let error = |error: serde_json::Error| error.to_string();
        Ok(match text.bytes().next() {
            Some(b'{') => {
                let fields: Fields = serde_json::from_str(text).map_err(error)?;
                let read = |(name, raw): (String, Box<RawValue>)| {
                    Self::parse(raw.get()).map(|value| (name, value))
                };
                Self::Object(fields.0.into_iter().map(read).collect::<Result<_, _>>()?)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(error)?;
                let items = items.into_iter().map(|raw| Self::parse(raw.get()));
                Self::List(items.collect::<Result<_, _>>()?)
            }
            Some(b'"') => Self::Text(serde_json::from_str(text).map_err(error)?),
            Some(b't' | b'f') => Self::Bool(serde_json::from_str(text).map_err(error)?),
            Some(b'n') => serde_json::from_str(text).map(|()| Self::Null).map_err(error)?,
            _ => {
                serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(error)?;
                Self::Number(text.to_owned())
            }
        })
    }

    /// Replaces the objects that stand for values which JSON text cannot hold.
    pub fn expand(self) -> Result<Self, String> {
        match self {
            Self::Object(fields) => match &fields[..] {
                [(name, value)] if name.starts_with('$') => special(name, value),
                _ => {
                    let expand = |(name, value): (String, Self)| Ok((name, value.expand()?));
                    let fields = fields.into_iter().map(expand);
                    Ok(Self::Object(fields.collect::<Result<_, String>>()?))
                }
            },
            Self::List(items) => {
                Ok(Self::List(items.into_iter().map(Self::expand).collect::<Result<_, _>>()?))
            }
            other => Ok(other),
        }
    }

    pub fn object<const N: usize>(fields: [(&str, Self); N]) -> Self {
        Self::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub fn number(number: impl fmt::Display) -> Self {
        Self::Number(number.to_string())
    }

    pub fn text(text: impl fmt::Display) -> Self {
        Self::Text(text.to_string())
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn fields(&self) -> Option<&[(String, Self)]> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    pub fn get(&self, name: &str) -> Option<&Self> {
        self.fields()?.iter().find(|field| field.0 == name).map(|field| &field.1)
    }

    pub fn is_finite(&self) -> bool {
        match self {
            Self::NotFinite => false,
            Self::List(items) => items.iter().all(Self::is_finite),
            Self::Object(fields) => fields.iter().all(|field| field.1.is_finite()),
            _ => true,
        }
    }

    /// Whether `seen` is what this value expects: objects by the fields given here, where null
    /// also stands for a missing one; lists whole.
    pub fn matches(&self, seen: &Self) -> bool {
        match (self, seen) {
            (Self::Object(fields), Self::Object(_)) => fields
                .iter()
                .all(|(name, value)| value.matches(seen.get(name).unwrap_or(&Self::Null))),
            (Self::List(items), Self::List(others)) => {
                items.len() == others.len()
                    && items.iter().zip(others).all(|(item, other)| item.matches(other))
            }
            _ => self == seen,
        }
    }
}

/// How large a value that is described by a number may be.
const LARGEST: usize = 16 << 20;

/// The value that an object with one field of this name stands for.
fn special(name: &str, value: &Value) -> Result<Value, String> {
    match (name, value) {
        ("$text", Value::List(parts)) => {
            let mut text = String::new();
            for pair in parts.chunks(2) {
                let [Value::Text(part), Value::Number(times)] = pair else {
                    return Err(format!("$text takes texts and numbers in turn, not {value}"));
                };
                let times: usize =
                    times.parse().map_err(|_| format!("{times} is no number of times"))?;
                if part.len().saturating_mul(times) > LARGEST - text.len() {
                    return Err(format!("$text makes at most {LARGEST} bytes, not {value}"));
                }
                text.push_str(&part.repeat(times));
            }
            Ok(Value::Text(text))
        }
        ("$deep", Value::Number(n)) => match n.parse() {
            Ok(n) if n <= LARGEST => Ok(Value::Deep(n)),
            _ => Err(format!("{n} is no depth up to {LARGEST}")),
        },
        ("$not_finite", Value::Bool(true)) => Ok(Value::NotFinite),
        _ => Err(format!("{{ {name:?}: {value} }} stands for no value that is known")),
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) | (Self::NotFinite, Self::NotFinite) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => decimal(a) == decimal(b),
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(name, value)| other.get(name) == Some(value))
            }
            (Self::Deep(_), Self::Deep(_) | Self::List(_)) | (Self::List(_), Self::Deep(_)) => {
                self.to_string() == other.to_string()
            }
            _ => false,
        }
    }
}

/// A number exactly: its sign, its digits, and the power of ten of the last of them.
fn decimal(number: &str) -> (bool, String, i64) {
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number),
    };
    let (digits, power) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_end_matches('0');
    let power = power.parse::<i64>().unwrap_or(i64::MAX);
    let power = power
        .saturating_sub(fraction.len() as i64)
        .saturating_add((all.len() - digits.len()) as i64);
    match digits.trim_start_matches('0') {
        "" => (false, String::new(), 0),
        digits => (negative, digits.to_owned(), power),
    }
}

/// JSON text; a float that is not finite shows as what it was written as.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(text) => f.write_str(text),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(items) => {
                f.write_str("[")?;
                for (n, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if n > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
            Self::Object(fields) => {
                f.write_str("{")?;
                for (n, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{}:{value}", if n > 0 { "," } else { "" }, quoted(name))?;
                }
                f.write_str("}")
            }
            Self::Deep(n) => write!(f, "{}{}", "[".repeat(*n), "]".repeat(*n)),
            Self::NotFinite => f.write_str(r#"{"$not_finite":true}"#),
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

#[test]
fn conformance_values_compare_exactly() {
    let value = |text: &str| Value::parse(text).unwrap().expand().unwrap();
    for (text, same) in [
        ("18446744073709551615", "18446744073709551615"),
        ("1.50", "15e-1"),
        ("-0", "0.0"),
        (r#"{ "a": 1, "b": [] }"#, r#"{ "b": [], "a": 1 }"#),
        (r#"{ "$text": ["ab", 3, "c", 1] }"#, r#""abababc""#),
        (r#"{ "$deep": 3 }"#, "[[[]]]"),
    ] {
        assert_eq!(value(text), value(same));
        assert!(value(text).matches(&value(same)));
    }
    for (text, other) in [
        ("18446744073709551615", "18446744073709551614"),
        ("0.1", "0.10000000000000000555"),
        ("100", "10"),
        ("1", "-1"),
        ("1", r#""1""#),
        ("[1, 2]", "[2, 1]"),
        (r#"{ "a": null }"#, "{}"),
        (r#"{ "$deep": 3 }"#, "[[]]"),
        (r#"{ "$not_finite": true }"#, "null"),
    ] {
        assert_ne!(value(text), value(other));
    }
    assert!(value(r#"{ "a": null }"#).matches(&value("{}")));
    assert!(!value("{}").matches(&value("null")));
    assert_eq!(value(r#"{"n":1e400,"t":"é\u0000"}"#).to_string(), r#"{"n":1e400,"t":"é\u0000"}"#);
}
