//! Arguments of a verb, read strictly: a field that nobody asked for is a failure, and a value
//! that a field's type cannot hold is refused as `invalid` with that field.

use std::fmt::Display;

use leasehold::Json;

use super::value::Value;

/// Why a step came to no answer.
#[derive(Debug)]
pub enum Stop {
    /// The answer was no: the code and what goes with it.
    Refused(Value),
    /// Something else came back than what was asked for.
    Differs { expected: String, seen: String },
    /// The scenario is not in the language, or the store is in trouble: always a failure.
    Broken(String),
}

impl Stop {
    pub fn broken(text: impl Display) -> Self {
        Self::Broken(text.to_string())
    }

    pub fn invalid(field: &str) -> Self {
        let code = ("code", Value::text("invalid"));
        Self::Refused(Value::object([code, ("field", Value::text(field))]))
    }
}

/// An object with the fields that are known, all of them optional.
pub struct Args<'v> {
    what: String,
    fields: &'v [(String, Value)],
}

impl<'v> Args<'v> {
    pub fn of(what: impl Display, value: &'v Value, known: &[&str]) -> Result<Self, Stop> {
        let Some(fields) = value.fields() else {
            return Err(Stop::Broken(format!("{what} takes an object, not {value}")));
        };
        match fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(Stop::Broken(format!("{what} has no field {name:?}"))),
            None => Ok(Self { what: what.to_string(), fields }),
        }
    }

    /// A field as it was given, null included.
    pub fn given(&self, name: &str) -> Option<&'v Value> {
        self.fields.iter().find(|field| field.0 == name).map(|field| &field.1)
    }

    /// A field's value; null stands for none.
    pub fn value(&self, name: &str) -> Option<&'v Value> {
        self.given(name).filter(|value| !matches!(value, Value::Null))
    }

    pub fn needed(&self, name: &str) -> Result<&'v Value, Stop> {
        self.value(name).ok_or_else(|| Stop::Broken(format!("{} needs {name:?}", self.what)))
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<Option<&'v str>, Stop> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(Stop::invalid(name)),
        }
    }

    /// A whole number that fits the type.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Stop> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Number(text)) => text.parse().map(Some).map_err(|_| Stop::invalid(name)),
            Some(_) => Err(Stop::invalid(name)),
        }
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, Stop> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Stop::invalid(name)),
        }
    }

    /// JSON text exactly as written; `refused` is the answer to what JSON cannot hold.
    pub fn json(&self, name: &str, refused: Stop) -> Result<Option<Json>, Stop> {
        self.given(name).map(|value| json(value, refused)).transpose()
    }
}

/// The JSON of a value. What JSON cannot hold is shown to the crate as the float that it is, and
/// must not pass.
pub fn json(value: &Value, refused: Stop) -> Result<Json, Stop> {
    if !value.is_finite() {
        return match Json::of(&[f64::NAN]) {
            Err(_) => Err(refused),
            Ok(json) => Err(Stop::Broken(format!("a float that is not finite became {json}"))),
        };
    }
    Json::parse(value.to_string()).map_err(Stop::Broken)
}

/// A list of texts.
pub fn texts(what: &str, value: &Value) -> Result<Vec<String>, Stop> {
    let text = |item: &Value| item.as_text().map(str::to_owned);
    match value {
        Value::List(items) => items.iter().map(text).collect(),
        _ => None,
    }
    .ok_or_else(|| Stop::Broken(format!("{what} is a list of texts, not {value}")))
}
