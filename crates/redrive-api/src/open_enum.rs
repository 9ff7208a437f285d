//! Enums that keep a name which this release does not know, so that a client reads the responses of a newer server.

/// Defines an enum of names with the variant `Other` for every other name; JSON has the plain name.
macro_rules! open_enum {
    ($(#[doc = $about:literal])* pub enum $name:ident { $($(#[doc = $doc:literal])* $variant:ident = $text:literal,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
        #[serde(from = "String")]
        pub enum $name {
            $($(#[doc = $doc])* $variant,)*
            /// A name that this release does not know. Sent to a server, it is refused.
            Other(String),
        }

        impl $name {
            /// The names that this release knows.
            pub const KNOWN: &[&str] = &[$($text),*];

            /// The name as JSON has it.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $text,)*
                    $name::Other(name) => name,
                }
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                match name {
                    $($text => $name::$variant,)*
                    other => $name::Other(other.to_owned()),
                }
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                name.as_str().into()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let values = [$(concat!("- `", $text, "`:", $($doc),*)),*].join("\n");
                let about = concat!($($about),*).trim();
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::Type::String)
                    .description(Some(format!("{about}\n\n{values}\n\nFurther values may be added.")))
                    .extensions(Some([("x-extensible-enum", serde_json::json!($name::KNOWN))].into_iter().collect()))
                    .into()
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $name {}
    };
}

pub(crate) use open_enum;
