//! Finds floats that JSON cannot hold: `serde_json` would write them as `null`.

use std::fmt::{self, Display};

use serde::ser::{self, Serialize, Serializer};

/// Fails if `value` holds a float that is not finite.
pub(crate) fn check<T: Serialize + ?Sized>(value: &T) -> Result<(), String> {
    value.serialize(Finite).map_err(|found| found.0)
}

/// A serializer that writes nothing and only looks at the floats.
#[derive(Clone, Copy)]
struct Finite;

#[derive(Debug)]
struct Found(String);

impl Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Found {}

impl ser::Error for Found {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

fn finite(value: f64) -> Result<(), Found> {
    if value.is_finite() { Ok(()) } else { Err(Found(format!("{value} is not a finite number"))) }
}

/// Methods that have nothing to look at.
macro_rules! nothing {
    ($($name:ident($($type:ty),*);)+) => {
        $(fn $name(self $(, _: $type)*) -> Result<(), Found> { Ok(()) })+
    };
}

/// Methods that start a compound.
macro_rules! compound {
    ($($name:ident($($type:ty),*) -> $kind:ident;)+) => {
        $(fn $name(self $(, _: $type)*) -> Result<Self::$kind, Found> { Ok(self) })+
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = Found;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    nothing! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    compound! {
        serialize_seq(Option<usize>) -> SerializeSeq;
        serialize_tuple(usize) -> SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> SerializeTupleVariant;
        serialize_map(Option<usize>) -> SerializeMap;
        serialize_struct(&'static str, usize) -> SerializeStruct;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> SerializeStructVariant;
    }

    fn serialize_f32(self, value: f32) -> Result<(), Found> {
        finite(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Found> {
        finite(value)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Found> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Found> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Found> {
        value.serialize(self)
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Result<(), Found> {
        Ok(())
    }
}

/// The compounds: each element is looked at in turn.
macro_rules! elements {
    ($($trait:ident: $($method:ident($($name:ident: $type:ty),*)),+;)+) => {
        $(impl ser::$trait for Finite {
            type Ok = ();
            type Error = Found;
            $(fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($name: $type,)*
                value: &T,
            ) -> Result<(), Found> {
                value.serialize(*self)
            })+
            fn end(self) -> Result<(), Found> { Ok(()) }
        })+
    };
}

elements! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(_key: &'static str);
    SerializeStructVariant: serialize_field(_key: &'static str);
}
